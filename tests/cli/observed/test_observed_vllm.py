"""What vLLM's log lines give: graph tables, iterations, periodic lines, and which of them is taken."""

from pathlib import Path

import pytest

from nanoserve_cli.observed.detect import read_observed
from nanoserve_cli.observed.model import MixedSteps, Observed, Sample
from nanoserve_cli.workload.errors import TraceError

HEADER = "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\n"
SETTINGS = "INFO 03-01 10:00:00 [cuda_graph.py:123] - Mode: FULL_AND_PIECEWISE\n- Capture sizes: [1, 2, 4, 8]\n"


def read(tmp_path: Path, text: str, **options: str) -> Observed:
    path = tmp_path / "server"  # no extension: nothing may depend on one
    path.write_text(text)
    return read_observed(path, **options)


def table(clock: str, *rows: tuple[int, int, str, int], prefix: str = "(APIServer pid=7) ") -> str:
    stamp = f"{prefix}INFO 03-01 {clock} [cuda_graph.py:123] "
    return (
        stamp
        + "**CUDAGraph Stats:**\n"
        + stamp
        + HEADER
        + "".join(
            f"{stamp}| {tokens:<15} | {padded:<13} | {padded - tokens:<12} | {mode:<12} | {count:<5} |\n"
            for tokens, padded, mode, count in rows
        )
    )


def engine(clock: str, running: int, number: str = "Engine 000: ", pid: int = 7) -> str:
    return (
        f"(APIServer pid={pid}) INFO 03-01 {clock} [loggers.py:271] {number}Avg prompt throughput: 0.0 tokens/s, "
        f"Avg generation throughput: 1055.3 tokens/s, Running: {running} reqs, Waiting: 43 reqs, KV cache usage: 9%\n"
    )


def step(clock: str, counter: int, context: int, rows: int, rank: str = "EngineCore_DP0 ") -> str:
    return (
        f"INFO 03-01 {clock} [core.py:512] {rank}Iteration({counter}): {context} context requests, {context * 100} "
        f"context tokens, {rows} generation requests, {rows} generation tokens, iteration elapsed time: 20.10 ms\n"
    )


class TestTables:
    def test_full_rows_are_fitted_and_tables_add_up(self, tmp_path: Path) -> None:
        seen = read(
            tmp_path,
            SETTINGS
            + table("10:00:00", (5, 8, "FULL", 30), (8, 8, "FULL", 7))
            + table("10:00:10", (5, 8, "FULL", 12), (1, 1, "FULL", 1)),
        )
        assert (seen.kind, seen.weight_unit) == ("vllm-cudagraph-metrics", "steps")
        assert seen.rows == ((1, 1), (5, 42), (8, 7))
        assert seen.samples == (Sample(0, 5, 30), Sample(0, 8, 7), Sample(10, 1, 1), Sample(10, 5, 12))
        assert seen.capture_sizes == (1, 2, 4, 8)
        assert seen.skipped == ()

    def test_piecewise_and_none_are_counted_and_not_fitted(self, tmp_path: Path) -> None:
        rows = ((5, 8, "FULL", 3), (6, 8, "PIECEWISE", 20), (553, 553, "NONE", 4), (9, 9, "NONE", 11))
        seen = read(tmp_path, SETTINGS + table("10:00:00", *rows))
        assert seen.rows == ((5, 3),)
        assert seen.mixed == (
            MixedSteps("PIECEWISE", 6, 8, 20),
            MixedSteps("NONE", 9, 9, 11),
            MixedSteps("NONE", 553, 553, 4),
        )

    def test_mode_none_above_the_list_may_be_eager_decode_and_is_called_that(self, tmp_path: Path) -> None:
        rows = ((5, 8, "FULL", 3), (8, 8, "NONE", 2), (553, 553, "NONE", 4), (9, 9, "NONE", 11))
        eager = read(tmp_path, SETTINGS + table("10:00:00", *rows)).eager
        assert eager is not None
        assert (eager.weight, eager.rows) == (15, ((9, 11), (553, 4)))
        assert "above the list's largest, 8" in eager.basis
        assert "does not tell" in eager.basis

    def test_without_a_list_every_step_of_mode_none_may_be_eager(self, tmp_path: Path) -> None:
        eager = read(tmp_path, table("10:00:00", (5, 8, "FULL", 3), (7, 7, "NONE", 2))).eager
        assert eager is not None
        assert eager.rows == ((7, 2),)

    def test_rows_below_the_top_leave_nothing_eager(self, tmp_path: Path) -> None:
        eager = read(tmp_path, SETTINGS + table("10:00:00", (5, 8, "FULL", 3))).eager
        assert eager is not None
        assert (eager.weight, eager.rows) == (0, ())

    def test_a_message_whose_lines_share_one_prefix_keeps_its_time(self, tmp_path: Path) -> None:
        seen = read(
            tmp_path,
            table("10:00:00", (5, 8, "FULL", 3))
            + "INFO 03-01 10:00:30 [cuda_graph.py:123] **CUDAGraph Stats:**\n\n| 4 | 4 | 0 | FULL | 9 |\n",
        )
        assert seen.samples == (Sample(0, 5, 3), Sample(30, 4, 9))

    def test_a_container_prefix_with_a_bar_is_no_cell(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "vllm-1  | INFO 03-01 10:00:00 | 41 | 48 | 7 | CUDAGraphMode.FULL | 187 |\n")
        assert seen.rows == ((41, 187),)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("| 5 | 8 | 3 | FULL | 30\n", "table row cut short or garbled"),
            ("| 5 | 8 | 3 | FUL\n", None),
            ("| x | 8 | 3 | FULL | 30 |\n", "table row cut short or garbled"),
            ("| 5 | 8 | 2 | FULL | 30 |\n", "table row whose padded tokens are not its tokens and paddings"),
            ("| 0 | 8 | 8 | FULL | 30 |\n", "table row whose padded tokens are not its tokens and paddings"),
        ],
    )
    def test_a_broken_row_is_counted_and_never_fitted(self, tmp_path: Path, line: str, reason: str | None) -> None:
        seen = read(tmp_path, "| 2 | 2 | 0 | FULL | 1 |\n" + line)
        assert seen.rows == ((2, 1),)
        assert [(some.reason, some.count, some.first_line) for some in seen.skipped] == (
            [] if reason is None else [(reason, 1, 2)]
        )

    def test_a_server_in_mode_full_is_said_to_mix_prefill_into_its_rows(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "- Mode: FULL\n" + table("10:00:00", (5, 8, "FULL", 3)))
        assert any("mode is FULL" in note for note in seen.notes)
        seen = read(tmp_path, SETTINGS + table("10:00:00", (5, 8, "FULL", 3)))
        assert not any("mode is FULL" in note for note in seen.notes)

    def test_speculative_decoding_is_said_because_sizes_are_then_tokens(self, tmp_path: Path) -> None:
        text = "non-default args: {'speculative_config': {'num_speculative_tokens': 3}, 'max_num_seqs': 64}\n"
        seen = read(tmp_path, text + table("10:00:00", (20, 24, "FULL", 3)))
        assert any("up to 4 tokens" in note for note in seen.notes)
        assert seen.max_batch == 64


class TestIterations:
    def test_each_line_is_a_step_and_context_makes_it_mixed(self, tmp_path: Path) -> None:
        text = step("10:00:00", 0, 1, 10) + step("10:00:00", 1, 0, 11) + step("10:00:01", 2, 0, 11)
        seen = read(tmp_path, text + step("10:00:01", 3, 0, 11) + step("10:00:01", 4, 0, 0))
        assert (seen.kind, seen.weight_unit, seen.rows, seen.idle) == ("vllm-iterations", "steps", ((11, 3),), 1)
        assert seen.samples == (Sample(0, 11, 1), Sample(1, 11, 2))
        assert seen.mixed == (MixedSteps("context", 110, None, 1),)

    def test_ranks_count_their_own_steps(self, tmp_path: Path) -> None:
        text = step("10:00:00", 5, 0, 9, "EngineCore_DP1 ") + step("10:00:00", 0, 0, 4) + step("10:00:00", 1, 0, 4)
        seen = read(tmp_path, text)
        assert seen.rows == ((4, 2), (9, 1))
        assert any(note.startswith("2 engines") for note in seen.notes)
        assert not any("missing" in note or "went back" in note for note in seen.notes)

    def test_a_counter_that_goes_back_is_a_new_start_and_one_that_jumps_lost_lines(self, tmp_path: Path) -> None:
        counters = [3, 4, 8, 0, 1]
        seen = read(tmp_path, "".join(step("10:00:00", counter, 0, 4) for counter in counters))
        assert seen.rows == ((4, 5),)
        assert "the step counter went back 1 times: new starts of the server" in seen.notes
        assert "3 iterations are missing between lines" in seen.notes

    def test_a_line_cut_short_is_counted(self, tmp_path: Path) -> None:
        seen = read(tmp_path, step("10:00:00", 0, 0, 4) + step("10:00:00", 1, 0, 4)[:90])
        assert seen.rows == ((4, 1),)
        assert [(some.count, some.first_line) for some in seen.skipped] == [(1, 2)]


class TestEngineLines:
    def test_each_sample_weighs_the_time_to_the_next(self, tmp_path: Path) -> None:
        seen = read(tmp_path, engine("10:00:00", 18) + engine("10:00:10", 3) + engine("10:00:22", 18))
        assert (seen.kind, seen.weight_unit) == ("vllm-engine", "seconds")
        assert seen.rows == ((3, 12), (18, 10 + 11))
        assert seen.samples == (Sample(0, 18, 10), Sample(10, 3, 12), Sample(22, 18, 11))

    def test_a_gap_of_more_than_five_medians_is_not_bridged(self, tmp_path: Path) -> None:
        clocks = ("10:00:00", "10:00:10", "10:00:20", "10:30:00", "10:30:10")
        seen = read(tmp_path, "".join(engine(clock, rows) for rows, clock in enumerate(clocks, 1)))
        assert seen.rows == ((1, 10), (2, 10), (3, 10), (4, 10), (5, 10))
        assert any(note.startswith("1 gaps of over 5 times") for note in seen.notes)

    def test_the_older_shape_with_swapped_and_pending(self, tmp_path: Path) -> None:
        line = (
            "INFO 05-22 02:21:{}4 metrics.py:229] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.0 "
            "tokens/s, Running: {} reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.3%\n"
        )
        assert read(tmp_path, line.format(0, 1) + line.format(1, 2)).rows == ((1, 10), (2, 10))

    def test_engines_and_starts_are_series_of_their_own(self, tmp_path: Path) -> None:
        text = "".join(
            engine(f"10:00:{second}", rows, number, pid)
            for second, rows, number, pid in (
                ("00", 4, "Engine 000: ", 7),
                ("01", 6, "Engine 001: ", 7),
                ("10", 4, "Engine 000: ", 7),
                ("11", 6, "Engine 001: ", 7),
                ("40", 9, "Engine 000: ", 8),
            )
        )
        seen = read(tmp_path, text)
        assert seen.rows == ((4, 20), (6, 20), (9, 10))

    def test_idle_time_is_no_row(self, tmp_path: Path) -> None:
        seen = read(tmp_path, engine("10:00:00", 2) + engine("10:00:10", 0) + engine("10:00:20", 0))
        assert (seen.rows, seen.idle, seen.samples) == (((2, 10),), 20, (Sample(0, 2, 10),))

    def test_a_line_that_adds_up_engines_tells_no_rows(self, tmp_path: Path) -> None:
        text = engine("10:00:00", 2) + engine("10:00:10", 90, "3 Engines Aggregated: ")
        seen = read(tmp_path, text)
        assert seen.rows == ((2, 1),)
        assert [some.reason for some in seen.skipped] == [
            "line that adds up several engines: it does not tell the rows of one step"
        ]
        assert read(tmp_path, engine("10:00:00", 90, "1 Engines Aggregated: ")).rows == ((90, 1),)

    def test_rows_above_the_capture_list_were_served_eagerly(self, tmp_path: Path) -> None:
        text = "config: {'cudagraph_capture_sizes': [1, 2, 4]}\n" + engine("10:00:00", 4) + engine("10:00:10", 5)
        eager = read(tmp_path, text).eager
        assert eager is not None
        assert (eager.weight, eager.rows, eager.basis) == (10, ((5, 10),), "rows above the list's largest, 4")
        assert read(tmp_path, engine("10:00:00", 4)).eager is None


class TestWhichKind:
    ALL = engine("10:00:00", 3) + step("10:00:00", 0, 0, 5) + table("10:00:00", (7, 8, "FULL", 2))

    def test_tables_before_iterations_before_periodic_lines(self, tmp_path: Path) -> None:
        seen = read(tmp_path, self.ALL)
        assert (seen.kind, seen.rows) == ("vllm-cudagraph-metrics", ((7, 2),))
        assert [note for note in seen.notes if note.startswith("also seen")] == [
            "also seen, not used: 1 lines of vllm-iterations (less exact)",
            "also seen, not used: 1 lines of vllm-engine (less exact)",
        ]

    @pytest.mark.parametrize(("name", "rows"), [("vllm-engine", 3), ("vllm-iterations", 5)])
    def test_a_named_format_is_read_whatever_else_there_is(self, tmp_path: Path, name: str, rows: int) -> None:
        seen = read(tmp_path, self.ALL, format=name)
        assert (seen.kind, seen.rows) == (name, ((rows, 1),))

    def test_tables_without_a_decode_row_give_way_to_what_has_some(self, tmp_path: Path) -> None:
        seen = read(tmp_path, engine("10:00:00", 3) + table("10:00:00", (7, 8, "PIECEWISE", 2)))
        assert (seen.kind, seen.rows) == ("vllm-engine", ((3, 1),))
        assert "also seen, not used: 1 lines of vllm-cudagraph-metrics (no decode step in them)" in seen.notes

    def test_tables_alone_without_a_decode_row_are_said_to_have_none(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="1 lines of vllm-cudagraph-metrics, all of steps with prefill"):
            read(tmp_path, table("10:00:00", (7, 8, "PIECEWISE", 2)))
