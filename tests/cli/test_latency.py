"""What requests waited for: from when they were due, each metric by its definition, and none of zero samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nanoserve.steps import Steps
from nanoserve_cli.latency import goodput, latencies_ms, parse_goodput, rates, schedule_delay_ms, throughput
from nanoserve_cli.replay import Replay, RequestRecord

MS = 1_000_000


def record(
    index: int = 0, *, due: int | None = 0, late: int = 0, tokens: tuple[int, ...] = (), **more: Any
) -> RequestRecord:
    """A finished request; its times in milliseconds."""
    made = RequestRecord(index, 0, 10, max(1, len(tokens)), "finished", "length", len(tokens))
    made.due_ns = None if due is None else due * MS
    made.offered_ns = None if due is None else (due + late) * MS
    made.token_ns = [t * MS for t in tokens]
    for name, value in more.items():
        setattr(made, name, value)
    return made


def replay(*records: RequestRecord, seconds: float = 2.0) -> Replay:
    none = np.array([])
    return Replay(records, ((),) * len(records), Steps.of([]), {}, (), 0, 0, 0, none, none, 0.0, seconds)


class TestLatencies:
    def test_every_metric_of_one_request(self) -> None:
        """Due at 100, tokens at 150, 160, 190: TTFT 50, ITL 10 and 30, TPOT 40 / 2, E2EL 90."""
        found = latencies_ms(replay(record(due=100, tokens=(150, 160, 190))))
        assert {name: (p.samples, p.mean) for name, p in found.items()} == {
            "ttft": (1, 50.0),
            "itl": (2, 20.0),
            "tpot": (1, 20.0),
            "e2el": (1, 90.0),
        }

    def test_times_count_from_when_it_was_due_and_not_from_when_it_was_offered(self) -> None:
        """A replay that lags 40 ms shows its users 40 ms more, not less."""
        found = latencies_ms(replay(record(due=0, late=40, tokens=(50,))))
        assert found["ttft"].p50 == 50.0

    def test_one_token_gives_neither_itl_nor_tpot(self) -> None:
        assert set(latencies_ms(replay(record(tokens=(5,))))) == {"ttft", "e2el"}

    def test_no_request_gives_no_metric(self) -> None:
        assert latencies_ms(replay()) == {}

    def test_a_request_that_did_not_finish_has_no_end_to_end_latency(self) -> None:
        found = latencies_ms(replay(record(tokens=(5, 9), outcome="failed")))
        assert set(found) == {"ttft", "itl", "tpot"}

    def test_tpot_weighs_requests_and_itl_weighs_gaps(self) -> None:
        """One request of one gap of 100, one of ten gaps of 1: TPOT means 50.5, ITL 10."""
        found = latencies_ms(replay(record(tokens=(0, 100)), record(1, tokens=tuple(range(11)))))
        assert found["tpot"].mean == 50.5
        assert found["itl"].mean == pytest.approx(110 / 11)

    def test_a_virtual_replay_is_refused(self) -> None:
        with pytest.raises(ValueError, match="real clock"):
            latencies_ms(replay(record(due=None, tokens=(5,))))


class TestThroughput:
    def test_prefill_tokens_and_the_prompt_count_where_their_names_say_so(self) -> None:
        found = throughput(replay(record(tokens=(1, 2, 3)), record(1, tokens=(1,)), seconds=2.0))
        assert found == {"requests_per_s": 1.0, "output_tokens_per_s": 2.0, "total_tokens_per_s": 12.0}

    def test_unfinished_requests_count_nowhere(self) -> None:
        found = throughput(replay(record(tokens=(1, 2)), record(1, tokens=(1,), outcome="rejected"), seconds=1.0))
        assert found == {"requests_per_s": 1.0, "output_tokens_per_s": 2.0, "total_tokens_per_s": 12.0}


class TestGoodput:
    def test_every_limit_has_to_be_met_and_the_limit_itself_meets_it(self) -> None:
        """TTFT 50 and TPOT 20 exactly; a second request misses TPOT by one."""
        run = replay(record(tokens=(50, 70)), record(1, tokens=(50, 71)), seconds=1.0)
        assert goodput(run, {"ttft": 50, "tpot": 20}) == 1.0
        assert goodput(run, {"ttft": 50}) == 2.0
        assert goodput(run, {"ttft": 49}) == 0.0

    def test_a_request_of_one_token_meets_any_tpot(self) -> None:
        assert goodput(replay(record(tokens=(5,)), seconds=1.0), {"tpot": 0.001}) == 1.0

    def test_a_failed_request_is_never_good(self) -> None:
        assert goodput(replay(record(tokens=(1, 2), outcome="failed"), seconds=1.0), {"ttft": 500}) == 0.0

    def test_limits_as_vllm_writes_them(self) -> None:
        assert parse_goodput(["ttft:500", "tpot:50.5", "e2el:1e3"]) == {"ttft": 500.0, "tpot": 50.5, "e2el": 1000.0}

    @pytest.mark.parametrize(
        "pair", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-5", "ttft:nan", "ttft:inf", "itl:5", "TTFT:5", ":5", "x:5"]
    )
    def test_anything_else_is_named(self, pair: str) -> None:
        with pytest.raises(ValueError, match="is none of ttft:MS, tpot:MS, e2el:MS with MS above 0") as refused:
            parse_goodput([pair])
        assert repr(pair) in str(refused.value)

    def test_one_metric_twice_is_refused(self) -> None:
        with pytest.raises(ValueError, match="ttft"):
            parse_goodput(["ttft:500", "ttft:50"])


class TestFidelity:
    def test_schedule_delay_is_the_replays_own_lag(self) -> None:
        found = schedule_delay_ms(replay(record(late=0), record(1, due=10, late=4)))
        assert found is not None
        assert (found.samples, found.mean) == (2, 2.0)
        assert schedule_delay_ms(replay()) is None

    def test_rates_are_gaps_over_their_span(self) -> None:
        """Three requests 500 ms apart are 2 a second; the last offered 1 s late makes it 1."""
        run = replay(record(), record(1, due=500), record(2, due=1000, late=1000))
        assert rates(run) == {"asked_per_s": 2.0, "achieved_per_s": 1.0}

    @pytest.mark.parametrize("due", [(), (0,), (0, 0)])
    def test_a_rate_needs_two_moments(self, due: tuple[int, ...]) -> None:
        assert rates(replay(*(record(i, due=d, late=i) for i, d in enumerate(due)))) is None
