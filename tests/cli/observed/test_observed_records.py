"""Per-request records as rows over time, and a `steps.csv` as it was written."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.steps import Segment, Steps
from nanoserve_cli.observed.detect import read_observed
from nanoserve_cli.observed.lifecycle import rows_over_time
from nanoserve_cli.observed.model import Observed, Sample
from nanoserve_cli.records import steps_csv
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import TraceError


def read(tmp_path: Path, text: str, **options: str) -> Observed:
    path = tmp_path / "records"
    path.write_text(text)
    return read_observed(path, **options)


def request(first: object, last: object, **more: object) -> str:
    return json.dumps({"first_token_ts": first, "last_token_ts": last, **more}) + "\n"


class TestLifecycle:
    def test_a_row_decodes_between_its_first_token_and_its_last(self, tmp_path: Path) -> None:
        seen = read(tmp_path, request(10.0, 13.0) + request(11.5, 12.0) + request(15.0, 16.25))
        assert (seen.kind, seen.weight_unit) == ("lifecycle", "seconds")
        assert (seen.rows, seen.idle) == (((1, 1.5 + 1 + 1.25), (2, 0.5)), 2)
        assert seen.samples == (Sample(0, 1, 1.5), Sample(1.5, 2, 0.5), Sample(2, 1, 1), Sample(5, 1, 1.25))

    def test_records_that_are_a_request_trace_too_are_read_as_what_they_tell_more_of(self, tmp_path: Path) -> None:
        line = request(10.0, 13.0, arrival_time=5.0, input_toks=7, output_toks=3)
        assert read(tmp_path, line).kind == "lifecycle"
        seen = read(tmp_path, line, format="vllm-requests")
        assert seen.workload is not None
        assert seen.workload.workload.prompt_len.tolist() == [7]

    def test_requests_of_one_token_never_decode(self, tmp_path: Path) -> None:
        seen = read(tmp_path, request(10.0, 10.0) + request(10.0, 12.0))
        assert seen.rows == ((1, 2),)
        assert "1 requests made one token and so never decode" in seen.notes

    def test_unfinished_and_impossible_requests_are_counted(self, tmp_path: Path) -> None:
        text = request(10.0, 12.0) + request(11.0, None) + request(9.0, 8.0) + "not json\n" + '{"first_tok'
        seen = read(tmp_path, text)
        assert seen.rows == ((1, 2),)
        assert [(some.reason, some.count, some.first_line) for some in seen.skipped] == [
            ("last_token_ts is missing", 1, 2),
            ("last_token_ts is before first_token_ts", 1, 3),
            ("not JSON", 2, 4),
        ]

    def test_nobody_decoding_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="none of 1 requests made a token after its first"):
            read(tmp_path, request(10.0, 10.0))

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=12))
    def test_rows_over_time_are_those_of_every_second_counted(self, spans: list[tuple[int, int]]) -> None:
        counted: Counter[int] = Counter()
        begin, end = min(start for start, _ in spans), max(start + length for start, length in spans)
        for second in range(begin, end):
            counted[sum(start <= second < start + length for start, length in spans)] += 1
        found: Counter[int] = Counter()
        first = np.array([start * NS_PER_S for start, _ in spans])
        last = np.array([(start + length) * NS_PER_S for start, length in spans])
        for _, rows, lasting in rows_over_time(first, last):
            found[rows] += round(lasting)
        assert found == counted


class TestSteps:
    SEGMENTS = (Segment(0, 3, 17, 4, 200), Segment(9, 1, 5, 2, 11))

    def test_what_a_run_wrote_comes_back(self, tmp_path: Path) -> None:
        steps = Steps.of(list(self.SEGMENTS))
        seen = read(tmp_path, steps_csv(steps))
        assert (seen.kind, seen.steps, seen.weight_unit) == ("steps", steps, "steps")
        assert (seen.rows, seen.workload, seen.samples) == (None, None, None)

    def test_a_row_cut_short_is_counted(self, tmp_path: Path) -> None:
        seen = read(tmp_path, steps_csv(Steps.of(list(self.SEGMENTS))) + "20,3,1")
        assert seen.steps == Steps.of(list(self.SEGMENTS))
        assert [(some.reason, some.first_line) for some in seen.skipped] == [("row cut short", 4)]

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("5,2,8,4,60\n0,2,8,1,16\n", "starts before the one before it ends"),
            ("0,2,8,4,6000\n", "live cells do not fit"),
            ("0,-2,8,4,60\n", "is a steps.csv without a segment"),
            ("0,2,8,4,99999999999999999999\n", "is a steps.csv without a segment"),
            ("", "is a steps.csv without a segment"),
        ],
    )
    def test_what_is_no_run_is_refused(self, tmp_path: Path, rows: str, message: str) -> None:
        with pytest.raises(TraceError, match=message):
            read(tmp_path, "start_step,rows,width,steps,live_cells\n" + rows)
