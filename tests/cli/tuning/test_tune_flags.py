"""The command line: every flag reaches its setting, and what does not go together is one line and exit 2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from tune_cases import drawn, steady, tune_cli, write, write_trace

from nanoserve.step_time import FixedStep, LinearStepTime
from nanoserve_cli.options import flags_given
from nanoserve_cli.tuning.flags import settings_of
from nanoserve_cli.tuning.run import TuneSettings

DRAW = ("--num-requests", "40", "--request-rate", "20", "--prompt-len", "20", "--output-len", "12")
SMALL = ("--max-batch", "8", "--max-model-len", "64", "--width-granularity", "16")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "t.csv", drawn(60))


def settings(*arguments: str) -> TuneSettings:
    """What a command line asks for."""
    from nanoserve_cli.commands.tune import tune

    app = typer.Typer()
    app.command()(tune)
    command: Any = typer.main.get_command(app)
    context = command.make_context("tune", list(arguments))
    return settings_of(context.params, flags_given(context))


def refusal(*arguments: object) -> str:
    """The one line of a command line that is refused."""
    result = tune_cli(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr).removeprefix("error: ").rstrip("\n")


class TestSettings:
    def test_silence_is_the_defaults(self) -> None:
        found = settings("--from", "x.csv")
        assert found == TuneSettings(found.traffic)
        assert (found.traffic.source, found.graphs, found.objective, found.step_time) == ("x.csv", None, None, None)

    def test_each_flag_reaches_its_setting(self) -> None:
        found = settings(
            *("--from", "x.csv", "--format", "vllm-requests", "--limit", "9", "--max-len", "clip"),
            *("--max-batch", "12", "--max-model-len", "99", "--budget-graphs", "7", "--objective", "time"),
            *("--step-times", "s.csv", "--row-granularity", "2", "--width-granularity", "16", "--keep-rows", "4,1"),
            *("--max-pad", "0.5", "--holdout", "0.2", "--loads", "0.5,2", "--robust", "minimax", "--prior", "0.01"),
            *("--step-time", "linear:1,0.5,0", "--emit", "vllm", "--seed", "4"),
        )
        assert (found.traffic.format, found.traffic.limit, found.traffic.max_len) == ("vllm-requests", 9, "clip")
        assert found.traffic.seed == 4
        assert (found.max_batch_size, found.max_model_len, found.graphs) == (12, 99, 7)
        assert (found.objective, str(found.step_times)) == ("time", "s.csv")
        assert (found.row_granularity, found.width_granularity, found.keep_rows) == (2, 16, (4, 1))
        assert (found.max_pad, found.holdout, found.loads, found.robust) == (0.5, 0.2, (0.5, 2.0), "minimax")
        assert (found.prior, found.step_time) == (0.01, LinearStepTime(1e6, 5e5, 0.0))
        assert (found.engine, found.takes_widths) == ("vllm", False)

    @pytest.mark.parametrize(
        ("engine", "widths"), [("gaudi", True), ("neuron", True), ("nanoserve", True), ("tgi", False)]
    )
    def test_an_engine_takes_widths_or_not(self, engine: str, widths: bool) -> None:
        assert settings("--from", "x.csv", "--emit", engine).takes_widths is widths

    def test_budgets_become_graphs(self) -> None:
        assert settings("--from", "x", "--budget-mib", "365").graphs == 36
        assert settings("--from", "x", "--budget-mib", "365", "--graph-mib", "2.5").graphs == 146
        assert settings("--from", "x", "--budget-seconds", "10").graphs == 20
        assert settings("--from", "x", "--budget-seconds", "10", "--graph-seconds", "3").graphs == 3
        assert settings("--from", "x", "--target", "waste:5%").graphs is None

    def test_a_fixed_step_may_be_given_beside_verify(self) -> None:
        assert settings("--from", "x", "--step-time", "30", "--verify").step_time == FixedStep(30_000_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --from FILE to read traffic, or --num-requests N to draw it"),
        (("--from", "x", *DRAW), "give --from FILE to read traffic, or --num-requests N to draw it, not both"),
        (("--from", "x", "--prompt-len", "3"), "--prompt-len is of drawn requests, --from has lengths of its own"),
        (("--from", "x", "--output-len", "3"), "--output-len is of drawn requests, --from has lengths of its own"),
        ((*DRAW, "--format", "x"), "--format is of a file, --num-requests draws requests"),
        ((*DRAW, "--strict"), "--strict is of a file, --num-requests draws requests"),
        ((*DRAW, "--trace-dir", "x"), "--trace-dir is of a file, --num-requests draws requests"),
        (("--from", "x", "--burstiness", "2"), "--burstiness shapes drawn arrivals: add --request-rate"),
        (
            ("--from", "x", "--budget-graphs", "3", "--budget-mib", "9"),
            "--budget-graphs and --budget-mib say the size twice: give one of them",
        ),
        (
            ("--from", "x", "--budget-seconds", "3", "--target", "waste:5%"),
            "--budget-seconds and --target say the size twice: give one of them",
        ),
        (("--from", "x", "--graph-mib", "3"), "--graph-mib is of --budget-mib"),
        (("--from", "x", "--graph-seconds", "3"), "--graph-seconds is of --budget-seconds"),
        (
            ("--from", "x", "--budget-mib", "9"),
            "--budget-mib 9 at --graph-mib 10 is 0.9 graphs: it must be one to 10,000",
        ),
        (
            ("--from", "x", "--budget-seconds", "inf"),
            "--budget-seconds inf at --graph-seconds 0.5 is inf graphs: it must be one to 10,000",
        ),
        (
            ("--from", "x", "--budget-mib", "9", "--graph-mib", "0"),
            "--graph-mib must be a number above 0, got 0",
        ),
        (
            ("--from", "x", "--budget-mib", "9", "--graph-mib", "nan"),
            "--graph-mib must be a number above 0, got nan",
        ),
        (("--from", "x", "--robust", "minimax"), "--robust is of several --loads"),
        (("--from", "x", "--robust", "minimax", "--loads", "2"), "--robust is of several --loads"),
        (
            ("--from", "x", "--target", "waste:5%", "--loads", "1,2"),
            "--target is met on one load: give one, or a budget",
        ),
        (("--from", "x", "--verify-steps", "9"), "--verify-steps is of --verify"),
        (("--from", "x", "--model", "tiny"), "--model is of --verify"),
        (("--from", "x", "--device", "cpu"), "--device is of --verify"),
        (("--from", "x", "--step-times", "s.csv"), "--step-times is the cost of --objective time"),
        (
            ("--from", "x", "--objective", "rows", "--width-granularity", "8"),
            "--width-granularity is of widths, --objective rows has none",
        ),
        (("--from", "x", "--spec-tokens", "2"), "--spec-tokens is of --emit ENGINE"),
        (("--from", "x", "--cudagraph-mode", "FULL"), "--cudagraph-mode is of --emit ENGINE"),
        (("--from", "x", "--tensor-parallel", "2"), "--tensor-parallel is of --emit ENGINE"),
        (("--from", "x", "--max-num-batched-tokens", "2"), "--max-num-batched-tokens is of --emit ENGINE"),
        (("--from", "x", "--kv-block", "2"), "--kv-block is of --emit ENGINE"),
        (("--from", "x", "--emit", "vlm"), "--emit vlm: did you mean vllm?"),
        (
            ("--from", "x", "--emit", "vllm", "--cudagraph-mode", "PICEWISE"),
            "--cudagraph-mode PICEWISE: did you mean PIECEWISE?",
        ),
        (("--from", "x", "--holdout", "1"), "--holdout must be at least 0 and below 1, got 1"),
        (("--from", "x", "--holdout", "nan"), "--holdout must be at least 0 and below 1, got nan"),
        (("--from", "x", "--prior=-1"), "--prior must be at least 0 and below inf, got -1"),
        (("--from", "x", "--prior", "inf"), "--prior must be at least 0 and below inf, got inf"),
        (("--from", "x", "--max-pad", "1.5"), "--max-pad must be at least 0 and below 1, got 1.5"),
        (("--from", "x", "--keep-rows", "1,1"), "--keep-rows names a value twice: '1,1'"),
        (("--from", "x", "--keep-rows", "a"), "--keep-rows takes integers of at least 1 with commas between, got 'a'"),
        (
            ("--from", "x", "--verify", "--step-time", "linear:1,1,1"),
            "--verify runs on a fixed grid: drop --step-time, or --verify",
        ),
        *(
            (
                ("--from", "x", "--loads", loads),
                f"--loads takes factors of 0.001 to 1000 with commas between, each once, got '{loads}'",
            )
            for loads in ("", "a", "1,1", "0", "-1", "inf", "nan", "1,,2", "1e9")
        ),
    ],
)
def test_flags_that_do_not_go_together(arguments: tuple[str, ...], message: str) -> None:
    assert refusal(*arguments) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--objective", "time"),
            r"--objective time needs a cost: --step-times FILE of a bench, or --step-time linear:",
        ),
        (("--objective", "time", "--step-time", "30"), r"--objective time needs a cost: --step-times FILE of a bench"),
        (("--objective", "time", "--step-times", "nope.csv"), r"nope\.csv: cannot be read: No such file"),
        (("--keep-rows", "9"), r"forced member 9 is outside 1\.\.8"),
        (
            ("--max-pad", "0.1", "--budget-graphs", "4"),
            r"4 shapes are too few: max_pad 0\.1 up to 8 takes at least 8 row",
        ),
        (
            ("--max-pad", "0.5", "--row-granularity", "8"),
            r"max_pad 0\.5 cannot be kept: 1 goes up to 8 at least, which pads 0\.875 of it; use a smaller granularity",
        ),
        (("--keep-rows", "1,2,3,4", "--budget-graphs", "4"), r"4 shapes are too few: forced members 1, 2, 3, 4 takes"),
        (("--target", "waste"), r"--target waste takes a share such as 5%, got 'waste'"),
        (("--target", "waste:120%"), r"--target waste takes a share such as 5%, got 'waste:120%'"),
        (("--target", "waste:x"), r"--target waste takes a share such as 5%, got 'waste:x'"),
        (("--target", "best"), r"--target takes waste:5% or match:NAME, got 'best'"),
        (("--target", "match:vlm"), r"--target match: 'vlm' is no row ladder: did you mean vllm\?"),
        (
            ("--target", "waste:0", "--prior", "0"),
            r"--target waste:0: the best list of 64 graphs wastes \d+\.\d%, more than the 0\.0% asked for",
        ),
        (("--step-time", "quick"), r"step time 'quick': .* is no number of milliseconds; give "),
    ],
)
def test_what_only_the_traffic_tells(arguments: tuple[str, ...], message: str, trace: Path) -> None:
    assert re.match(message, refusal("--from", trace, *SMALL, *arguments))


def test_rows_alone_have_no_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "running.csv", ["t,running\n", *(f"{t},{t % 5 + 1}\n" for t in range(30))])
    assert refusal("--from", path, "--objective", "cells") == (
        "--objective cells needs widths, and running holds rows only: use --objective rows"
    )
    assert refusal("--from", path, "--step-time", "30") == (
        "--step-time is of requests, and running.csv holds none: it was read as running"
    )
    assert refusal("--from", path, "--verify") == (
        "--verify needs requests to run, and running.csv was read as running"
    )


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(trace: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.csv", ["a,b\n1,2\n"])
    assert "has other columns than schema" in refusal("--from", trace, "--out", other)
    assert other.read_text() == "a,b\n1,2\n"
    policy = other / "policy.yaml"
    assert refusal("--from", trace, "--policy-out", policy).startswith(f"--policy-out {policy}: cannot be written: ")


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    assert "no such file, and no trace key" in refusal("--from", tmp_path / "nope.csv")
    empty = write(tmp_path / "empty.csv", [])
    assert "is empty" in refusal("--from", empty)


def test_all_at_once_has_no_rate(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.csv", steady(20, every_ms=0))
    assert refusal("--from", path, *SMALL, "--max-model-len", "256", "--loads", "1,2") == (
        "--loads changes nothing where all requests arrive at once: add --request-rate"
    )
