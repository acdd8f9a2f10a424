"""Samples of running requests: what each stands for, in Prometheus text and in a CSV."""

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.observed.detect import read_observed
from nanoserve_cli.observed.gauges import Series, running_rows, sample_time, weigh
from nanoserve_cli.observed.model import Observed, Sample
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import RowError, TraceError

HELP = "# HELP vllm:num_requests_running Number of requests in batches.\n# TYPE vllm:num_requests_running gauge\n"


def read(tmp_path: Path, text: str) -> Observed:
    path = tmp_path / "samples"
    path.write_text(text)
    return read_observed(path)


def series(*samples: tuple[int | None, int]) -> Series:
    made = Series()
    for seconds, rows in samples:
        made.add(None if seconds is None else seconds * NS_PER_S, rows)
    return made


def weights(*some: Series) -> list[tuple[float, int, float]]:
    weighed = weigh(list(some))
    return list(zip((weighed.times / NS_PER_S).tolist(), weighed.rows.tolist(), weighed.weights.tolist(), strict=True))


class TestWeighing:
    def test_the_gap_to_the_next_and_a_median_for_the_last(self) -> None:
        assert weights(series((0, 5), (1, 6), (4, 7), (5, 8))) == [(0, 5, 1), (1, 6, 3), (4, 7, 1), (5, 8, 1)]

    def test_samples_of_one_moment_share_it(self) -> None:
        assert weights(series((0, 5), (0, 6), (2, 7))) == [(0, 5, 1), (0, 6, 1), (2, 7, 2)]

    def test_samples_newest_first_are_sorted(self) -> None:
        weighed = weigh([series((5, 8), (4, 7), (1, 6))])
        assert (weighed.rows.tolist(), weighed.weights.tolist(), weighed.out_of_order) == ([6, 7, 8], [3, 1, 2], 2)

    def test_a_gap_of_more_than_an_hour_is_bridged_by_no_interval(self) -> None:
        assert [weight for _, _, weight in weights(series((0, 5), (3601, 6)))] == [1, 1]
        assert [weight for _, _, weight in weights(series((0, 5), (3600, 6)))] == [3600, 3600]
        assert [weight for _, _, weight in weights(series((0, 5), (1000, 6), (5000, 7)))] == [1000, 1000, 1000]

    def test_engines_are_weighed_apart(self) -> None:
        assert weights(series((0, 5), (10, 6)), series((1, 50), (11, 60))) == [
            (0, 5, 10),
            (1, 50, 10),
            (10, 6, 10),
            (11, 60, 10),
        ]

    @given(st.lists(st.integers(0, 50), min_size=2, max_size=30))
    def test_the_weights_are_the_time_between_the_ends_and_one_median_gap(self, stamps: list[int]) -> None:
        moments = sorted(set(stamps))
        gaps = sorted(later - earlier for earlier, later in pairwise(moments))
        if not gaps:
            expected = Fraction(len(stamps))
        else:
            median = Fraction(gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2], 2)
            expected = sum((Fraction(gap) if gap <= 5 * median else median for gap in gaps), median)
        weighed = weigh([series(*((stamp, 1) for stamp in stamps))])
        assert math.isclose(float(weighed.weights.sum()), float(expected), rel_tol=1e-12)


class TestValues:
    @pytest.mark.parametrize(("text", "rows"), [("4", 4), ("4.0", 4), ("1.2e1", 12), ("0.0", 0)])
    def test_whole_numbers_in_any_spelling(self, text: str, rows: int) -> None:
        assert running_rows(text) == rows

    @pytest.mark.parametrize("text", ["NaN", "+Inf", "3.5", "-1", "1e30", "four"])
    def test_what_is_no_count_of_rows_is_a_row_error(self, text: str) -> None:
        with pytest.raises(RowError):
            running_rows(text)

    @pytest.mark.parametrize(
        "text",
        [
            "1767225600",
            "1767225600.0",
            "1767225600000",
            "1767225600000000",
            "1767225600000000000",
            "2026-01-01 00:00:00",
            "2026-01-01T00:00:00Z",
            "2026-01-01T01:00:00+01:00",
        ],
    )
    def test_a_moment_in_seconds_and_finer_units_and_as_a_date(self, text: str) -> None:
        assert sample_time(text) == 1_767_225_600 * NS_PER_S

    @pytest.mark.parametrize(
        "text", ["noon", "1e60", "-5", "2026-13-01 00:00:00", "1950-01-01 00:00:00", "9999-01-01 00:00:00"]
    )
    def test_what_is_no_time_is_a_row_error(self, text: str) -> None:
        with pytest.raises(RowError):
            sample_time(text)


class TestPrometheus:
    def test_scrapes_with_times_are_weighted_by_them(self, tmp_path: Path) -> None:
        line = 'vllm:num_requests_running{{engine="0",model_name="m}}"}} {}.0 {}\n'
        seen = read(tmp_path, HELP + line.format(4, 1767225600000) + HELP + line.format(6, 1767225615000))
        assert (seen.kind, seen.weight_unit, seen.rows) == ("prometheus", "seconds", ((4, 15), (6, 15)))
        assert seen.samples == (Sample(0, 4, 15), Sample(15, 6, 15))

    def test_scrapes_without_times_count_the_same_and_cannot_be_held_out(self, tmp_path: Path) -> None:
        scrape = HELP + "vllm:num_requests_running {}\nvllm:num_requests_waiting 9.0\n"
        seen = read(tmp_path, "".join(scrape.format(rows) for rows in (4, 4, 6, 0)))
        assert (seen.rows, seen.idle, seen.samples) == (((4, 2), (6, 1)), 1, None)
        assert seen.untimed

    def test_an_epoch_between_scrapes_is_their_time(self, tmp_path: Path) -> None:
        text = "".join(
            f"{1767225600 + at}\nvllm:num_requests_running {rows}\n" for at, rows in ((0, 4), (5, 6), (9, 4))
        )
        assert read(tmp_path, text).rows == ((4, 5 + 4.5), (6, 4))

    def test_each_set_of_labels_is_an_engine_and_tensor_ranks_repeat(self, tmp_path: Path) -> None:
        line = 'sglang:num_running_reqs{{dp_rank="{}",tp_rank="{}"}} {} {}\n'
        samples = ((0, 0, 4, 0), (0, 1, 4, 0), (1, 2, 9, 0), (0, 0, 5, 2), (0, 1, 5, 2), (1, 2, 9, 2))
        text = "".join(line.format(dp, tp, rows, 1767225600000 + at * 1000) for dp, tp, rows, at in samples)
        seen = read(tmp_path, text)
        assert seen.rows == ((4, 2), (5, 2), (9, 4))
        assert [some.count for some in seen.skipped] == [2]

    def test_nan_and_a_cut_line_are_counted_and_other_gauges_are_not(self, tmp_path: Path) -> None:
        text = (
            'vllm:lora_requests_info{running_lora_adapters="a"} 1.7e9\nvllm:num_requests_running_peak 80\n'
            "vllm:num_requests_running NaN\nvllm:num_requests_running 3\nvllm:num_requests_running{engi"
        )
        seen = read(tmp_path, text)
        assert seen.rows == ((3, 1),)
        assert [(some.reason, some.first_line) for some in seen.skipped] == [
            ("running requests are not a number", 3),
            ("gauge line cut short or garbled", 5),
        ]

    def test_a_server_that_never_ran_a_request_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="1 lines of prometheus, none with a request running"):
            read(tmp_path, HELP + "vllm:num_requests_running 0.0\n")


class TestCsv:
    def test_per_second_samples(self, tmp_path: Path) -> None:
        seen = read(
            tmp_path, "t,gen_throughput,running,waiting\n1.0,2.0,5,2\n2.0,79.0,16,0\n3.0,83.0,16,1\n4.0,0,0,0\n"
        )
        assert (seen.kind, seen.rows, seen.idle) == ("running", ((5, 1), (16, 2)), 1)
        assert seen.samples == (Sample(0, 5, 1), Sample(1, 16, 1), Sample(2, 16, 1))

    def test_by_name_in_any_case_with_dates_and_crlf(self, tmp_path: Path) -> None:
        text = "Timestamp,Num_Requests_Running\r\n2026-01-01 00:00:00,3\r\n2026-01-01 00:00:30,4"
        assert read(tmp_path, text).rows == ((3, 30), (4, 30))

    def test_without_times_each_line_counts_the_same(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "running,waiting\n3,0\n3,0\n4,0\n")
        assert (seen.rows, seen.samples) == (((3, 2), (4, 1)), None)
        assert "no column of times" in seen.untimed

    def test_engines_in_a_column_are_weighed_apart(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "t,engine,running\n0,a,3\n0,b,7\n2,a,3\n2,b,7\n")
        assert seen.rows == ((3, 4), (7, 4))

    def test_bad_lines_are_counted_by_reason(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "t,running\n0,3\n1,nan\n2,\n3,2.5\nx,4\n5\n6,3\n")
        assert seen.rows == ((3, 12),)
        assert [(some.reason, some.first_line) for some in seen.skipped] == [
            ("running requests are not a number", 3),
            ("running is missing", 4),
            ("running requests are not a whole number", 5),
            ("the time is not a time", 6),
            ("row cut short", 7),
        ]

    def test_a_column_that_stands_twice_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="'running' stands twice"):
            read(tmp_path, "t,running,running\n0,3,4\n")

    @pytest.mark.parametrize("lines", ["", "0,0\n", "0,nan\n"])
    def test_no_sample_with_a_row_is_an_error_that_counts_them(self, tmp_path: Path, lines: str) -> None:
        with pytest.raises(TraceError, match="no sample has a request running"):
            read(tmp_path, "t,running\n" + lines)
