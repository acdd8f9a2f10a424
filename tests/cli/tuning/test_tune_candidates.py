"""The lists of others: our defaults at every budget, named ladders as their systems have them, a server's own."""

from __future__ import annotations

import pytest
from tune_cases import run_of

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve.ladders import ROW_LADDERS
from nanoserve_cli.tuning.candidates import (
    Candidate,
    default,
    default_within,
    engine_default,
    named,
    pruned_default,
    server_list,
)
from nanoserve_cli.tuning.evidence import Part


def rows_of(candidate: Candidate) -> list[int]:
    return sorted({shape.rows for shape in candidate.policy.shapes})


class TestDefaults:
    def test_the_default_is_powers_of_two_by_multiples_of_128(self) -> None:
        found = default("cells", 256, 8192)
        assert found.policy == DecodeBuckets(256, 8192)
        assert found.policy.count == 576
        assert default("rows", 256, 8192).policy == DecodeBuckets(256, 8192, widths=[8192])

    @pytest.mark.parametrize(
        ("budget", "multiple", "count"),
        [(10_000, 128, 576), (576, 128, 576), (575, 256, 288), (144, 512, 144), (36, 2048, 36), (9, 8192, 9)],
    )
    def test_within_a_budget_the_multiple_doubles(self, budget: int, multiple: int, count: int) -> None:
        found = default_within("cells", 256, 8192, budget)
        assert (found.width_ladder, found.policy.count) == (f"multiple:{multiple}", count)
        assert found.name == ("default" if count == 576 else f"default of {count}")

    def test_the_coarsest_is_given_where_none_is_small_enough(self) -> None:
        assert default_within("cells", 256, 8192, 3).policy.count == 9
        assert default_within("rows", 256, 8192, 3).name == "default"

    @pytest.mark.parametrize("length", [1, 100, 128, 129, 8000])
    def test_any_length_has_its_maximum_as_the_last_width(self, length: int) -> None:
        for budget in (1, 36, 10_000):
            policy = default_within("cells", 6, length, budget).policy
            assert policy.shapes[-1] == Shape(6, length)

    def test_pruned_it_has_what_was_used_and_its_maxima(self) -> None:
        fit = Part.of(run_of((3, 100, 40), (5, 250, 3)))
        found = pruned_default("cells", 16, 512, fit)
        used = [Shape(4, 128), Shape(4, 256), Shape(8, 256)]
        assert found.policy.shapes == tuple(sorted([*used, Shape(4, 512), Shape(8, 512), Shape(16, 512)]))
        rows = pruned_default("rows", 16, 512, fit)
        assert rows.policy.shapes == (Shape(4, 512), Shape(8, 512), Shape(16, 512))


class TestNamed:
    def test_every_ladder_is_there_as_its_system_has_it(self) -> None:
        found = {name: one for one in named(256, 8192, 2048) for name in one.name.split(", ")}
        assert set(found) == {*ROW_LADDERS, "tgi*"}
        assert found["pow2"] is found["lmdeploy"], "the same list under both names"
        assert rows_of(found["tgi"]) == [1, 2, 4, 8, 16, 32]
        assert not found["tgi"].completed
        assert isinstance(found["tgi"].policy, CaptureList)
        assert rows_of(found["tgi*"])[-1] == 256
        assert found["tgi*"].completed
        assert found["vllm"].policy.count == 35 * 4
        assert found["vllm"].group == "multiples of 2048"

    def test_one_width_is_called_so(self) -> None:
        assert {one.group for one in named(16, 512, 512)} == {"one width, 512"}

    def test_no_list_is_there_twice(self) -> None:
        for limit in (1, 2, 7, 16, 100, 513):
            shapes = [one.policy.shapes for one in named(limit, 256, 256)]
            assert len(set(shapes)) == len(shapes)


class TestServers:
    def test_its_list_is_shown_as_it_is_and_completed(self) -> None:
        own, whole = server_list((1, 4, 64), 100, 512)
        assert (own.completed, rows_of(own)) == (False, [1, 4, 64])
        assert (whole.completed, rows_of(whole)) == (True, [1, 4, 64, 100])
        assert own.policy.max_batch_size == 100

    def test_sizes_above_the_batch_count_as_of_it(self) -> None:
        (own,) = server_list((1, 8, 256, 512), 200, 512)
        assert rows_of(own) == [1, 8, 200]
        assert own.completed

    def test_an_engines_default_is_its_ladder_completed(self) -> None:
        found = engine_default("tgi", 64, 512)
        assert found is not None
        assert rows_of(found) == [1, 2, 4, 8, 16, 32, 64]
        assert engine_default("gaudi", 64, 512) is None


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (default_within("cells", 256, 8192, 36), "the default of 36 (pow2 x multiple:2048, 36 graphs)"),
        (default("rows", 256, 8192), "the default (pow2, 9 graphs)"),
        (server_list((1, 8), 8, 64)[0], "the server's list (2 graphs)"),
        (engine_default("vllm", 256, 64), "the default of vllm (vllm, 35 graphs)"),
        (Candidate("fitted list", "fitted", DecodeBuckets(1, 64), "fitted", ""), "the fitted list (1 graph)"),
    ],
)
def test_a_list_in_a_sentence(candidate: Candidate, text: str) -> None:
    assert candidate.described == text
