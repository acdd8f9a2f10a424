"""Points that are really run: times beside the counts that were priced, repeats, and where they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import DRAWN, TINY, invoke, lasting, refused, rows_of, spec, sweep, swept, vidur

from nanoserve_cli.columns import COUNT_COLUMNS
from nanoserve_cli.sweep import Sweep

MEASURED = ("step_ms_open", "step_ms_bucketed", "step_ratio", "tokens_per_s_open", "tokens_per_s_bucketed")


class TestMeasured:
    def test_step_times_are_filled_and_counts_are_those_that_were_priced(self) -> None:
        flags = (*TINY, "--width-multiple", "8,32", "--no-measure-compiles")
        priced, ran = sweep(*flags), sweep(*flags, "--measure")
        for one, other in zip(priced, ran, strict=True):
            assert {name: other[name] for name in COUNT_COLUMNS} == {name: one[name] for name in COUNT_COLUMNS}
            assert [one[name] for name in MEASURED] == [None] * len(MEASURED)
            assert all(other[name] > 0 for name in (*MEASURED, "capture_s_measured", "capture_mib_measured"))
            assert other["step_ratio_low"] <= other["step_ratio"] <= other["step_ratio_high"]
            assert (one["runner"], other["runner"], other["model"], other["dtype"]) == (
                None,
                "eager",
                "tiny",
                "float32",
            )
            assert (one["repeats"], other["repeats"]) == (None, 1)
            assert other["device"].endswith("cores)")
            assert other["compiles_bucketed"] is None, "what is not asked for is not measured"

    def test_a_compiled_run_tells_its_own_compiles(self) -> None:
        (row,) = sweep(*TINY, "--width-multiple", 8, "--measure", "--runner", "compiled", "--no-measure-compiles")
        assert (row["compiles_bucketed"], row["recompiles_bucketed"], row["runner"]) == (2, 0, "compiled")

    def test_a_run_with_graphs_tells_its_captures(self) -> None:
        (row,) = sweep(*TINY, "--width-multiple", 8, "--measure", "--runner", "graphs", "--no-measure-compiles")
        assert (row["captures_open"], row["captures_bucketed"], row["captures_after_warm_up"]) == (6, 2, 0)
        assert row["replay_share"] == 1.0

    def test_repeats_give_medians_with_the_spread_over_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from nanoserve_cli import sweep_engine

        own, ratios = sweep_engine.time_columns, iter((1.0, 5.0, 2.0, 9.0, 3.0))

        def spy(*arguments: Any) -> dict[str, Any]:
            return own(*arguments) | {"step_ratio": next(ratios), "step_ms_open": None}

        monkeypatch.setattr(sweep_engine, "time_columns", spy)
        (row,) = sweep(*TINY, "--measure", "--repeats", 5, "--no-measure-compiles")
        assert (row["step_ratio_low"], row["step_ratio"], row["step_ratio_high"]) == (2.0, 3.0, 5.0)
        assert (row["step_ms_open"], row["repeats"]) == (None, 5)

    def test_a_count_that_differs_between_repeats_fails_its_point_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from nanoserve_cli import sweep_engine

        own, seen = sweep_engine.count_columns, []

        def spy(run: Any) -> dict[str, Any]:
            seen.append(run)
            return own(run) | ({"preemptions": 7} if len(seen) == 2 else {})

        monkeypatch.setattr(sweep_engine, "count_columns", spy)
        flags = (*TINY, "--width-multiple", "8,32", "--measure", "--repeats", 2, "--no-measure-compiles")
        result = invoke(*flags, "--out", tmp_path / "o.csv")
        assert result.exit_code == 3
        assert result.stderr.splitlines() == [
            "warning: lockstep-2x4+6 2x32 pow2 multiple:8: RunUnsound: preemptions is 0 in the first repeat and 7 in "
            "repeat 2",
            "2/2 lockstep-2x4+6 2x32 pow2 multiple:32",
            f"1 rows in {tmp_path / 'o.csv'}",
            "warning: 1 of 2 points failed",
        ]
        assert [row["width_ladder"] for row in rows_of(tmp_path / "o.csv")] == ["multiple:32"]
        assert "multiple:32" in result.stdout
        assert "multiple:8 " not in result.stdout

    def test_a_run_that_is_not_what_was_priced_fails_its_point(self) -> None:
        from nanoserve_cli.compare import RunUnsound
        from nanoserve_cli.sweep_engine import Task, measure_point

        work = swept(spec(measure=True))
        assert work.engine is not None
        (one,) = work.priced
        other = replace(one.cost, padded_cells=one.cost.padded_cells + 1)
        with pytest.raises(
            RunUnsound, match=r"^repeat 1 ran 6 steps and 384 padded cells, the simulation says 6 and 385$"
        ):
            measure_point(Task(one.point, work.engine.measurement, other, None))

    def test_a_trace_that_changed_after_it_was_priced_fails_its_point(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same counts from another file are no evidence either: the row would carry the old file's sum."""
        path = vidur(tmp_path / "t.csv", [(0, 5, 3)])
        own = Sweep.run

        def changed(*arguments: Any) -> Any:
            path.write_text(path.read_text() + "\n")
            return own(*arguments)

        monkeypatch.setattr(Sweep, "run", changed)
        result = invoke("--from", path, "--max-model-len", 16, "--measure", "--no-measure-compiles", "-q")
        assert result.exit_code == 3
        message = f"RunUnsound: {path} is another file than was priced: it changed, or the worker's differs"
        assert message in result.stderr

    def test_a_missing_compiler_is_said_before_anything_runs(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        flags = ("--measure", "--runner", "compiled", "--compile-backend", "inductor", "--out", tmp_path / "o.csv")
        assert "inductor needs a C++ compiler on a CPU and found no no-such-compiler" in refused(*TINY, *flags)
        assert not (tmp_path / "o.csv").exists()


MANY = (*DRAWN, "--limit", 5, "--max-batch", 4, "--max-model-len", 64, "--width-multiple", "8,16,32,64")
MORE = ("--rows-ladder", "pow2,list:2", "--measure", "--no-measure-compiles")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Twelve points measured in this process."""
    path = tmp_path_factory.mktemp("local") / "o.csv"
    assert invoke(*MANY, *MORE, "--out", path, "-q").exit_code == 0
    rows = lasting(path)
    assert len({row["config_hash"] for row in rows}) == len(rows) == 12
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("where", [("--jobs", "2"), ("--executor", "ray")], ids=" ".join)
def test_elsewhere_rows_are_identical_and_in_order(
    where: tuple[str, str], local: list[dict[str, str]], tmp_path: Path
) -> None:
    """But for what two runs of one sweep differ in anyway."""
    if "ray" in where:
        pytest.importorskip("ray", reason="no ray here: pip install 'nanoserve[ray]'")
    result = invoke(*MANY, *MORE, *where, "--out", tmp_path / "o.csv")
    assert result.exit_code == 0, result.stderr
    assert lasting(tmp_path / "o.csv") == local
    assert all(float(row["step_ms_open"]) > 0 for row in rows_of(tmp_path / "o.csv"))


class TestTheClusterIsAskedFor:
    @pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:0", 1)])
    def test_a_gpu_where_points_are_measured_on_one(
        self, device: str, gpus: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from nanoserve_cli.commands.sweep import _executor
        from nanoserve_cli.executors import RayCluster

        work = swept(spec(measure=True))
        assert work.engine is not None
        work.engine.measurement = replace(work.engine.measurement, device=device)
        assert _executor("ray", None, work) == RayCluster(num_cpus=1, num_gpus=gpus)

    def test_auto_is_what_is_found_here(self) -> None:
        """A worker that sees a GPU it did not ask for leaves it alone: it is told the device."""
        from nanoserve.build import default_device

        work = swept(spec(measure=True))
        assert work.engine is not None
        assert work.engine.measurement.device == default_device()
