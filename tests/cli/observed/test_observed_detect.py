"""Which file is what, what is said of a file that is nothing, and what a log may be wrapped in."""

import gzip
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from nanoserve_cli.observed.detect import format_names, read_observed
from nanoserve_cli.observed.logs import LOG_FORMATS
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.observed.source import open_log
from nanoserve_cli.workload.errors import TraceError

SGLANG = "[2026-04-05 20:02:{:02d}] Decode batch, #running-req: {}, #token: 100, token usage: 0.08, cuda graph: True\n"
LOG = "".join(SGLANG.format(second, 3 + second % 2) for second in range(6))
ACCESS = '[2026-04-05 20:02:51] INFO:     192.0.2.7:40052 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def read(tmp_path: Path, content: str | bytes, **options: str) -> Observed:
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_observed(path, **options)


def refusal(tmp_path: Path, content: str | bytes, **options: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, content, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestRecognition:
    def test_a_request_trace_is_handed_on_whole(self, tmp_path: Path) -> None:
        seen = read(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 19:14:04.1,1131,397\nx,1,1\n")
        assert (seen.kind, seen.rows, seen.steps, seen.total_weight) == ("azure", None, None, 0)
        assert seen.workload is not None
        assert seen.workload.workload.output_len.tolist() == [397]
        assert seen.skipped == seen.workload.skipped != ()

    def test_a_json_line_log_is_read_by_its_messages(self, tmp_path: Path) -> None:
        line = '{{"time": "2026-04-05T20:02:{:02d}Z", "message": "Decode batch, #running-req: {}, #token: 9"}}\n'
        seen = read(tmp_path, line.format(0, 3) + line.format(1, 4))
        assert (seen.kind, seen.rows) == ("sglang-decode", ((3, 40), (4, 40)))

    def test_every_name_can_be_asked_for_and_is_one_kind(self) -> None:
        assert len(set(format_names())) == len(format_names())
        assert {"steps", "lifecycle", "running", "prometheus", "azure", "vllm-requests"} <= set(format_names())

    def test_an_observation_has_exactly_one_of_three_things(self) -> None:
        with pytest.raises(ValueError, match="exactly one"):
            Observed(path="x", kind="x", about="x")


class TestWrappings:
    PLAIN = ((3, 120), (4, 120))

    @pytest.mark.parametrize("wrap", ["gzip", "crlf", "colour", "bom", "nul", "truncated", "access", "container"])
    def test_what_a_log_is_wrapped_in_changes_nothing(self, tmp_path: Path, wrap: str) -> None:
        content = {
            "gzip": lambda: gzip.compress(LOG.encode()),
            "crlf": lambda: LOG.replace("\n", "\r\n").encode(),
            "colour": lambda: LOG.replace("Decode", "\x1b[1;32mDecode\x1b[0m").encode(),
            "bom": lambda: b"\xef\xbb\xbf" + LOG.encode(),
            "nul": lambda: bytes(3000) + b"\n" + LOG.encode(),
            "truncated": lambda: LOG.encode() + b"[2026-04-05 20:02:59] Deco",
            "access": lambda: LOG.replace("\n", "\n" + ACCESS).encode(),
            "container": lambda: LOG.replace("[2026", "2026-04-05T20:02:51.5Z stdout F [2026").encode(),
        }[wrap]()
        assert read(tmp_path, content).rows == self.PLAIN

    def test_bytes_that_are_no_text_spoil_their_line_alone(self, tmp_path: Path) -> None:
        broken = LOG.encode() + SGLANG.format(9, 7).encode().replace(b"#running", b"#run\xff\xfening") + ACCESS.encode()
        seen = read(tmp_path, broken)
        assert seen.rows == self.PLAIN

    def test_a_line_without_an_end_is_read_in_pieces(self, tmp_path: Path) -> None:
        assert read(tmp_path, "x" * (5 << 20) + "\n" + LOG).rows == self.PLAIN
        with open_log(tmp_path / "file") as lines:
            assert max(map(len, lines)) == 1 << 20

    def test_what_users_wrote_is_not_read(self, tmp_path: Path) -> None:
        quoted = (
            "INFO 05-19 10:13:11 Received request cmpl-1: prompt: '- Capture sizes: [1], | 9 | 9 | 0 | FULL | 9 |'\n"
        )
        seen = read(tmp_path, LOG + quoted)
        assert (seen.kind, seen.rows, seen.capture_sizes) == ("sglang-decode", self.PLAIN, None)


class TestRefusals:
    def test_nothing_known_says_what_was_looked_for_and_what_was_found(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, "time,batch\n1,2\n")
        assert "columns found: time, batch" in message
        assert all(known.name in message for known in LOG_FORMATS)

    def test_broken_lines_are_the_nearest_thing(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, "Decode batch, #running-req: many\n" * 3)
        assert "nearest to sglang-decode, but for decode line cut short or garbled (3, first at line 1)" in message

    def test_a_capture_list_alone_is_the_nearest_thing(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, "INFO - Capture sizes: [1, 2, 4]\n")
        assert "a capture list of 3 sizes, without the batches it served" in message

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            (b"", "is empty"),
            (b"\n \n", "is empty"),
            (b"PK\x03\x04" + bytes(range(256)) * 20, "is a zip archive"),
            (b"\xff\xfeD\x00", "is UTF-16 text"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
            (b'[{"a": 1}]\n', "JSON array"),
            (b"<html></html>\n", "HTML"),
            (gzip.compress(LOG.encode() * 500)[:-20], "damaged gzip data"),
        ],
    )
    def test_what_is_plainly_something_else_is_named(self, tmp_path: Path, content: bytes, part: str) -> None:
        assert part in refusal(tmp_path, content)

    def test_no_file_and_a_folder(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "none"):
            for format in (None, "prometheus", "steps"):
                with pytest.raises(TraceError):
                    read_observed(path, format=format)

    def test_an_unknown_format_gets_the_nearest_name(self, tmp_path: Path) -> None:
        assert "did you mean vllm-engine?" in refusal(tmp_path, LOG, format="vllm-engin")

    @pytest.mark.parametrize("name", ["steps", "lifecycle", "running", "vllm-engine", "azure"])
    def test_a_named_format_that_does_not_fit_is_refused(self, tmp_path: Path, name: str) -> None:
        refusal(tmp_path, "time,batch\n1,2\n", format=name)


def test_random_damage_never_raises_anything_but_a_trace_error(tmp_path: Path) -> None:
    source = (
        LOG + ACCESS + "| 41 | 48 | 7 | FULL | 187 |\nIteration(0): 1 context requests, 100 context tokens, 3 gen\n"
    )
    source += 'Avg prompt throughput: 0.0, Running: 9 reqs\nvllm:num_requests_running{a="b"} 4.0 1767225600000\n'
    draw = random.Random(5)
    for _ in range(300):
        content = bytearray(source.encode())
        for _ in range(draw.randint(1, 40)):
            content[draw.randrange(len(content))] = draw.choice(b'0159 |{}"[],:\n\r\\NaN-')
        try:
            seen = read(tmp_path, bytes(content[draw.randrange(200) :]))
        except TraceError:
            continue
        assert seen.total_weight > 0
        if seen.samples is not None:
            assert math.isclose(sum(sample.weight for sample in seen.samples), seen.total_weight)


def test_ten_megabytes_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    line = (
        "(EngineCore_DP0 pid=71) INFO 09-02 {:02d}:{:02d}:{:02d} [core.py:512] Iteration({}): 0 context requests, "
        "0 context tokens, {} generation requests, {} generation tokens, iteration elapsed time: 25.00 ms\n"
    )
    steps = 55_000
    with path.open("w") as file:
        for step in range(steps):
            second = step // 40
            file.write(line.format(second // 3600, second // 60 % 60, second % 60, step, 20 + step % 7, 20 + step % 7))
    assert path.stat().st_size > 10_000_000
    program = (
        "import resource, sys; from nanoserve_cli.observed.detect import read_observed as read\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); seen = read(sys.argv[1]); print(int(seen.total_weight), (peak() - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    weight, megabytes = map(int, done.stdout.split())
    assert weight == steps
    assert megabytes < 30
