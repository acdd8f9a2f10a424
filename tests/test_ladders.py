"""The ladders of other systems, number by number, and the rules that name ladders in text."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import CaptureList, Shape
from nanoserve.buckets import multiple_widths, pow2_rows
from nanoserve.ladders import (
    ROW_LADDERS,
    WIDTH_RULES,
    capture_list,
    completed,
    gaudi_pad,
    row_ladder,
    split_rules,
    width_ladder,
)

NAMES = tuple(ROW_LADDERS)
INCOMPLETE = {"nano-vllm", "mini-sglang", "tgi"}
"""The systems whose ladder may end below the largest batch."""

BY_8 = tuple(range(8, 257, 8))
AT_256 = {
    "pow2": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "vllm": (1, 2, 4, *BY_8),
    "vllm-interactive": (*range(1, 33), *BY_8[4:]),
    "sglang": (1, 2, 4, 8, 12, *BY_8[1:]),
    "trtllm": (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 192, 256),
    "nano-vllm": (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
    "mini-sglang": (1, 2, 4, *BY_8),
    "lmdeploy": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "tgi": (1, 2, 4, 8, 16, 32),
    "gaudi-exp": (1, 2, 4, 8, 14, 24, 42, 78, 140, 256),
    "gaudi-pad": (1, 2, 4, 6, 8, 12, 16, 22, 30, 40, 54, 64, 86, 116, 128, 172, 192, 256),
}
COUNT_AT_256 = {
    "pow2": 9,
    "vllm": 35,
    "vllm-interactive": 60,
    "sglang": 36,
    "trtllm": 21,
    "nano-vllm": 20,
    "mini-sglang": 35,
    "lmdeploy": 9,
    "tgi": 6,
    "gaudi-exp": 10,
    "gaudi-pad": 18,
}

maxima = st.integers(1, 5000)
names = st.sampled_from(NAMES)


# Row ladders by name.


@pytest.mark.parametrize("name", NAMES)
def test_each_ladder_at_256(name: str) -> None:
    assert row_ladder(name, 256) == AT_256[name]
    assert len(AT_256[name]) == COUNT_AT_256[name]


def test_the_registry_is_read_only_in_the_order_of_the_table_and_says_where_each_is_from() -> None:
    assert tuple(AT_256) == NAMES
    for name, ladder in ROW_LADDERS.items():
        assert ladder.name == name
        assert ladder.source
        assert ladder.rule
        assert "\n" not in ladder.source + ladder.rule
    with pytest.raises(TypeError):
        ROW_LADDERS["mine"] = ROW_LADDERS["pow2"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "max_batch_size", "count", "last_two"),
    [
        ("pow2", 100, 8, (64, 100)),
        ("vllm", 100, 16, (96, 100)),  # the maximum is a size, so 97..100 keep their graph
        ("vllm", 250, 35, (248, 250)),
        ("vllm", 257, 36, (256, 257)),
        ("vllm", 512, 51, (496, 512)),  # as many as its piecewise sizes at 256
        ("vllm", 1000, 82, (992, 1000)),
        ("vllm-interactive", 20, 20, (19, 20)),
        ("vllm-interactive", 37, 33, (32, 37)),
        ("sglang", 14, 6, (12, 14)),
        ("sglang", 257, 37, (256, 257)),
        ("sglang", 512, 52, (496, 512)),
        ("sglang", 1000, 68, (992, 1000)),
        ("trtllm", 191, 20, (128, 191)),
        ("trtllm", 300, 22, (256, 300)),
        ("trtllm", 2048, 49, (1984, 2048)),  # the 49 graphs of NVIDIA's tech blog 20
        ("nano-vllm", 100, 10, (80, 96)),  # 97..100 have no graph
        ("nano-vllm", 512, 36, (496, 512)),
        ("nano-vllm", 1000, 36, (496, 512)),
        ("mini-sglang", 100, 15, (88, 96)),
        ("lmdeploy", 300, 10, (256, 300)),
        ("lmdeploy", 1000, 12, (768, 1000)),
        ("tgi", 4096, 6, (16, 32)),
        ("gaudi-exp", 257, 11, (150, 257)),
        ("gaudi-exp", 4096, 14, (2170, 4096)),
        ("gaudi-pad", 1000, 23, (750, 1000)),
    ],
)
def test_off_stride_and_other_maxima(name: str, max_batch_size: int, count: int, last_two: tuple[int, int]) -> None:
    ladder = row_ladder(name, max_batch_size)
    assert (len(ladder), ladder[-2:]) == (count, last_two)


@pytest.mark.parametrize(
    ("max_batch_size", "ladders"),
    [
        (1, {(1,): set(NAMES)}),
        (2, {(1, 2): set(NAMES)}),
        (3, {(1, 2): INCOMPLETE, (1, 2, 3): set(NAMES) - INCOMPLETE}),
        (
            7,
            {
                (1, 2, 4): INCOMPLETE,
                (1, 2, 4, 7): {"pow2", "vllm", "sglang", "trtllm", "lmdeploy"},
                (1, 2, 4, 6, 7): {"gaudi-exp", "gaudi-pad"},
                (1, 2, 3, 4, 5, 6, 7): {"vllm-interactive"},
            },
        ),
        (
            9,
            {
                (1, 2, 4, 8): INCOMPLETE,
                (1, 2, 4, 8, 9): {"pow2", "vllm", "sglang", "trtllm", "lmdeploy"},
                (1, 2, 4, 6, 8, 9): {"gaudi-exp", "gaudi-pad"},
                (1, 2, 3, 4, 5, 6, 7, 8, 9): {"vllm-interactive"},
            },
        ),
    ],
)
def test_small_batches(max_batch_size: int, ladders: dict[tuple[int, ...], set[str]]) -> None:
    found: dict[tuple[int, ...], set[str]] = {}
    for name in NAMES:
        found.setdefault(row_ladder(name, max_batch_size), set()).add(name)
    assert found == ladders


@given(names, maxima)
def test_a_ladder_ascends_from_1_within_its_maximum_and_ends_there_where_the_system_adds_it(
    name: str, max_batch_size: int
) -> None:
    ladder = row_ladder(name, max_batch_size)
    assert ladder[0] == 1
    assert all(before < after for before, after in pairwise(ladder))
    assert ladder[-1] <= max_batch_size
    assert name in INCOMPLETE or ladder[-1] == max_batch_size
    assert all(type(size) is int for size in ladder)
    assert ROW_LADDERS[name].rows(max_batch_size) == ladder


@given(maxima)
def test_the_default_rows_of_nanoserve_are_pow2(max_batch_size: int) -> None:
    assert row_ladder("pow2", max_batch_size) == pow2_rows(max_batch_size)


@given(maxima)
def test_interactive_is_vllm_with_every_small_batch(max_batch_size: int) -> None:
    vllm = set(row_ladder("vllm", max_batch_size))
    assert set(row_ladder("vllm-interactive", max_batch_size)) == vllm | set(range(1, min(32, max_batch_size) + 1))


def exponential_in_floats(maximum: int) -> tuple[int, ...]:
    """The formula as vllm-gaudi computes it: a floating power, rounded up to the step of 2, the last one clamped."""
    gaps = math.ceil(math.log2(maximum))
    sizes = {math.ceil(2 * (maximum / 2) ** (1.0 / gaps * i) / 2) * 2 for i in range(gaps + 1)} | {1}
    return (*sorted(sizes)[:-1], maximum)


def test_the_integer_form_of_gaudi_exp_gives_what_the_system_gets_in_floats() -> None:
    assert [m for m in range(2, 2049) if row_ladder("gaudi-exp", m) != exponential_in_floats(m)] == []


@pytest.mark.parametrize(
    ("maximum", "ladder"),
    [
        (50, (1, 2, 4, 6, 10, 18, 30, 50)),  # 25 ** (3 / 6) is 5 exactly, so 10 and not 12
        (54, (1, 2, 4, 6, 12, 18, 32, 54)),  # 27 ** (2 / 6) is 3, 27 ** (4 / 6) is 9
    ],
)
def test_an_exact_power_is_not_pushed_up(maximum: int, ladder: tuple[int, ...]) -> None:
    assert row_ladder("gaudi-exp", maximum) == ladder


# The padding-aware ladder.


@pytest.mark.parametrize(
    ("config", "ladder"),
    [
        ((0, 8, 64, 64, 0), (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        ((0, 8, 64, 64, 50), (0, 1, 2, 4, 8, 16, 32, 64)),
        ((0, 8, 64, 16, 50), (0, 1, 2, 4, 8, 16, 32, 48, 64)),
        ((16, 16, 128, 32, 25), (16, 32, 48, 64, 80, 96, 128)),
        # Edges: no room to double, a start above the step, one bucket, an off-stride end.
        ((0, 8, 3, 3, 25), (0, 1, 2, 3)),
        ((5, 2, 12, 3, 0), (5, 7, 9, 11, 12)),
        ((7, 2, 7, 2, 25), (7,)),
        ((1, 2, 11, 3, 25), (1, 2, 4, 6, 8, 11)),
        ((1, 1, 9, 9, 50), (1, 2, 6, 9)),  # it doubles at the step itself
    ],
)
def test_gaudi_pad_by_example(config: tuple[int, int, int, int, int], ladder: tuple[int, ...]) -> None:
    assert gaudi_pad(*config) == ladder


@given(st.integers(1, 600), st.integers(1, 64), st.data())
def test_gaudi_pad_keeps_its_limits_but_for_a_single_step_and_keeps_no_size_without_need(
    maximum: int, step: int, data: st.DataObject
) -> None:
    minimum = data.draw(st.integers(0, maximum))
    pad_max, pad_percent = data.draw(st.integers(1, 200)), data.draw(st.integers(0, 50))

    def within_limits(before: int, after: int) -> bool:
        padding = after - before - 1
        return padding <= pad_max and 100 * padding <= pad_percent * after

    ladder = gaudi_pad(minimum, step, maximum, pad_max, pad_percent)
    assert (ladder[0], ladder[-1]) == (minimum, maximum)
    for before, after in pairwise(ladder):
        assert before < after
        assert after - before <= step or within_limits(before, after)
        if step < before and after < maximum:  # past the doubling
            assert (after - before) % step == 0
            assert after % pad_max == 0 or not within_limits(before, after + step)


@given(st.integers(1, 600), st.integers(1, 64), st.integers(0, 50))
def test_a_pad_max_of_zero_is_none(maximum: int, step: int, pad_percent: int) -> None:
    assert gaudi_pad(1, step, maximum, 0, pad_percent) == gaudi_pad(1, step, maximum, maximum, pad_percent)


@given(maxima)
def test_gaudi_pad_by_name_has_the_defaults_of_its_decode_rows(maximum: int) -> None:
    assert row_ladder("gaudi-pad", maximum) == gaudi_pad(1, 2, maximum, math.ceil(maximum / 4), 25)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ((1, 0, 8, 2, 25), "step must be an integer of at least 1, got 0"),
        ((0, 1, 0, 2, 25), "maximum must be an integer of at least 1, got 0"),
        ((9, 1, 8, 2, 25), "minimum must be 0 to the maximum 8, got 9"),
        ((-1, 1, 8, 2, 25), "minimum must be 0 to the maximum 8, got -1"),
        ((1, 1, 8, -1, 25), "pad_max must be at least 0, got -1"),
        ((1, 1, 8, 2, 51), "pad_percent must be 0 to 50, got 51"),
    ],
)
def test_gaudi_pad_names_what_is_out_of_range(config: tuple[int, int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        gaudi_pad(*config)


# Rules in text.


@pytest.mark.parametrize(
    ("rule", "maximum", "ladder"),
    [
        ("multiple:128", 500, (128, 256, 384, 500)),
        ("multiple:128", 512, (128, 256, 384, 512)),
        ("multiple:1000", 500, (500,)),
        ("multiple:1", 3, (1, 2, 3)),
        ("pow2:16", 100, (16, 32, 64, 100)),
        ("pow2:16", 128, (16, 32, 64, 128)),
        ("pow2:3", 13, (3, 6, 12, 13)),
        ("pow2:100", 100, (100,)),
        ("pow2:1", 1, (1,)),
        ("list:64,100", 100, (64, 100)),
        ("list:64, 90", 100, (64, 90)),  # as given: incomplete
        ("list:7", 100, (7,)),
    ],
)
def test_width_rules(rule: str, maximum: int, ladder: tuple[int, ...]) -> None:
    assert width_ladder(rule, maximum) == ladder


@given(st.integers(1, 2000), st.integers(1, 3000))
def test_widths_by_rule_end_at_the_longest_context(number: int, max_model_len: int) -> None:
    assert width_ladder(f"multiple:{number}", max_model_len) == multiple_widths(max_model_len, number)
    doubled = width_ladder(f"pow2:{number}", max_model_len)
    assert doubled[-1] == max_model_len
    assert all(width == number * 2**n < max_model_len for n, width in enumerate(doubled[:-1]))
    assert number * 2 ** len(doubled[:-1]) >= max_model_len


def test_an_explicit_row_ladder_is_taken_as_given() -> None:
    assert row_ladder("list:1,2,4,6", 8) == (1, 2, 4, 6)
    assert row_ladder("list:3,8", 8) == (3, 8)


KNOWN = (
    "known: pow2, vllm, vllm-interactive, sglang, trtllm, nano-vllm, mini-sglang, lmdeploy, tgi, gaudi-exp, gaudi-pad, "
    "or list:A,B,C"
)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("vlm", "unknown row rule 'vlm': did you mean vllm?"),
        ("vLLM", "unknown row rule 'vLLM': did you mean vllm?"),
        ("gaudi_exp", "unknown row rule 'gaudi_exp': did you mean gaudi-exp?"),
        ("multiple:8", f"unknown row rule 'multiple:8': {KNOWN}"),
        ("", f"unknown row rule '': {KNOWN}"),
        ("list:", "row rule 'list:': '' is not a whole number"),
        ("list:1,,2", "row rule 'list:1,,2': '' is not a whole number"),
        ("list:1,two", "row rule 'list:1,two': 'two' is not a whole number"),
        ("list:-1,2", "row rule 'list:-1,2': '-1' is not a whole number"),
        ("list:1_0", "row rule 'list:1_0': '1_0' is not a whole number"),
        ("list:٣", "row rule 'list:٣': '٣' is not a whole number"),
        ("list:0,2", "row rule 'list:0,2': a bucket of the list must be an integer of at least 1, got 0"),
        ("list:1,4,2", "row rule 'list:1,4,2': the list must be strictly ascending: 2 comes after 4"),
        ("list:4,4", "row rule 'list:4,4': the list must be strictly ascending: 4 comes after 4"),
        ("list:4,9", "row rule 'list:4,9': the list goes up to 9, beyond max_batch_size 8"),
    ],
)
def test_a_wrong_row_rule_is_named(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        row_ladder(rule, 8)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("linear:8", "unknown width rule 'linear:8': give"),
        ("128", "unknown width rule '128': give"),
        ("", "unknown width rule '': give"),
        ("multiple", "width rule 'multiple': '' is not a whole number; give"),
        ("multiple:0", "width rule 'multiple:0': its number must be an integer of at least 1, got 0; give"),
        ("multiple:8,16", "width rule 'multiple:8,16': '8,16' is not a whole number; give"),
        ("pow2:-4", "width rule 'pow2:-4': '-4' is not a whole number; give"),
        ("pow2:0", "width rule 'pow2:0': its number must be an integer of at least 1, got 0; give"),
        ("list:", "width rule 'list:': '' is not a whole number; give"),
        ("list:8,4", "width rule 'list:8,4': the list must be strictly ascending: 4 comes after 8; give"),
        ("list:8,200", "width rule 'list:8,200': the list goes up to 200, beyond max_model_len 100; give"),
    ],
)
def test_a_wrong_width_rule_is_named_with_the_three_forms(rule: str, message: str) -> None:
    assert WIDTH_RULES == "multiple:N, pow2:MIN or list:A,B,C"
    with pytest.raises(ValueError, match=f"^{re.escape(message)} {re.escape(WIDTH_RULES)}$"):
        width_ladder(rule, 100)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_maximum_is_a_positive_integer(limit: int) -> None:
    message = re.escape(f"must be an integer of at least 1, got {limit!r}")
    for rule in (*NAMES, "list:1"):
        with pytest.raises(ValueError, match=f"^max_batch_size {message}$"):
            row_ladder(rule, limit)
    with pytest.raises(ValueError, match=f"^max_batch_size {message}$"):
        ROW_LADDERS["tgi"].rows(limit)
    for rule in ("multiple:8", "pow2:8", "list:1"):
        with pytest.raises(ValueError, match=f"^max_model_len {message}$"):
            width_ladder(rule, limit)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("vllm", ("vllm",)),
        ("pow2,vllm,list:1,2,4,sglang", ("pow2", "vllm", "list:1,2,4", "sglang")),
        ("list:1,2, list:1,4 ,tgi", ("list:1,2", "list:1,4", "tgi")),
        ("multiple:128,pow2:16,list:8, 9", ("multiple:128", "pow2:16", "list:8,9")),
    ],
)
def test_numbers_belong_to_the_list_before_them(text: str, rules: tuple[str, ...]) -> None:
    assert split_rules(text) == rules


lists = st.lists(st.integers(1, 99), min_size=1, max_size=4).map(lambda numbers: "list:" + ",".join(map(str, numbers)))


@given(st.lists(st.one_of(names, lists), min_size=1, max_size=8))
def test_splitting_undoes_joining(rules: list[str]) -> None:
    assert split_rules(",".join(rules)) == tuple(rules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' has an empty part: give rules between single commas"),
        ("pow2,,vllm", "'pow2,,vllm' has an empty part: give rules between single commas"),
        ("pow2,", "'pow2,' has an empty part: give rules between single commas"),
        ("4,pow2", "the number 4 in '4,pow2' belongs to no list: write list:4"),
        ("list:1,pow2,8", "the number 8 in 'list:1,pow2,8' belongs to no list: write list:8"),
        ("multiple:64,128", "the number 128 in 'multiple:64,128' belongs to no list: write list:128"),
    ],
)
def test_a_wrong_list_of_rules_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        split_rules(text)


# Both axes: as the system has it, and completed.


def test_a_capture_list_is_the_product_under_the_limits_of_the_server() -> None:
    captured = capture_list("mini-sglang", "list:64,128", 12, 200)
    assert captured == CaptureList(
        [Shape(r, w) for r in (1, 2, 4, 8) for w in (64, 128)], max_batch_size=12, max_model_len=200
    )
    assert captured.find(5, 65) == Shape(8, 128)
    assert captured.find(9, 64) is None
    assert captured.find(1, 129) is None


def test_completing_adds_each_maximum_as_a_whole_row_and_column() -> None:
    policy = completed("mini-sglang", "list:64,128", 12, 200)
    assert (policy.rows, policy.widths) == ((1, 2, 4, 8, 12), (64, 128, 200))
    assert (policy.max_batch_size, policy.max_model_len, policy.count) == (12, 200, 15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 5, 7, 9, 100, 250, 257, 300, 1000, 4096])
def test_every_ladder_completes_to_a_policy_of_any_batch_size(name: str, max_batch_size: int) -> None:
    ladder = row_ladder(name, max_batch_size)
    rows = completed(name, "multiple:128", max_batch_size, 300).rows
    assert rows == (ladder if ladder[-1] == max_batch_size else (*ladder, max_batch_size))
    assert capture_list(name, "multiple:128", max_batch_size, 300).count == 3 * len(ladder)


rules_of_widths = st.sampled_from(["multiple:7", "pow2:4", "list:5,20", "list:5,40"])


@given(names, rules_of_widths, st.integers(1, 40), st.data())
def test_what_the_system_has_a_graph_for_runs_as_the_same_shape_when_completed(
    name: str, widths: str, max_batch_size: int, data: st.DataObject
) -> None:
    captured, policy = capture_list(name, widths, max_batch_size, 40), completed(name, widths, max_batch_size, 40)
    rows, width = data.draw(st.integers(1, max_batch_size)), data.draw(st.integers(1, 40))
    found, presented = captured.find(rows, width), policy.shape_for(rows, width)
    assert found in (None, presented)
    # A step is off the list exactly where its shape is one that completing added.
    assert (found is None) == (presented not in captured.shapes)


@given(names, st.sampled_from(["multiple:7", "pow2:4", "list:5,40"]), st.integers(1, 40))
def test_complete_rows_need_no_completing(name: str, widths: str, max_batch_size: int) -> None:
    captured, policy = capture_list(name, widths, max_batch_size, 40), completed(name, widths, max_batch_size, 40)
    complete = row_ladder(name, max_batch_size)[-1] == max_batch_size
    assert (policy.shapes == captured.shapes) == complete
    assert (policy.shapes == captured.complete(max_batch_size, 40).shapes) == complete
