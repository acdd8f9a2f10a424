"""The points of a sweep: which there are, in which order, what they are called, and what tells two of them apart."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve_cli.grid import Lockstep, Measurement, Point, SweepSpec
from nanoserve_cli.traffic import TrafficOptions

POINT = Point(Lockstep(), 8, 8192, "pow2", "multiple:128", True, "25", 0, 1, None)
DRAWN = TrafficOptions(num_requests=5)


def settings(spec: SweepSpec) -> list[tuple[int, int, str, str]]:
    return [(p.max_model_len, p.max_batch_size, p.rows_ladder, p.width_ladder) for p in spec.points]


def spec(**lists: Any) -> SweepSpec:
    return SweepSpec(**({"traffic": (DRAWN,)} | lists))


class TestTheGrid:
    def test_alone_it_is_the_lockstep_run_of_the_bench_at_8192(self) -> None:
        assert SweepSpec().points == (POINT,)

    @given(
        max_model_len=st.lists(st.sampled_from((16, 48, 64)), min_size=1, unique=True),
        max_batch=st.lists(st.sampled_from((1, 2, 8)), min_size=1, unique=True),
        rows_ladder=st.lists(st.sampled_from(("pow2", "vllm", "gaudi-exp")), min_size=1, unique=True),
        width_ladder=st.lists(st.sampled_from(("multiple:8", "pow2:4")), min_size=1, unique=True),
    )
    def test_is_the_product_of_its_lists_the_last_one_fastest(self, **lists: list[Any]) -> None:
        """Complete ladders only: each is one point."""
        found = spec(**{name: tuple(values) for name, values in lists.items()})
        names = ("max_model_len", "max_batch", "rows_ladder", "width_ladder")
        assert settings(found) == list(product(*(lists[name] for name in names)))

    def test_traffic_is_the_slowest_of_all(self) -> None:
        found = SweepSpec(traffic=(Lockstep(), DRAWN), max_batch=(4, 8)).points
        assert [(point.traffic, point.max_batch_size) for point in found] == list(product((Lockstep(), DRAWN), (4, 8)))

    def test_link_pairs_the_lists_and_repeats_a_single_entry(self) -> None:
        found = spec(link=True, max_model_len=(64, 128), max_batch=(2, 8), width_ladder=("multiple:8",))
        assert settings(found) == [(64, 2, "pow2", "multiple:8"), (128, 8, "pow2", "multiple:8")]

    def test_linked_lists_may_name_a_value_again(self) -> None:
        found = spec(link=True, max_batch=(2, 8, 8), max_model_len=(64, 64, 128), rows_ladder=("vllm", "vllm", "pow2"))
        assert settings(found) == [
            (64, 2, "vllm", "multiple:128"),
            (64, 8, "vllm", "multiple:128"),
            (128, 8, "pow2", "multiple:128"),
        ]

    def test_link_of_different_lengths_gives_all_four(self) -> None:
        message = (
            "link pairs lists of one length; max_model_len, max_batch, rows_ladder and width_ladder have "
            "1, 2, 1, 3 entries"
        )
        linked = spec(link=True, max_batch=(2, 8), width_ladder=("multiple:8", "multiple:16", "multiple:32"))
        with pytest.raises(ValueError, match=f"^{message}$"):
            _ = linked.points

    @pytest.mark.parametrize("link", [False, True])
    def test_a_point_twice_is_named(self, link: bool) -> None:
        with pytest.raises(
            ValueError, match=r"^the grid has a point twice: synthetic num_requests=5 8x8192 pow2 multi"
        ):
            _ = spec(link=link, max_batch=(4, 8, 8)).points

    @pytest.mark.parametrize("name", ["traffic", "max_model_len", "max_batch", "rows_ladder", "width_ladder"])
    def test_an_empty_list_has_no_point(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"^one of the lists is empty: the grid has no point$"):
            _ = SweepSpec(**{name: ()}).points

    def test_every_setting_reaches_every_point(self) -> None:
        measurement = Measurement("small", "compiled", "count", "cpu", "float32")
        (point,) = spec(step_time="5", seed=3, repeats=2, measure=True, measurement=measurement).points
        assert (point.step_time, point.seed, point.repeats, point.measurement) == ("5", 3, 2, measurement)

    def test_what_is_not_run_has_no_measurement(self) -> None:
        (point,) = spec(measurement=Measurement("small")).points
        assert point.measurement is None

    def test_an_unknown_runner_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"^runner 'fast' is unknown; choose one of eager, compiled, graphs$"):
            Measurement(runner="fast")


class TestIncompleteLadders:
    @pytest.mark.parametrize("rows", ["tgi", "nano-vllm", "mini-sglang", "list:1,2,49"])
    def test_are_two_points_as_they_are_and_completed(self, rows: str) -> None:
        own, whole = spec(max_batch=(50,), max_model_len=(256,), rows_ladder=(rows,)).points
        assert (own.completed, whole.completed) == (False, True)
        assert own == replace(whole, completed=False)
        assert isinstance(own.policy(), CaptureList)
        assert isinstance(whole.policy(), DecodeBuckets)
        assert own.policy().find(50, 1) is None
        assert whole.policy().shape_for(50, 1) == Shape(50, 128)
        assert own.lacks_maxima

    def test_a_width_list_that_ends_below_is_two_points_too(self) -> None:
        own, whole = spec(max_model_len=(256,), width_ladder=("list:32,64",)).points
        assert [shape.width for shape in own.policy().shapes] == [32, 64] * 4
        assert [shape.width for shape in whole.policy().shapes] == [32, 64, 256] * 4

    @pytest.mark.parametrize(("rows", "widths"), [("tgi", "list:64,256"), ("list:1,8", "pow2:32")])
    def test_a_list_that_reaches_both_maxima_is_one_point(self, rows: str, widths: str) -> None:
        (point,) = spec(max_model_len=(256,), rows_ladder=(rows,), width_ladder=(widths,)).points
        assert point.completed
        assert not point.lacks_maxima


class TestLockstep:
    def test_more_rows_than_the_batch(self) -> None:
        with pytest.raises(ValueError, match=r"^a lockstep run of 3 rows does not fit max_batch 2: ask for fewer rows"):
            _ = SweepSpec(max_batch=(8, 2)).points

    def test_it_needs_a_slot_a_token_of_its_prompt_and_a_step(self) -> None:
        """16 + 48 = 64 fits 64 to the slot."""
        (point,) = SweepSpec(traffic=(Lockstep(steps=48),), max_model_len=(64,)).points
        assert point.policy().max_model_len == 64
        with pytest.raises(
            ValueError, match=r"^a prompt of 16 and 49 steps need 65 slots, max_model_len is 64: ask for"
        ):
            _ = SweepSpec(traffic=(Lockstep(steps=49),), max_model_len=(64,)).points


class TestNames:
    @pytest.mark.parametrize(
        ("point", "label"),
        [
            (POINT, "lockstep-512 8x8192 pow2 multiple:128"),
            (replace(POINT, completed=False), "lockstep-512 8x8192 pow2 multiple:128 as it is"),
            (replace(POINT, traffic=Lockstep(2, 9, 30)), "lockstep-2x9+30 8x8192 pow2 multiple:128"),
            (
                replace(POINT, traffic=TrafficOptions(num_requests=9, request_rate=0.5, prompt_len="7")),
                "synthetic num_requests=9 request_rate=0.5 prompt_len=7 8x8192 pow2 multiple:128",
            ),
            (
                replace(POINT, traffic=TrafficOptions("azure2023-conv", trace_dir="/t", limit=9, max_len="clip")),
                "azure2023-conv limit=9 max_len=clip 8x8192 pow2 multiple:128",
            ),
        ],
    )
    def test_a_point_is_its_traffic_and_its_settings(self, point: Point, label: str) -> None:
        assert point.label == label

    def test_two_traffics_of_one_sweep_are_never_called_the_same(self) -> None:
        """Else two rows of one file would be one point, and a comparison of files would lose one of them."""
        asked = [
            *(TrafficOptions(num_requests=n) for n in (5, 6)),
            TrafficOptions(num_requests=5, output_len="3"),
            *(Lockstep(rows, prompt, steps) for rows in (3, 4) for prompt in (16, 17) for steps in (8, 9)),
            *(TrafficOptions("a.csv", limit=limit, request_rate=rate) for limit in (None, 5) for rate in (None, 2.0)),
        ]
        assert len({replace(POINT, traffic=traffic).label for traffic in asked}) == len(asked)


class TestConfigHash:
    CHANGED: ClassVar[dict[str, Any]] = {
        "traffic": Lockstep(steps=8),
        "max_batch_size": 4,
        "max_model_len": 4096,
        "rows_ladder": "vllm",
        "width_ladder": "multiple:64",
        "completed": False,
        "step_time": "30",
        "seed": 1,
        "repeats": 2,
        "measurement": Measurement(),
    }

    def test_every_field_of_a_point_moves_it(self) -> None:
        assert set(self.CHANGED) == {field.name for field in fields(Point)}
        hashes = {replace(POINT, **{name: value}).config_hash() for name, value in self.CHANGED.items()}
        assert len(hashes | {POINT.config_hash()}) == len(self.CHANGED) + 1

    def test_so_does_every_field_of_the_traffic_but_where_it_is_found(self) -> None:
        changed = {
            "source": "b.csv",
            "format": "vidur",
            "strict": True,
            "trace_dir": "/elsewhere",
            "limit": 3,
            "max_len": "clip",
            "num_requests": 3,
            "request_rate": 2.0,
            "burstiness": 2.0,
            "prompt_len": "3",
            "output_len": "3",
            "seed": 3,
        }
        assert set(changed) == {field.name for field in fields(TrafficOptions)}
        traffic = TrafficOptions("a.csv")
        own = replace(POINT, traffic=traffic).config_hash()
        moved = {
            name
            for name, value in changed.items()
            if replace(POINT, traffic=replace(traffic, **{name: value})).config_hash() != own  # type: ignore[arg-type]
        }
        assert moved == set(changed) - {"trace_dir"}

    def test_what_else_can_move_a_figure_is_in_it(self) -> None:
        hashes = {POINT.config_hash(compiles=compiles) for compiles in (True, False)}
        assert len(hashes | {POINT.config_hash()}) == 3
