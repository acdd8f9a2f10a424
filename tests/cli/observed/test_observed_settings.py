"""What a log says about its server, and the times of its lines."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.observed.clock import Clock
from nanoserve_cli.observed.logs import read_settings
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.units import NS_PER_S


def settings(*lines: str) -> ServerSettings:
    made = ServerSettings()
    for line in lines:
        made.feed(line + "\n")
    return made


class TestCaptureList:
    @pytest.mark.parametrize(
        "line",
        [
            "INFO 09-02 08:46:13 [cuda_graph.py:123] - Capture sizes: [1, 2, 4, 8]",
            "'cudagraph_num_of_warmups': 1, 'cudagraph_capture_sizes': [1, 2, 4, 8], 'cudagraph_copy_inputs': False",
            'compilation_config={"level":3,"cudagraph_capture_sizes":[8,4,2,1],"max_capture_size":8}',
            r'{"message": "config {\"cudagraph_capture_sizes\": [8, 4, 2, 1, 1]}"}',
            "[2026-04-27 02:36:06] Capture cuda graph bs [1, 2, 4, 8]",
            "[2026-04-27 02:36:09] Capture target decode CUDA graph end. bs=[1, 2, 4, 8], elapsed=3.74 s",
            "server_args=ServerArgs(cuda_graph_max_bs=8, cuda_graph_bs=[1, 2, 4, 8], disable_cuda_graph=False)",
            "server_args=ServerArgs(cuda_graph_bs_decode=[1, 2, 4, 8], cuda_graph_bs_prefill=[64, 128])",
            """cuda_graph_config='{"prefill": {"bs": [64]}, "decode": {"max_bs": 8, "bs": [1,2,4,8]}}'""",
            "vllm serve m --cudagraph-capture-sizes 1 2 4 8 --port 8000",
            "sglang serve --cuda-graph-bs-decode 1 2 4 8",
        ],
    )
    def test_every_shape_it_appears_in(self, line: str) -> None:
        assert settings(line).capture_sizes == (1, 2, 4, 8)

    @pytest.mark.parametrize(
        "line",
        [
            "[2026-04-27 02:36:06] Capture cuda graph bs [1, 2, 4, ...]",
            "'cudagraph_capture_sizes': [],",
            "'cudagraph_capture_sizes': None,",
            "[2026-04-27 02:36:06] Capture piecewise CUDA graph num tokens [4, 8]",
            "max_cudagraph_capture_size=512, cuda_graph_max_bs=8",
            "Capturing batches (bs=216 avail_mem=10.30 GB): 40%",
        ],
    )
    def test_what_is_no_whole_list_is_none(self, line: str) -> None:
        assert settings(line).capture_sizes is None

    def test_what_was_captured_overrides_what_was_asked_for(self) -> None:
        asked, captured = "cuda_graph_bs=[1, 2, 4, 64]", "Capture cuda graph bs [1, 2]"
        assert settings(asked, captured).capture_sizes == (1, 2)
        assert settings(captured, asked).capture_sizes == (1, 2)

    def test_of_several_starts_the_last_and_the_number_of_lists(self) -> None:
        found = settings("Capture sizes: [1, 2]", "Capture sizes: [1, 2, 4]", "Capture sizes: [1, 2, 4]")
        assert (found.capture_sizes, found.lists_seen) == ((1, 2, 4), 2)

    def test_a_server_told_to_capture_nothing_has_the_empty_list(self) -> None:
        assert settings("cuda_graph_bs=[1, 2], disable_cuda_graph=True, x=1").capture_sizes == ()
        assert settings("vllm config: enforce_eager=True").capture_sizes == ()
        assert settings("cuda_graph_bs=[1, 2], disable_cuda_graph=False").capture_sizes == (1, 2)

    def test_indented_json_of_a_configuration(self, tmp_path: Path) -> None:
        path = tmp_path / "meta.json"
        path.write_text('{\n "cudagraph_capture_sizes": [\n  1,\n  2,\n  4\n ],\n "max_num_seqs": 256\n}\n')
        found = read_settings(path)
        assert (found.capture_sizes, found.max_batch) == ((1, 2, 4), 256)

    def test_a_list_cut_by_other_lines_is_none(self) -> None:
        assert settings("cuda_graph_bs=[1, 2,", "INFO something else", "4]").capture_sizes is None


def seconds(*lines: str) -> list[float | None]:
    clock = Clock()
    found = [clock.read(line) for line in lines]
    start = next((at for at in found if at is not None), 0)
    return [None if at is None else (at - start) / NS_PER_S for at in found]


class TestClock:
    def test_a_line_without_a_time_has_that_of_the_line_before(self) -> None:
        assert seconds("x", "INFO 03-01 10:00:00 x", "x", "INFO 03-01 10:00:05 x") == [None, 0, 0, 5]

    def test_an_epoch_on_a_line_of_its_own_and_a_stamp_that_comes_back_after_it(self) -> None:
        clock = Clock()
        stamp = "2026-01-01 00:00:00"
        found = [clock.read(stamp)]
        for line in ("1767225605.5\n", "# 1767225607000\n", "12345 reqs\n"):
            clock.pass_by(line)
            found.append(clock.now)
        found.append(clock.read(stamp))
        start = 1_767_225_600 * NS_PER_S
        assert [None if at is None else (at - start) / NS_PER_S for at in found] == [0, 5.5, 7, 7, 0]

    def test_a_year_that_turns(self) -> None:
        assert seconds("12-31 23:59:58", "01-01 00:00:03", "12-31 23:59:59", "01-01 00:00:04") == [0, 5, 1, 6]

    def test_leap_days(self) -> None:
        day = 86_400
        assert seconds("02-28 00:00:00", "02-29 00:00:00", "03-01 00:00:00") == [0, day, 2 * day]
        assert seconds("02-28 00:00:00", "03-01 00:00:00") == [0, day]
        assert seconds("02-29 00:00:00", "07-01 00:00:00", "12-31 00:00:00", "01-01 00:00:00") == [
            0,
            123 * day,
            306 * day,
            307 * day,
        ]

    def test_the_container_stamp_counts_on_lines_that_have_one(self) -> None:
        lines = ("2026-05-12T08:01:39.25Z INFO 05-12 10:01:39 a", "2026-05-12T08:01:39.75Z | a |")
        assert seconds(*lines) == [0, 0.5]

    def test_a_zone_is_taken_off_where_there_are_years(self) -> None:
        assert seconds("2026-05-12T08:00:00Z", "2026-05-12T10:00:01+02:00", "2026-05-12T06:00:02-0200") == [0, 1, 2]

    def test_a_log_that_begins_without_years_is_read_without(self) -> None:
        assert seconds("INFO 09-02 08:46:13", "2026-09-02T08:46:23.5Z INFO 09-02 08:46:23") == [0, 10.5]

    @pytest.mark.parametrize(
        "text", ["13-01 10:00:00", "02-30 10:00:00", "03-01 24:00:00", "2026-02-29 10:00:00", "9026-01-01 10:00:00"]
    )
    def test_an_impossible_date_is_no_time(self, text: str) -> None:
        assert seconds(text) == [None]

    @given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=20), st.integers(0, 600))
    def test_dated_stamps_are_as_far_apart_as_datetime_has_them(self, offsets: list[int], day: int) -> None:
        start = datetime(2024, 1, 1) + timedelta(days=day)
        lines = [f"[{start + timedelta(seconds=offset)}] x" for offset in offsets]
        assert seconds(*lines) == [offset - offsets[0] for offset in offsets]

    @given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60), st.integers(0, 364))
    def test_stamps_without_a_year_in_order_are_as_datetime_has_them(self, gaps: list[int], day: int) -> None:
        now = datetime(2025, 1, 1) + timedelta(days=day)
        stamps = [now := now + timedelta(seconds=gap) for gap in gaps]
        common = [stamp for stamp in stamps if stamp < datetime(2028, 2, 29)]
        lines = [f"INFO {stamp:%m-%d %H:%M:%S} [x.py:1]" for stamp in common]
        assert seconds(*lines) == [(stamp - common[0]).total_seconds() for stamp in common]
