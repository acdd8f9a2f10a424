"""The ladders of other systems by name, and rules for widths: text in, ascending integers out.

Each ladder is as its system has it, so it may be incomplete: where it ends below the largest batch, batches above it
run eager. `max` is that batch, as though the system's own adjustable limit on captures (512 in vLLM, 128 in
TensorRT-LLM, by memory in SGLang and mini-sglang) were raised to it; nano-vllm's 512 is fixed in its source and kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType

from nanoserve.buckets import (
    CaptureList,
    DecodeBuckets,
    Shape,
    check_ladder,
    check_positive,
    multiple_widths,
    pow2_rows,
)

MAX_WIDTHS = 1 << 20
WIDTH_RULES = "multiple:N, pow2:MIN or list:A,B,C"
"""The forms of a width rule, for help texts and errors."""

_LIST = "list:"


@dataclass(frozen=True)
class RowLadder:
    """A named row ladder: `rows(max_batch_size)` is strictly ascending and never beyond `max_batch_size`.

    `source` is the system and version that `rule` was read in. `rows` raises ValueError for a maximum below 1.
    """

    name: str
    source: str
    rule: str
    rows: Callable[[int], tuple[int, ...]]


_Sizes = Callable[[int], Iterable[int]]
_ladders: dict[str, RowLadder] = {}
ROW_LADDERS: Mapping[str, RowLadder] = MappingProxyType(_ladders)
"""Every named row ladder, by name."""


def _named(name: str, source: str, rule: str) -> Callable[[_Sizes], _Sizes]:
    """Registers a function of `max` that gives a ladder's sizes in any order; those beyond `max` are left out."""

    def register(sizes: _Sizes) -> _Sizes:
        def rows(max_batch_size: int) -> tuple[int, ...]:
            maximum = check_positive("max_batch_size", max_batch_size)
            return tuple(sorted({size for size in sizes(maximum) if size <= maximum}))

        _ladders[name] = RowLadder(name, source, rule, rows)
        return sizes

    return register


@_named("pow2", "nanoserve's default and transformers 5.24's decode path", "1, 2, 4, ..., and max")
def _pow2(maximum: int) -> Iterable[int]:
    return pow2_rows(maximum)


@_named("vllm", "vLLM 0.33", "1, 2, 4, 8..248 step 8, 256.. step 16, and max")
def _vllm(maximum: int) -> Iterable[int]:
    return (1, 2, 4, *range(8, 256, 8), *range(256, maximum, 16), maximum)


@_named("vllm-interactive", "vLLM 0.33, --performance-mode interactivity", "every 1..32, then as vllm")
def _vllm_interactive(maximum: int) -> Iterable[int]:
    return (*range(1, 33), *_vllm(maximum))


@_named("sglang", "SGLang 0.5.23", "1, 2, 4, 8, 12, 16..256 step 8, 272..496 step 16, 512.. step 32, and max")
def _sglang(maximum: int) -> Iterable[int]:
    return (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, maximum, 32), maximum)


@_named("trtllm", "TensorRT-LLM since PR #12895, padding on", "1, 2, 4, 8..128 step 8, 192.. step 64, and max")
def _trtllm(maximum: int) -> Iterable[int]:
    return (1, 2, 4, *range(8, 129, 8), *range(192, maximum, 64), maximum)


@_named("nano-vllm", "nano-vllm's model_runner.py", "1, 2, 4, 8, 16.. step 16 up to max or 512")
def _nano_vllm(maximum: int) -> Iterable[int]:
    return (1, 2, 4, 8, *range(16, min(maximum, 512) + 1, 16))


@_named("mini-sglang", "mini-sglang's engine/graph.py", "1, 2, 4, 8.. step 8 up to max")
def _mini_sglang(maximum: int) -> Iterable[int]:
    return (1, 2, 4, *range(8, maximum + 1, 8))


@_named("lmdeploy", "LMDeploy's PyTorch engine", "powers of two to 256, 512.. step 256, and max")
def _lmdeploy(maximum: int) -> Iterable[int]:
    return (*pow2_rows(256), *range(512, maximum, 256), maximum)


@_named("tgi", "TGI's --cuda-graphs default", "1, 2, 4, 8, 16, 32")
def _tgi(maximum: int) -> Iterable[int]:
    return (1, 2, 4, 8, 16, 32)


@_named("gaudi-exp", "vllm-gaudi 091bbadd", "1, and ceil((max/2)^(i/n)) * 2 for i = 0..n = ceil(log2 max), at most max")
def _gaudi_exp(maximum: int) -> Iterable[int]:
    n = (maximum - 1).bit_length()
    return (1, *(min(2 * _ceil_of_power(maximum, i, n), maximum) for i in range(n + 1)))


def _ceil_of_power(maximum: int, i: int, n: int) -> int:
    """`ceil((maximum / 2) ** (i / n))`, in integers: in floats, an exact power off by one bit would move a bucket.

    It is the least x of `x >= (maximum / 2) ** (i / n)`, which is `x**n * 2**i >= maximum**i`.
    """
    return 1 + bisect_left(range(1, maximum), maximum**i, key=lambda x: x**n << i)


@_named(
    "gaudi-pad",
    "vllm-gaudi 091bbadd",
    "1, 2, 4, then by 2: the sizes whose absence would pad over 25 % or max/4, multiples of max/4, and max",
)
def _gaudi_pad(maximum: int) -> Iterable[int]:
    return gaudi_pad(1, 2, maximum, -(-maximum // 4), 25)


def gaudi_pad(minimum: int, step: int, maximum: int, pad_max: int, pad_percent: int) -> tuple[int, ...]:
    """vllm-gaudi's padding-aware ladder (its `padding_aware.py`): doubles from `minimum` until past `step`, then walks.

    Walking by `step`, a size is kept if skipping it lets the next one pad by more than `pad_max`, or by more than
    `pad_percent` of itself, or if it is a multiple of `pad_max`. `maximum` is always last; `pad_max` 0 stands for
    `maximum`. A `minimum` of 0 is a bucket too (a context may be empty, a batch not). ValueError unless
    0 <= minimum <= maximum, step >= 1, pad_max >= 0 and pad_percent is 0 to 50.
    """
    check_positive("step", step)
    check_positive("maximum", maximum)
    if not 0 <= minimum <= maximum:
        raise ValueError(f"minimum must be 0 to the maximum {maximum}, got {minimum}")
    if pad_max < 0:
        raise ValueError(f"pad_max must be at least 0, got {pad_max}")
    if not 0 <= pad_percent <= 50:
        raise ValueError(f"pad_percent must be 0 to 50, got {pad_percent}")
    pad_max = pad_max or maximum
    buckets = [minimum]
    while buckets[-1] <= step and (doubled := 2 * buckets[-1] or 1) <= maximum:
        buckets.append(doubled)
    for size in range(buckets[-1] + step, maximum, step):
        following = size + step
        padding = following - buckets[-1] - 1
        if 100 * padding > pad_percent * following or padding > pad_max or size % pad_max == 0:
            buckets.append(size)
    return (*buckets, maximum) if buckets[-1] < maximum else tuple(buckets)


def row_ladder(rule: str, max_batch_size: int) -> tuple[int, ...]:
    """The row ladder of a rule, ascending, at most `max_batch_size`; it may end below: batches above run eager.

    `rule` is a name of ROW_LADDERS, or `list:A,B,C`, taken as given. ValueError for an unknown name, and for a list
    that is not strictly ascending, not positive, or beyond the maximum.
    """
    maximum = check_positive("max_batch_size", max_batch_size)
    if rule.startswith(_LIST):
        try:
            return _listed(rule.removeprefix(_LIST), "max_batch_size", maximum)
        except ValueError as error:
            raise ValueError(f"row rule {rule!r}: {error}") from None
    if rule not in ROW_LADDERS:
        close = get_close_matches(rule.lower(), ROW_LADDERS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(ROW_LADDERS)}, or list:A,B,C"
        raise ValueError(f"unknown row rule {rule!r}: {hint}")
    return ROW_LADDERS[rule].rows(maximum)


def width_ladder(rule: str, max_model_len: int) -> tuple[int, ...]:
    """The width ladder of a rule, ascending, in KV columns, at most `max_model_len`.

    `multiple:N` is the multiples of N below the maximum, `pow2:MIN` doubles from MIN below it, and both end with the
    maximum; `list:A,B,C` is taken as given and may end below. ValueError for anything else, and for a list as in
    `row_ladder`.
    """
    maximum = check_positive("max_model_len", max_model_len)
    kind, _, argument = rule.partition(":")
    if kind not in ("multiple", "pow2", "list"):
        raise ValueError(f"unknown width rule {rule!r}: give {WIDTH_RULES}")
    try:
        if kind == "list":
            return _listed(argument, "max_model_len", maximum)
        number = check_positive("its number", _number(argument))
    except ValueError as error:
        raise ValueError(f"width rule {rule!r}: {error}; give {WIDTH_RULES}") from None
    if kind == "multiple" and maximum // number > MAX_WIDTHS:
        raise ValueError(f"{rule} up to {maximum:,} is more than {MAX_WIDTHS:,} width buckets: take a larger multiple")
    if kind == "multiple":
        return multiple_widths(maximum, number)
    doublings = ((maximum - 1) // number).bit_length()
    return (*(number << n for n in range(doublings)), maximum)


def capture_list(rows: str, widths: str, max_batch_size: int, max_model_len: int) -> CaptureList:
    """The product of a row rule and a width rule as its system has it, complete or not, under the server's limits."""
    ladders = row_ladder(rows, max_batch_size), width_ladder(widths, max_model_len)
    shapes = (Shape(row_bucket, width) for row_bucket, width in product(*ladders))
    return CaptureList(shapes, max_batch_size=max_batch_size, max_model_len=max_model_len)


def completed(rows: str, widths: str, max_batch_size: int, max_model_len: int) -> DecodeBuckets:
    """The product of both ladders as a policy: each with its maximum added where it lacks."""
    row_buckets, width_buckets = row_ladder(rows, max_batch_size), width_ladder(widths, max_model_len)
    return DecodeBuckets(
        max_batch_size,
        max_model_len,
        rows=_ending_at(max_batch_size, row_buckets),
        widths=_ending_at(max_model_len, width_buckets),
    )


def split_rules(text: str) -> tuple[str, ...]:
    """The rules of a comma list; numbers belong to the `list:` before them: `vllm,list:1,2` -> `vllm`, `list:1,2`.

    Names are not looked up. ValueError for an empty part or a number after no list.
    """
    rules: list[str] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise ValueError(f"{text!r} has an empty part: give rules between single commas")
        if not part.isdecimal():
            rules.append(part)
        elif rules and rules[-1].startswith(_LIST):
            rules[-1] += f",{part}"
        else:
            raise ValueError(f"the number {part} in {text!r} belongs to no list: write {_LIST}{part}")
    return tuple(rules)


def _ending_at(maximum: int, ladder: tuple[int, ...]) -> tuple[int, ...]:
    return ladder if ladder[-1] == maximum else (*ladder, maximum)


def _listed(argument: str, limit: str, maximum: int) -> tuple[int, ...]:
    """The numbers of an explicit list; `limit` is the name of its `maximum`."""
    numbers = tuple(_number(part) for part in argument.split(","))
    ladder = check_ladder("the list", numbers, numbers[-1])
    if ladder[-1] > maximum:
        raise ValueError(f"the list goes up to {ladder[-1]}, beyond {limit} {maximum}")
    return ladder


def _number(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
