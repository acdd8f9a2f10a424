"""vLLM: capture sizes are tokens, and serve its mixed batches of prefill and decode as well.

Rules of `vllm/config/vllm.py::_set_cudagraph_sizes` and the dispatcher, 0.33.0. With FULL_AND_PIECEWISE, FULL graphs
are captured at the sizes up to `tokens_per_row * max_num_seqs`, PIECEWISE graphs at all of them; PIECEWISE and FULL use
one kind for every batch; FULL_DECODE_ONLY runs mixed batches without a graph.
"""

from __future__ import annotations

import json

from nanoserve_cli.emit.notes import dropped_unaligned, listed, rows_above, span, widths_unused
from nanoserve_cli.emit.target import Emission, EmitTarget

CEILING = 512
"""The largest size of the default list, in tokens; BLACKWELL_CEILING on data-centre Blackwell."""
BLACKWELL_CEILING = 1024
LEAST_TOKEN_BUDGET = 2048
"""The smallest default of max_num_batched_tokens on a GPU."""


def default_sizes(target: EmitTarget, ceiling: int = CEILING) -> tuple[int, ...]:
    """What vLLM captures for this server when it is given no list, in tokens, ascending."""
    per_row = target.tokens_per_row
    top = min(target.max_batch_size * per_row * 2, ceiling)
    sizes = {size for size in _grid(top) if size <= top}
    # Decode batches of n rows, so that the peak batch is captured off stride too.
    most_rows = min(target.max_batch_size, ceiling)
    sizes |= {n * per_row for n in (*_grid(most_rows), most_rows) if n <= most_rows and n * per_row <= top}
    budget = target.max_num_batched_tokens
    if budget is None:
        return tuple(sorted(sizes))
    within = {size for size in sizes if size <= budget}
    return tuple(sorted(within | {budget} if budget <= top else within))


def _grid(top: int) -> tuple[int, ...]:
    return (1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16))


def vllm(target: EmitTarget) -> Emission:
    """Decode sizes in tokens, then vLLM's own sizes above them for mixed batches, where the mode captures those.

    Raises ValueError for cudagraph_mode NONE, and for a max_num_batched_tokens with which vLLM does not start.
    """
    if target.cudagraph_mode == "NONE":
        raise ValueError("cudagraph_mode NONE captures nothing: there is no list to emit")
    reach = _most_rows(target)
    decode = tuple(sorted({min(rows, reach) * target.tokens_per_row for rows in target.rows}))
    mixed = () if target.cudagraph_mode == "FULL_DECODE_ONLY" else _above(default_sizes(target), decode[-1])
    sizes = decode + mixed
    warnings = (
        *widths_unused(target, "vLLM"),
        *_above_the_list(target, sizes, reach),
        *_token_budget(target, reach),
        *_parallel(target, sizes, reach),
        *_mixed_batches(target, decode, sizes),
        f"beside this list vLLM does not start with a max_cudagraph_capture_size other than {sizes[-1]}, nor with a "
        "compile_sizes entry that the list would pad",
    )
    return Emission("vllm", "vLLM 0.33.0", _blocks(target, sizes), warnings, sizes)


def _above(sizes: tuple[int, ...], top: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if size > top)


def _most_rows(target: EmitTarget) -> int:
    """Rows of the largest decode step that the token budget lets vLLM schedule."""
    budget = target.max_num_batched_tokens
    if budget is None:
        return target.max_batch_size
    least = max(target.max_batch_size, target.tokens_per_row)
    if budget < least:
        raise ValueError(f"max_num_batched_tokens {budget} is too small for this server: vLLM needs at least {least}")
    return min(target.max_batch_size, budget // target.tokens_per_row)


def _blocks(target: EmitTarget, sizes: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    limits = f"--max-num-seqs {target.max_batch_size}"
    if target.max_num_batched_tokens is not None:
        limits += f" --max-num-batched-tokens {target.max_num_batched_tokens}"
    config: dict[str, object] = {"cudagraph_capture_sizes": list(sizes)}
    flags = f"{limits} --cudagraph-capture-sizes {' '.join(map(str, sizes))}"
    if target.cudagraph_mode != "FULL_AND_PIECEWISE":
        config = {"cudagraph_mode": target.cudagraph_mode} | config
        flags += f" -cc.cudagraph_mode={target.cudagraph_mode}"
    as_json = f"{limits} --compilation-config '{json.dumps(config)}'"
    return (("flags of vllm serve", flags), ("the same as one JSON flag", as_json))


def _above_the_list(target: EmitTarget, sizes: tuple[int, ...], reach: int) -> list[str]:
    """Decode batches that an incomplete list leaves out: vLLM's own sizes above it catch what they can."""
    if target.rows[-1] >= reach:
        return []
    if sizes[-1] >= reach * target.tokens_per_row:
        return rows_above(target, target.rows[-1], "they run at vLLM's default sizes, kept for mixed batches")
    return rows_above(target, sizes[-1] // target.tokens_per_row, "vLLM runs them without a graph")


def _token_budget(target: EmitTarget, reach: int) -> list[str]:
    budget, peak = target.max_num_batched_tokens, target.max_batch_size * target.tokens_per_row
    if budget is None and peak > LEAST_TOKEN_BUDGET:
        return [
            f"vLLM drops sizes above max_num_batched_tokens, {LEAST_TOKEN_BUDGET} by default on some GPUs: give one of "
            f"at least {peak} to vLLM and here"
        ]
    if budget is None or peak <= budget:
        return []
    return [
        f"one step of {budget} tokens does not hold {span(reach + 1, target.max_batch_size)} at "
        f"{target.tokens_per_row} tokens a row: decode sizes go up to {reach * target.tokens_per_row}; for the whole "
        f"batch raise max_num_batched_tokens to {peak}"
    ]


def _parallel(target: EmitTarget, sizes: tuple[int, ...], reach: int) -> list[str]:
    peak = reach * target.tokens_per_row
    return dropped_unaligned(sizes, peak, target.tensor_parallel, "with sequence parallelism on, vLLM")


def _mixed_batches(target: EmitTarget, decode: tuple[int, ...], sizes: tuple[int, ...]) -> list[str]:
    if target.cudagraph_mode == "FULL_DECODE_ONLY":
        return []
    warnings = []
    lacking = [size for size in default_sizes(target) if size not in sizes]
    if lacking:
        warnings.append(
            f"up to {decode[-1]} tokens this list serves mixed batches too, to which it was not fitted: it lacks "
            f"{len(lacking)} of vLLM's default sizes there: {listed(lacking)}"
        )
    blackwell = _above(default_sizes(target, BLACKWELL_CEILING), sizes[-1])
    if blackwell:
        more = " ".join(map(str, blackwell))
        warnings.append(f"on data-centre Blackwell vLLM's default list goes further for mixed batches: append {more}")
    return warnings
