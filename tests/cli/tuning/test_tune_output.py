"""What the command prints and writes: the table at 80 columns, JSON, a results file, a policy, every engine's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tune_cases import drawn, steady, tune_cli, write, write_trace
from typer.testing import CliRunner

from nanoserve.pricing import price_run
from nanoserve.simulate import simulate
from nanoserve_cli.app import app
from nanoserve_cli.csv_file import read_results
from nanoserve_cli.emit import EMITTERS
from nanoserve_cli.policy_file import load_policy
from nanoserve_cli.traffic import TrafficOptions, load_traffic
from nanoserve_cli.tuning.gather import DEFAULT_STEP

SMALL = ("--max-batch", 8, "--max-model-len", 256, "--width-granularity", 32, "--budget-graphs", 4)

TABLE = """\
t.csv, load 1: cells on the part held out

                                      total   fit fitted:
 list               graphs used waste waste waste  points ratio match
 ────────────────────────────────────────────────────────────────────
 defaults
   default               8    4 25.2% 28.1% 25.3%   -24.4  0.75     3
   default pruned        8    4 25.2% 28.1% 25.3%   -24.4  0.75     3
   default of 4          4    4 62.6% 64.1% 62.6%   -60.7  0.38     2
 one width, 256
   pow2, vllm,           4    4 62.6% 64.1% 62.6%   -60.7  0.38     2
   sglang, trtllm,
   nano-vllm,
   mini-sglang,
   lmdeploy, tgi
   vllm-interactive      8    6 50.2% 52.1% 50.2%   -49.4  0.50     2
   gaudi-exp,            5    4 50.3% 52.3% 50.3%   -48.4  0.51     2
   gaudi-pad
 fitted
   fitted staircase      4    2  1.9%  5.7%  1.1%
   fitted product        4    1  2.4%  6.2%  1.3%

fitted with an even prior of 0.1 on all sizes; on the fit part the product costs
0.6% more than the staircase

waste: share of the cells that is padding, on the part held out; fit: the same
  on what is fitted
total waste: of the cells, rows shorter than the longest counted too
points, ratio: waste and cells of the fitted list of as many graphs, at most 64,
  against it
match: graphs with which a fitted list costs no more

recommended: the fitted staircase (4 graphs): 61.9% fewer cells than the default
  of 4 (pow2, 4 graphs), on the part held out
  2 rows: widths 256
  6 rows: widths 128, 256
  8 rows: widths 256
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "t.csv", steady(400, every_ms=50, prompt=116))


def ran(*arguments: object) -> Any:
    result = tune_cli(*arguments)
    assert result.exit_code == 0, result.output
    return result


class TestText:
    def test_the_whole_report_of_a_small_trace(self, trace: Path) -> None:
        result = ran("--from", trace, *SMALL)
        assert result.stdout == TABLE
        assert result.stderr == ""

    def test_no_line_of_it_is_wider_than_80(self, trace: Path) -> None:
        result = ran("--from", trace, *SMALL, "--loads", "0.5,1,2,3", "--step-time", "linear:5,1,0.001")
        assert max(map(len, result.stdout.splitlines())) <= 80
        for title in ("load 0.5: cells", "load 3: cells", "One list for all loads", "Simulated under their own step"):
            assert title in result.stdout

    def test_a_null_result_says_so_and_recommends_what_is_there(self, tmp_path: Path) -> None:
        """One row of 128 columns at all times: 1x128 serves that at either list, and no list can do better."""
        path = write_trace(tmp_path / "t.csv", steady(300, every_ms=400, prompt=116))
        result = ran("--from", path, "--max-batch", 2, "--max-model-len", 128, "--budget-graphs", 2)
        assert "recommended: the default (pow2, 2 graphs): no gain worth having: the fitted" in (
            " ".join(result.stdout.split())
        )
        assert "takes 0.0% fewer cells, on the part held out rows 1, 2" in " ".join(result.stdout.split())

    def test_minimax_tells_its_regrets(self, trace: Path) -> None:
        result = ran("--from", trace, *SMALL, "--loads", "0.5,1", "--robust", "minimax")
        assert "minimax of loads" in result.stdout
        assert "no staircase has less than" in result.stdout

    def test_cautions_are_warnings_even_when_quiet(self, tmp_path: Path) -> None:
        result = ran("--from", write_trace(tmp_path / "t.csv", drawn(60)), *SMALL, "-q")
        assert result.stderr.startswith(
            "warning: thin evidence: 60 requests; 200 or more would tell a list from chance\n"
        )

    def test_notes_are_on_stderr_and_not_when_quiet(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.csv", drawn(300))
        limits = (*SMALL[:3], 130, *SMALL[4:])
        noted = "t.csv: 45 requests over max_model_len 130 left out\n"
        assert noted in ran("--from", path, *limits).stderr
        assert noted not in ran("--from", path, *limits, "-q").stderr

    def test_a_target_is_the_fewest_graphs_that_meet_it(self, trace: Path) -> None:
        result = ran("--from", trace, *SMALL[:-2], "--target", "waste:3%", "--json")
        found = json.loads(result.stdout)
        (load,) = found["loads"]
        staircase = next(one for one in load["lists"] if one["list"] == "fitted staircase")
        assert staircase["fit"]["waste"] <= 0.03
        fewer = json.loads(
            ran("--from", trace, *SMALL[:-2], "--budget-graphs", found["budget_graphs"] - 1, "--json").stdout
        )
        staircase = next(one for one in fewer["loads"][0]["lists"] if one["list"] == "fitted staircase")
        assert staircase["fit"]["waste"] > 0.03

    def test_matching_a_ladder_takes_fewer_graphs_than_it_has(self, trace: Path) -> None:
        result = ran("--from", trace, *SMALL[:-2], "--objective", "cells", "--target", "match:vllm", "--json")
        assert json.loads(result.stdout)["budget_graphs"] < 8

    @pytest.mark.parametrize("granularity", [8, 16, 128])
    def test_granularity(self, granularity: int, trace: Path) -> None:
        arguments = ("--row-granularity", min(granularity, 8), "--width-granularity", granularity, "--json")
        result = ran("--from", trace, "--max-batch", 16, "--max-model-len", 256, "--budget-graphs", 6, *arguments)
        fitted = [one for one in json.loads(result.stdout)["loads"][0]["lists"] if one["fitted"]]
        assert fitted
        assert json.loads(result.stdout)["recommended"]["policy"]["max_batch_size"] == 16

    def test_drawn_requests(self) -> None:
        result = ran(
            *("--num-requests", 300, "--request-rate", 20, "--prompt-len", "uniform:20,90", "--output-len", 20),
            *("--seed", 3, *SMALL),
        )
        assert result.stdout.startswith("synthetic, load 1: cells on the part held out\n")


class TestJson:
    def test_it_has_every_score(self, trace: Path) -> None:
        found = json.loads(ran("--from", trace, *SMALL, "--loads", "1,2", "--json", "--emit", "nanoserve").stdout)
        assert [load["factor"] for load in found["loads"]] == [1, 2]
        for load in found["loads"]:
            names = [one["list"] for one in load["lists"]]
            assert names[:2] == ["default", "default pruned"]
            assert names[-2:] == ["fitted staircase", "fitted product"]
            for one in load["lists"]:
                for part in ("judged", "fit", "fitted_of_same_size"):
                    score = one[part]
                    assert score["waste"] == pytest.approx(1 - score["open"] / score["cost"])
                    assert score["total_waste"] == pytest.approx(1 - score["live_cells"] / score["padded_cells"])
                    assert score["used"] <= score["available"]
        assert [one["list"] for one in found["shared"]] == ["mean of loads, staircase", "mean of loads, product"]
        assert [len(one["scores"]) for one in found["shared"] + found["across"]] == [2] * 5
        assert found["size"] == {"requests": 400}
        assert found["emission"]["engine"] == "nanoserve"
        assert len(found["source_sha256"]) == 64
        assert (found["proof"], found["minimax"], found["settled"]) == (None, None, [])

    def test_scores_are_the_prices_of_the_run(self, trace: Path) -> None:
        """The whole way round: from the file through `tune` to a figure, and through the simulator to the same."""
        found = json.loads(ran("--from", trace, *SMALL, "--holdout", 0, "--json").stdout)
        traffic = load_traffic(TrafficOptions(source=str(trace)), 256)
        steps = simulate(traffic.workload, 8, step_time=DEFAULT_STEP).steps
        from nanoserve.buckets import DecodeBuckets

        default = found["loads"][0]["lists"][0]
        cost = price_run(steps, DecodeBuckets(8, 256))
        assert default["judged"]["cost"] == cost.padded_cells
        assert default["judged"]["open"] == cost.open_cells
        assert default["judged"]["live_cells"] == cost.live_cells
        assert default["judged"]["used"] == cost.shapes_used
        assert default["judged"] == default["fit"]
        assert found["loads"][0]["held_out"] is False


class TestFiles:
    def test_rows_are_a_results_file(self, trace: Path, tmp_path: Path) -> None:
        ran("--from", trace, *SMALL, "--out", tmp_path / "new" / "tune.csv")
        frame = read_results(tmp_path / "new" / "tune.csv")
        assert set(frame["objective"]) == {"cells"}
        assert set(frame["workload"]) == {"t.csv load 1, held out", "t.csv load 1, fitted part"}
        assert (frame["waste"] - (1 - frame["open_cells"] / frame["padded_cells"])).abs().max() < 1e-12
        fitted = frame[frame["width_ladder"].str.startswith("best of")]
        sizes = sorted({int(text.split()[-1]) for text in fitted["width_ladder"]})
        assert sizes[0] == 1
        assert len(sizes) > 4, "the curve, every size once"
        key = ["workload", "policy", "rows_ladder", "width_ladder"]
        assert not frame.duplicated(key).any()
        assert set(frame["trace_sha256"]) == {frame["trace_sha256"][0]}
        assert frame["steps"].notna().all()

    def test_rows_of_samples_have_no_cells_and_no_counts(self, tmp_path: Path) -> None:
        path = write(tmp_path / "running.csv", ["t,running\n", *(f"{t},{t % 5 + 1}\n" for t in range(300))])
        ran("--from", path, "--max-batch", 8, "--out", tmp_path / "tune.csv")
        frame = read_results(tmp_path / "tune.csv")
        assert set(frame["objective"]) == {"rows"}
        assert frame[["steps", "padded_cells", "live_cells", "total_waste", "clock", "step_time"]].isna().all(axis=None)
        assert frame["waste"].notna().all()

    def test_the_policy_runs_in_a_bench_with_the_cells_that_were_priced(self, trace: Path, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yaml"
        found = json.loads(ran("--from", trace, *SMALL, "--holdout", 0, "--policy-out", policy, "--json").stdout)
        chosen = load_policy(policy)
        assert chosen.count <= 4
        bench = CliRunner().invoke(
            app, ["bench", "--from", str(trace), "--policy", str(policy), "--host-only", "--json", "-q"]
        )
        assert bench.exit_code == 0, bench.output
        (run,) = json.loads(bench.stdout)["runs"]
        best = next(one for one in found["loads"][0]["lists"] if one["list"] == found["recommended"]["list"])
        assert run["padded_cells"] == best["judged"]["cost"]
        assert run["waste"] == pytest.approx(best["judged"]["waste"])
        assert run["shapes_used"] == best["judged"]["used"]

    def test_the_emitted_policy_is_the_one_that_is_written(self, trace: Path, tmp_path: Path) -> None:
        result = ran("--from", trace, *SMALL, "--policy-out", tmp_path / "p.yaml", "--emit", "nanoserve")
        title = "# nanoserve (policy file schema 1): a file for nanoserve bench --policy\n"
        emitted = write(tmp_path / "emitted.yaml", [result.stdout.split(title)[1]])
        assert load_policy(emitted) == load_policy(tmp_path / "p.yaml")


@pytest.mark.parametrize("engine", EMITTERS)
def test_every_engine_is_given_its_list(engine: str, trace: Path) -> None:
    result = ran("--from", trace, "--max-batch", 8, "--max-model-len", 256, "--budget-graphs", 4, "--emit", engine)
    assert f"\n# {engine} (" in result.stdout
    widths = engine in ("nanoserve", "gaudi", "neuron")
    assert f"t.csv, load 1: {'cells' if widths else 'rows'} on the part held out" in result.stdout
    assert "reads each row at its own length" not in result.stderr, "a list of rows was fitted for it"


def test_an_engine_is_told_its_own_settings(trace: Path) -> None:
    options = ("--max-batch", 8, "--max-model-len", 256, "--emit", "vllm", "--objective", "rows")
    full = ran("--from", trace, *options, "--cudagraph-mode", "FULL_DECODE_ONLY", "--spec-tokens", 1)
    sizes = full.stdout.split("--cudagraph-capture-sizes ")[1].split("\n")[0].split(" -cc")[0].split()
    assert sizes[-1] == "16", "8 rows of 2 tokens"
    assert all(int(size) % 2 == 0 for size in sizes)
    assert "-cc.cudagraph_mode=FULL_DECODE_ONLY" in full.stdout


def test_without_torch_everything_but_the_proof_is_there(trace: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None; sys.argv[0] = 'nanoserve'\n"
        "from nanoserve_cli.app import main\nmain()\n"
    )
    arguments = ["tune", "--from", str(trace), *map(str, SMALL)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--verify"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'nanoserve[engine]'" in done.stderr


def test_the_proof_is_printed(trace: Path) -> None:
    pytest.importorskip("torch")
    result = ran("--from", trace, *SMALL, "--verify", "--verify-steps", 8)
    text = " ".join(result.stdout.split())
    assert "On this engine, eager, load 1: 8 steps in 4 stretches, of " in text
    assert "tokens equal; median and quartiles are of the ratio of each step's time" in text
    found = json.loads(ran("--from", trace, *SMALL, "--verify", "--verify-steps", 8, "--json").stdout)["proof"]
    assert found["steps"] == 8
    assert found["cells"][0] < found["cells"][1]
