"""`nanoserve bench` of equal requests: the seed's numbers to the digit, and flags that do not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve_cli.app import app

COLUMNS = ("steps", "open_shapes", "shapes_used", "waste", "open_cells", "padded_cells")
SEED = [
    (8, 8, 1, "35.9%", 492, 768),
    (64, 64, 1, "54.5%", 9_312, 20_480),
    (128, 128, 2, "53.6%", 30_912, 66_560),
    (512, 512, 5, "38.5%", 418_560, 680_960),
]


def bench(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    result = bench(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def six_columns(runs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(f"{run[c]:.1%}" if c == "waste" else run[c] for c in COLUMNS) for run in runs]


def refused(*arguments: object) -> str:
    """The one line on stderr of a run that ends as bad usage with nothing on stdout."""
    result = bench(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), (result.exit_code, result.stderr)
    assert result.stderr.count("\n") == 1
    return result.stderr.rstrip("\n")


class TestTheSeedTable:
    def test_host_only_gives_the_six_columns_to_the_digit(self) -> None:
        assert six_columns(document("--rows", 3, "--max-batch", 8, "--host-only")["runs"]) == SEED

    def test_these_are_the_defaults(self) -> None:
        runs = document("--host-only")["runs"]
        assert six_columns(runs) == SEED
        assert [run["workload"] for run in runs] == ["lockstep-8", "lockstep-64", "lockstep-128", "lockstep-512"]

    def test_exact_shares_and_not_only_their_rounding(self) -> None:
        wastes = [run["waste"] for run in document("--host-only")["runs"]]
        exact = [1 - 492 / 768, 1 - 9312 / 20480, 1 - 30912 / 66560, 1 - 418560 / 680960]
        assert wastes == pytest.approx(exact, rel=1e-15)

    def test_available_shapes_stand_beside_used_ones(self) -> None:
        """Rows 1, 2, 4, 8 times the widths up to 24, 80, 144 and 528."""
        runs = document("--host-only")["runs"]
        assert [run["shapes_available"] for run in runs] == [4, 4, 8, 20]

    def test_equal_rows_have_no_ragged_padding_so_both_wastes_agree(self) -> None:
        for run in document("--host-only")["runs"]:
            assert run["total_waste"] == run["waste"]
            assert run["ragged_padding"] == 0
            assert run["live_cells"] + run["width_padding"] + run["row_padding"] == run["padded_cells"]

    def test_steps_per_shape_add_up_to_the_steps(self) -> None:
        """The last step of 512 is 528 wide, on the boundary of invariant 11."""
        last = document("--host-only", "--steps", 512)["runs"][0]
        expected = {"4x128": 112, "4x256": 128, "4x384": 128, "4x512": 128, "4x528": 16}
        assert last["steps_per_shape"] == expected

    def test_the_open_run_is_hopeless_and_says_why(self) -> None:
        """Eight shapes are just kept; nine are not."""
        runs = document("--host-only", "--steps", "8,9,64,512")["runs"]
        assert [run["falls_back_open"] for run in runs] == [
            None,
            "9 shapes, dynamo keeps 8",
            "64 shapes, dynamo keeps 8",
            "512 shapes, dynamo keeps 8",
        ]
        assert [run["falls_back_bucketed"] for run in runs] == [None] * 4

    def test_a_bucketed_run_of_too_many_shapes_falls_back_too(self) -> None:
        run = document("--host-only", "--steps", 64, "--width-multiple", 4)["runs"][0]
        assert (run["shapes_used"], run["falls_back_bucketed"]) == (16, "16 shapes, dynamo keeps 8")

    def test_planning_alone_measures_no_step_and_no_compile(self) -> None:
        found = document("--host-only", "--steps", 8)
        (run,) = found["runs"]
        unmeasured = (
            "step_ms_open",
            "step_ms_bucketed",
            "step_ratio",
            "tokens_per_s_open",
            "compiles_open",
            "partings",
        )
        assert [run[name] for name in unmeasured] == [None] * len(unmeasured)
        assert run["plan_us_open"] > 0
        assert run["plan_ms_bucketed"] > 0
        assert (found["device"], found["torch_version"], found["settings"]["runner"]) == (None, None, "host-only")


class TestThroughTheEngine:
    def test_plans_that_ran_give_the_same_counts_beside_measured_times(self) -> None:
        found = document("--rows", 3, "--max-batch", 8, "--steps", "8,64")
        runs = found["runs"]
        assert six_columns(runs) == SEED[:2]
        assert [(run["compiles_open"], run["abandoned_open"]) for run in runs] == [(8, 0), (8, 1)]
        assert [(run["compiles_bucketed"], run["recompiles_bucketed"]) for run in runs] == [(1, 0), (1, 0)]
        for run in runs:
            assert (
                min(run[f"{name}_{mode}"] for name in ("step_ms", "tokens_per_s") for mode in ("open", "bucketed")) > 0
            )
            assert run["step_ratio_low"] <= run["step_ratio"] <= run["step_ratio_high"]
            assert run["partings"] == {"requests": 0, "widest_gap": 0.0}
            assert (run["requests"], run["finished"], run["rejected"], run["failed"]) == (3, 3, 0, 0)
        assert found["settings"]["model"] == "tiny"
        assert found["torch_version"]

    @pytest.mark.slow
    def test_the_whole_table_with_its_compiles(self) -> None:
        runs = document("--rows", 3, "--max-batch", 8)["runs"]
        assert six_columns(runs) == SEED
        assert [run["compiles_open"] for run in runs] == [8, 8, 8, 8]
        assert [bool(run["abandoned_open"]) for run in runs] == [False, True, True, True]
        assert [run["compiles_bucketed"] for run in runs] == [1, 1, 2, 5]
        assert [run["recompiles_bucketed"] for run in runs] == [0, 0, 0, 0]

    def test_compiled_counts_what_the_run_itself_compiled(self) -> None:
        (run,) = document("--steps", 8, "--width-multiple", 8, "--runner", "compiled")["runs"]
        assert (run["compiles_open"], run["compiles_bucketed"], run["recompiles_bucketed"]) == (8, 1, 0)

    def test_check_inert_counts_the_rows_it_compared(self) -> None:
        """Three rows in each of 4 decode steps of both modes, as is printed; none in steps that only prefill."""
        (run,) = document("--steps", 4, "--check-inert")["runs"]
        assert run["inert_rows_checked"] == 24


class TestKnobs:
    def test_width_multiple_moves_the_widths(self) -> None:
        """17..24 in multiples of 8 is one shape of 24."""
        (run,) = document("--host-only", "--steps", 8, "--width-multiple", 8)["runs"]
        assert run["steps_per_shape"] == {"4x24": 8}
        assert (run["padded_cells"], run["shapes_available"]) == (768, 12)

    def test_prompt_moves_the_first_width(self) -> None:
        (run,) = document("--host-only", "--steps", 4, "--prompt", 100)["runs"]
        assert run["open_cells"] == 3 * (101 + 102 + 103 + 104)
        assert run["steps_per_shape"] == {"4x104": 4}

    def test_max_batch_moves_the_row_buckets(self) -> None:
        (run,) = document("--host-only", "--steps", 8, "--max-batch", 3)["runs"]
        assert (run["steps_per_shape"], run["row_padding"]) == ({"3x24": 8}, 0)

    def test_max_model_len_widens_the_shape(self) -> None:
        (run,) = document("--host-only", "--steps", 8, "--max-model-len", 200)["runs"]
        assert run["steps_per_shape"] == {"4x128": 8}

    def test_a_policy_file_of_two_ladders(self, tmp_path: Path) -> None:
        path = tmp_path / "product.yaml"
        path.write_text("schema_version: 1\nmax_batch_size: 3\nmax_model_len: 32\nrows: [3]\nwidths: [20, 32]\n")
        (run,) = document("--host-only", "--steps", 8, "--policy", path)["runs"]
        assert run["steps_per_shape"] == {"3x20": 4, "3x32": 4}
        assert run["padded_cells"] == 3 * 4 * 20 + 3 * 4 * 32

    def test_a_policy_file_of_a_staircase(self, tmp_path: Path) -> None:
        path = tmp_path / "stairs.yaml"
        ladders = "ladders:\n  2: [64]\n  4: [18, 22, 64]\n"
        path.write_text(f"schema_version: 1\nmax_batch_size: 4\nmax_model_len: 64\n{ladders}")
        (run,) = document("--host-only", "--steps", 8, "--policy", path)["runs"]
        assert run["steps_per_shape"] == {"4x18": 2, "4x22": 4, "4x64": 2}
        assert run["shapes_available"] == 4
        assert run["policy"] == "2 row buckets with ladders of their own = 4 shapes (2: 64, 4: 18,22,64)"

    def test_a_policy_file_beside_equal_limits_is_no_contradiction(self, tmp_path: Path) -> None:
        path = tmp_path / "product.yaml"
        path.write_text("schema_version: 1\nmax_batch_size: 3\nmax_model_len: 32\nrows: [3]\nwidths: [32]\n")
        limits = ("--max-batch", 3, "--max-model-len", 32)
        assert document("--host-only", "--steps", 8, "--policy", path, *limits)["runs"][0]["steps"] == 8


class TestFlagsThatDoNotGoTogether:
    @pytest.mark.parametrize("flag", ["--rows", "--steps", "--prompt"])
    def test_a_lockstep_flag_beside_traffic(self, flag: str) -> None:
        assert refused("--num-requests", 2, flag, 3) == f"error: {flag} is a flag of a lockstep run, not of traffic"

    @pytest.mark.parametrize(("flag", "value"), [("--limit", "3"), ("--request-rate", "3"), ("--format", "azure")])
    def test_a_traffic_flag_without_traffic(self, flag: str, value: str) -> None:
        assert refused(flag, value).startswith(f"error: {flag} is a flag of traffic: add --from")

    def test_two_sources(self) -> None:
        message = refused("--from", "x.csv", "--num-requests", 3)
        assert "--from" in message
        assert "--num-requests" in message

    @pytest.mark.parametrize("flags", [("--check-inert",), ("--clock", "real", "--num-requests", "2")])
    def test_host_only_runs_nothing_to_check_or_time(self, flags: tuple[str, ...]) -> None:
        message = refused("--host-only", *flags)
        assert message.startswith(f"error: {' '.join(flags[:2])} needs a model that runs")
        assert "--host-only" in message

    def test_a_real_clock_needs_arrivals(self) -> None:
        message = refused("--clock", "real")
        assert message.startswith("error: --clock real needs ")
        assert "--from" in message
        assert "--num-requests" in message

    def test_an_environment_that_names_traces_is_no_flag(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NANOSERVE_TRACES", "/somewhere")
        assert document("--host-only", "--steps", 8)["runs"][0]["padded_cells"] == 768

    @pytest.mark.parametrize("steps", ["8,x", "0", "-1", "8,8", "", "8,,9", "1.5", "1e3", "\u00b2"], ids=repr)
    def test_steps_is_a_list_of_positive_integers(self, steps: str) -> None:
        assert "--steps" in refused("--host-only", f"--steps={steps}")

    def test_steps_may_have_blanks(self) -> None:
        assert [r["steps"] for r in document("--host-only", "--steps", "8, 16")["runs"]] == [8, 16]

    def test_more_rows_than_the_cache_has_names_both_numbers(self) -> None:
        message = refused("--host-only", "--rows", 9, "--max-batch", 8)
        assert "--rows 9" in message
        assert "8" in message

    def test_more_steps_than_the_model_length_names_both_numbers(self) -> None:
        """16 + 8 tokens of context need 24 slots."""
        message = refused("--host-only", "--steps", 8, "--max-model-len", 20)
        assert "24" in message
        assert "20" in message

    def test_a_prompt_longer_than_the_model_length(self) -> None:
        assert "10" in refused("--host-only", "--steps", 8, "--max-model-len", 10)

    @pytest.mark.parametrize(
        "flags",
        [("--strict",), ("--max-len", "clip"), ("--prompt-len", "5"), ("--output-len", "5"), ("--burstiness", "2")],
    )
    def test_a_traffic_flag_is_never_ignored(self, flags: tuple[str, ...]) -> None:
        assert flags[0] in refused("--host-only", "--steps", 8, *flags)

    def test_speedup_is_of_the_real_clock(self) -> None:
        assert "--speedup" in refused("--host-only", "--num-requests", 2, "--max-model-len", 512, "--speedup", 2)


class TestTables:
    def test_the_counts_table_shows_the_seed_row_by_row(self) -> None:
        shown = bench("--host-only").stdout
        for steps, opened, bucketed, waste, cells, padded in SEED:
            (line,) = (r for r in shown.splitlines() if r.split()[:3] == [str(steps), str(opened), str(bucketed)])
            assert [waste, f"{cells:,}", f"{padded:,}"] == [line.split()[4], *line.split()[6:]]

    def test_waste_is_never_shown_without_total_waste_and_both_definitions(self) -> None:
        shown = bench("--host-only", "--steps", 8).stdout
        assert "waste = 1 - open / padded cells; total waste = 1 - live / padded cells" in shown

    def test_no_line_is_wider_than_80_columns_and_none_is_cut(self) -> None:
        shown = bench("--host-only").stdout
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
