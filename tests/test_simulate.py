"""The event simulator: on the grid it is the engine's replay, and by the shapes' own times a walk step by step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, capture_lists, policies

from nanoserve import CaptureList, DecodeBuckets, DecodePolicy, Engine, Segment, Shape, Steps, StepsRecorder, Workload
from nanoserve.simulate import Simulation, simulate
from nanoserve.step_time import FixedStep, LinearStepTime, StepTime, TableStepTime
from nanoserve_cli.replay import replay_virtual
from nanoserve_cli.traffic import TrafficOptions, load_traffic, planned_replay

TICK = FixedStep(10)


def traffic(*requests: tuple[int, int, int]) -> Workload:
    """Requests as `(arrival_ns, prompt_len, output_len)`."""
    return Workload(*(np.array(column, np.int64) for column in zip(*requests, strict=True)))


@st.composite
def workloads(draw: Callable[..., Any], max_model_len: int, *, tick: int = 1) -> Workload:
    """Up to 14 requests, many at once, some after everyone has left; arrivals are multiples of `tick`."""
    gap = st.one_of(st.just(0), st.integers(0, 12), st.integers(0, 150))
    now, requests = 0, []
    for _ in range(draw(st.integers(0, 14))):
        prompt = draw(st.integers(1, max_model_len))
        requests.append((now, prompt, draw(st.integers(1, min(12, max_model_len - prompt + 1)))))
        now += tick * draw(gap)
    return traffic(*requests) if requests else Workload(*(np.zeros(0, np.int64) for _ in range(3)))


# The grid.


@settings(max_examples=200)
@given(workloads(24), st.integers(1, 5), st.integers(1, 15))
def test_on_the_grid_it_is_the_engines_own_replay(workload: Workload, max_batch_size: int, step_ns: int) -> None:
    engine = Engine.build(None, max_batch_size, 24, block_size=4)
    replay = replay_virtual(engine, workload, step_ns=step_ns)
    run = simulate(workload, max_batch_size, step_time=FixedStep(step_ns))

    assert run.steps == replay.steps
    assert run.arrival_step.tolist() == [record.arrival_step for record in replay.requests]
    assert run.admitted_step.tolist() == [record.admitted_step for record in replay.requests]
    assert run.finished_step.tolist() == [record.finished_step for record in replay.requests]
    assert run.waiting_steps.tolist() == [record.queue_steps for record in replay.requests]


def test_a_request_prefills_in_the_tick_that_admits_it_and_decodes_from_the_next() -> None:
    run = simulate(traffic((0, 5, 4)), 1, step_time=TICK)
    assert list(run.steps) == [Segment(1, 1, 6, 3, 6 + 7 + 8)]
    assert (run.admitted_step.tolist(), run.finished_step.tolist(), run.span_ns) == ([0], [3], 40)


def test_a_row_is_free_in_the_tick_after_the_last_token() -> None:
    run = simulate(traffic((0, 5, 4), (0, 2, 3), (0, 9, 1)), 1, step_time=TICK)
    assert run.admitted_step.tolist() == [0, 4, 7]
    assert list(run.steps) == [Segment(1, 1, 6, 3, 21), Segment(5, 1, 3, 2, 7)]
    assert (run.mean_waiting_steps, run.max_waiting_steps) == (11 / 3, 7)


def test_a_request_that_comes_as_a_step_starts_is_in_it_and_a_nanosecond_later_in_the_next() -> None:
    for arrival, admitted in ((30, 3), (31, 4)):
        run = simulate(traffic((0, 5, 9), (arrival, 5, 9)), 2, step_time=TICK)
        assert run.arrival_step.tolist() == run.admitted_step.tolist() == [0, admitted]


def test_ties_are_served_in_their_order_and_share_a_step() -> None:
    run = simulate(traffic(*[(0, 4, 3)] * 5), 2, step_time=TICK)
    assert run.admitted_step.tolist() == [0, 0, 3, 3, 6]
    assert list(run.steps) == [Segment(1, 2, 5, 2, 22), Segment(4, 2, 5, 2, 22), Segment(7, 1, 5, 2, 11)]


def test_one_output_is_no_decode_step_yet_it_holds_a_row() -> None:
    run = simulate(traffic(*[(0, 4, 1)] * 5), 2, step_time=TICK)
    assert len(run.steps) == run.start_ns.size == 0
    assert run.admitted_step.tolist() == run.finished_step.tolist() == [0, 0, 1, 1, 2]
    assert (run.span_ns, run.cut_at(10), run.cut_at(11), run.cut_at(21)) == (30, 1, 2, 3)


@pytest.mark.parametrize("step_time", [TICK, LinearStepTime(10.0, 0.0, 0.0)])
def test_no_request_is_no_step(step_time: StepTime) -> None:
    run = simulate(Workload(*(np.zeros(0, np.int64) for _ in range(3))), 4, step_time=step_time)
    assert len(run.steps) == run.admitted_step.size == run.finished_step.size == run.start_ns.size == 0
    assert (run.span_ns, run.cut_at(0), run.cut_at(99), run.mean_waiting_steps, run.max_waiting_steps) == (0,) * 5


def test_idle_ticks_are_skipped_and_counted_on_the_grid_only() -> None:
    requests = traffic((0, 5, 2), (995, 5, 2))
    assert [s.start_step for s in simulate(requests, 1, step_time=TICK).steps] == [1, 101]
    by_shape = simulate(requests, 1, step_time=LinearStepTime(10.0, 0.0, 0.0))
    assert [s.start_step for s in by_shape.steps] == [1, 3]
    assert by_shape.start_ns.tolist() == [10, 1005]


def test_in_overload_the_rows_stay_full_and_the_queue_grows() -> None:
    """One request a tick, each holding one of two rows for four: two are served in the time that four arrive."""
    run = simulate(traffic(*[(10 * i, 3, 4) for i in range(400)]), 2, step_time=TICK)
    assert run.waiting_steps[:4].tolist() == [0, 0, 2, 2]
    assert np.array_equal(run.waiting_steps[2::2] - run.waiting_steps[:-2:2], np.full(199, 2))
    assert (run.max_waiting_steps, int(run.steps.rows.max()), run.clock.end_step) == (398, 2, 801)


def test_where_one_leaves_as_another_joins_only_what_a_recorder_sees_starts_a_segment() -> None:
    """In tick 3 a row of 5 tokens takes the place of one that would have 5: rows, width and live cells go on."""
    run = simulate(traffic((0, 20, 9), (0, 2, 3), (20, 4, 4)), 3, step_time=TICK)
    assert list(run.steps) == [Segment(1, 2, 21, 5, 24 + 26 + 28 + 30 + 32), Segment(6, 1, 26, 3, 81)]
    run = simulate(traffic((0, 20, 9), (0, 2, 3), (20, 5, 4)), 3, step_time=TICK)
    assert list(run.steps) == [
        Segment(1, 2, 21, 2, 24 + 26),
        Segment(3, 2, 23, 3, 29 + 31 + 33),
        Segment(6, 1, 26, 3, 81),
    ]


# By the shape: a slow and obvious simulation, one step at a time.


@dataclass
class Walk:
    """What the walk saw; `starts` and `ends` are the nanoseconds at which each step did."""

    steps: Steps
    arrival: list[int]
    admitted: list[int]
    finished: list[int]
    starts: list[int]
    ends: list[int]


def walk(workload: Workload, max_batch_size: int, step_ns: Callable[[int, int], int]) -> Walk:
    """`step_ns(rows, width)` is how long a step lasts, 0 rows where nobody decodes."""
    recorder = StepsRecorder()
    columns = (workload.arrival_ns, workload.prompt_len, workload.output_len)
    requests = list(zip(*(column.tolist() for column in columns), strict=True))
    arrival, admitted, finished = ([-1] * len(requests) for _ in range(3))
    starts: list[int] = []
    ends: list[int] = []
    upcoming, waiting, running = deque(range(len(requests))), deque[int](), list[int]()
    made = [0] * len(requests)
    now = step = 0
    while upcoming or waiting or running:
        if not waiting and not running:
            now = max(now, requests[upcoming[0]][0])
        while upcoming and requests[upcoming[0]][0] <= now:
            arrival[upcoming[0]] = step
            waiting.append(upcoming.popleft())
        decoding = list(running)
        while waiting and len(running) < max_batch_size:
            admitted[waiting[0]] = step
            running.append(waiting.popleft())
        contexts = [requests[r][1] + made[r] for r in decoding]
        if contexts:
            recorder.add(len(contexts), max(contexts), sum(contexts), step=step)
        starts.append(now)
        now += step_ns(len(contexts), max(contexts, default=0))
        ends.append(now)
        for r in list(running):
            made[r] += 1
            if made[r] == requests[r][2]:
                finished[r] = step
                running.remove(r)
        step += 1
    return Walk(recorder.steps(), arrival, admitted, finished, starts, ends)


def duration(step_time: StepTime, policy: DecodePolicy | CaptureList | None) -> Callable[[int, int], int]:
    """How long a step of `rows` by `width` lasts, with no bucket remembered from the step before."""

    def ns(rows: int, width: int) -> int:
        if not rows:
            return step_time.ns(0, 0)
        shape: Shape | None = Shape(rows, width)
        if isinstance(policy, CaptureList):
            shape = policy.find(rows, width) or shape
        elif policy is not None:
            shape = policy.shape_for(rows, width)
        assert shape is not None
        return step_time.ns(shape.rows, shape.cells)

    return ns


def check_equals_the_walk(run: Simulation, slow: Walk) -> None:
    assert run.steps == slow.steps
    assert run.arrival_step.tolist() == slow.arrival
    assert run.admitted_step.tolist() == slow.admitted
    assert run.finished_step.tolist() == slow.finished
    every = np.arange(len(slow.starts))
    assert run.clock.end_step == every.size
    assert run.clock.start_of(every).tolist() == slow.starts
    assert run.clock.end_of(every).tolist() == slow.ends
    assert run.start_ns.tolist() == [slow.starts[segment.start_step] for segment in slow.steps]
    assert run.span_ns == (slow.ends[-1] if slow.ends else 0)
    for moment in {moment + j for moment in (0, *slow.starts, *slow.ends) for j in (-1, 0, 1)}:
        assert run.cut_at(moment) == sum(start < moment for start in slow.starts)


step_times = st.one_of(
    st.builds(LinearStepTime, st.integers(0, 9), st.floats(0, 3), st.floats(0, 0.4)),
    st.dictionaries(st.integers(1, MAX_ROWS), st.integers(0, 30), min_size=1).map(
        lambda table: TableStepTime(tuple(sorted(table)), tuple(table[rows] for rows in sorted(table)))
    ),
)


@settings(max_examples=200)
@given(st.data(), step_times)
def test_under_a_policy_it_is_the_walk_step_by_step(data: st.DataObject, step_time: StepTime) -> None:
    policy = data.draw(policies())
    workload = data.draw(workloads(policy.max_model_len))
    run = simulate(workload, policy.max_batch_size, step_time=step_time, policy=policy)
    check_equals_the_walk(run, walk(workload, policy.max_batch_size, duration(step_time, policy)))


@settings(max_examples=200)
@given(st.one_of(st.none(), capture_lists()), workloads(MAX_WIDTH), st.integers(1, MAX_ROWS), step_times)
def test_open_or_off_a_capture_list_a_step_is_timed_as_its_own_rectangle(
    captured: CaptureList | None, workload: Workload, max_batch_size: int, step_time: StepTime
) -> None:
    run = simulate(workload, max_batch_size, step_time=step_time, policy=captured)
    check_equals_the_walk(run, walk(workload, max_batch_size, duration(step_time, captured)))


@settings(max_examples=200)
@given(workloads(MAX_WIDTH, tick=10), st.integers(1, 5), st.booleans())
def test_a_step_time_that_ignores_the_shape_is_the_grid_where_arrivals_lie_on_it(
    workload: Workload, max_batch_size: int, bucketed: bool
) -> None:
    policy = DecodeBuckets(max_batch_size, MAX_WIDTH, width_multiple=16) if bucketed else None
    grid = simulate(workload, max_batch_size, step_time=TICK, policy=policy)
    by_shape = simulate(workload, max_batch_size, step_time=LinearStepTime(10.0, 0.0, 0.0), policy=policy)
    for name in ("rows", "width", "steps", "live_cells"):
        assert np.array_equal(getattr(by_shape.steps, name), getattr(grid.steps, name))
    assert by_shape.start_ns.tolist() == grid.start_ns.tolist()
    assert by_shape.waiting_steps.tolist() == grid.waiting_steps.tolist()
    assert by_shape.span_ns == grid.span_ns


@given(workloads(MAX_WIDTH), st.integers(1, 5), st.integers(1, 15))
def test_the_grids_clock_is_the_tick_times_its_length(workload: Workload, max_batch_size: int, step_ns: int) -> None:
    run = simulate(workload, max_batch_size, step_time=FixedStep(step_ns))
    assert run.start_ns.tolist() == (run.steps.start_step * step_ns).tolist()
    assert run.span_ns == step_ns * (int(run.finished_step.max(initial=-1)) + 1)
    for moment in range(0, run.span_ns, 7):
        assert run.cut_at(moment) == -(-moment // step_ns)
    assert run.cut_at(run.span_ns + 1) == run.clock.end_step


def test_a_step_lasts_what_its_shape_costs_and_a_prefill_alone_the_constant() -> None:
    """Widths 6, 7 and 8 run as 8 columns, 9 and 10 as 16: 100, then 3 of 100 + 8, then 2 of 100 + 16."""
    policy = DecodeBuckets(1, 32, widths=(8, 16, 32))
    run = simulate(traffic((0, 5, 6)), 1, step_time=LinearStepTime(100.0, 0.0, 1.0), policy=policy)
    assert list(run.steps) == [Segment(1, 1, 6, 5, 40)]
    assert (run.start_ns.tolist(), run.span_ns) == ([100], 100 + 3 * 108 + 2 * 116)
    assert run.clock.start_of(np.arange(6)).tolist() == [0, 100, 208, 316, 424, 540]


@pytest.mark.parametrize(
    ("gap_ns", "own", "fine", "coarse"),
    [
        (3_000, (606_123, 549, 3, 0), (606_688, 521, 3, 0), (631_936, 207, 7, 3)),
        (2_000, (407_786, 350, 5, 0), (408_048, 317, 6, 0), (625_840, 205, 8, 66)),
    ],
)
def test_padding_lengthens_the_steps_and_so_the_rows_and_the_queue(
    gap_ns: int, own: tuple[int, ...], fine: tuple[int, ...], coarse: tuple[int, ...]
) -> None:
    """200 requests, 1 us a step and 1 ns a cell: (end in ns, decode steps, most rows, longest wait) by the policy."""
    requests = traffic(*[(gap_ns * i, 20 + i % 30, 8) for i in range(200)])

    def figures(policy: DecodePolicy | None) -> tuple[int, ...]:
        run = simulate(requests, 8, step_time=LinearStepTime(1_000.0, 0.0, 1.0), policy=policy)
        assert int(run.steps.rows @ run.steps.steps) == 200 * 7
        return run.span_ns, run.steps.total_steps, int(run.steps.rows.max()), run.max_waiting_steps

    assert figures(None) == own
    assert figures(DecodeBuckets(8, 256, width_multiple=16)) == fine
    assert figures(DecodeBuckets(8, 256, rows=(8,), widths=(256,))) == coarse


# What is refused.


@pytest.mark.parametrize("max_batch_size", [0, -3])
def test_a_batch_has_a_row(max_batch_size: int) -> None:
    with pytest.raises(ValueError, match=f"max_batch_size must be at least 1, got {max_batch_size}"):
        simulate(traffic((0, 5, 4)), max_batch_size, step_time=TICK)


@pytest.mark.parametrize("step_time", [TICK, LinearStepTime(10.0, 1.0, 1.0)])
def test_a_policy_smaller_than_the_traffic_is_refused_and_what_it_just_holds_is_not(step_time: StepTime) -> None:
    requests = traffic(*[(0, 60, 5)] * 3)
    simulate(requests, 3, step_time=step_time, policy=DecodeBuckets(3, 64))
    simulate(requests, 8, step_time=step_time, policy=DecodeBuckets(3, 64))
    with pytest.raises(ValueError, match="3 rows are outside this policy: it covers 1 to 2"):
        simulate(requests, 3, step_time=step_time, policy=DecodeBuckets(2, 64))
    with pytest.raises(ValueError, match="width 64 is outside this policy: it covers 1 to 63"):
        simulate(requests, 3, step_time=step_time, policy=DecodeBuckets(3, 63))


def test_a_step_time_of_nothing_is_refused() -> None:
    class Instant:
        def ns(self, graph_rows: int, graph_cells: int) -> int:
            return 10 - 10 * (graph_rows > 1)

        def render(self) -> str:
            return "instant"

    with pytest.raises(ValueError, match="a step must last at least 1 ns, not 0 as one of 2 rows by 6 does"):
        simulate(traffic((0, 5, 4), (0, 5, 4)), 2, step_time=Instant())


@pytest.mark.parametrize(
    "step_time", [FixedStep(2**62), LinearStepTime(2.0**62, 0.0, 0.0), LinearStepTime(1e308, 1e308, 0.0)]
)
@pytest.mark.parametrize("outputs", [2, 3])
def test_a_run_longer_than_int64_nanoseconds_is_refused(step_time: StepTime, outputs: int) -> None:
    with pytest.raises(ValueError, match="longer than 2\\*\\*63 ns"):
        simulate(traffic((0, 5, outputs)), 1, step_time=step_time)


# Recorded traffic and large traffic.

FOLDER = os.environ.get("NANOSERVE_TRACES")
recorded = pytest.mark.skipif(
    not FOLDER or not Path(FOLDER).is_dir(), reason="NANOSERVE_TRACES names no folder of recorded traces"
)
AN_HOUR = TrafficOptions(source="azure2023-conv")


@recorded
def test_an_hour_of_recorded_conversations_is_simulated_in_under_a_second() -> None:
    hour = load_traffic(AN_HOUR, 8192)
    assert hour.fitted.rejected == 1
    start = time.process_time()
    run = simulate(hour.workload, 256, step_time=FixedStep(25_000_000))
    assert time.process_time() - start < 1.0
    assert (run.steps.total_steps, len(run.steps)) == (140_346, 33_412)
    assert (int(run.steps.open_cells_each.sum()), int(run.steps.live_cells.sum())) == (13_028_995_946, 4_991_765_271)


@recorded
@pytest.mark.slow
def test_an_hour_of_recorded_conversations_is_what_the_engine_replays() -> None:
    policy = DecodeBuckets(256, 8192)
    replay = planned_replay(AN_HOUR, policy, 16)
    run = simulate(load_traffic(AN_HOUR, 8192).workload, 256, step_time=FixedStep(25_000_000), policy=policy)
    assert run.steps == replay.steps
    assert run.admitted_step.tolist() == [record.admitted_step for record in replay.requests]
    assert run.finished_step.tolist() == [record.finished_step for record in replay.requests]


BUSY = """
from pathlib import Path
from time import process_time

import numpy as np

from nanoserve import DecodeBuckets, Workload
from nanoserve.simulate import simulate
from nanoserve.step_time import parse_step_time

rng = np.random.default_rng(0)
count = 1_400_000
arrival = np.cumsum(rng.exponential(1e9 / 20, count)).astype(np.int64)
prompts, outputs = (
    np.clip(rng.lognormal(np.log(mean) - 0.5, 1.0, count), 1, most).astype(np.int64)
    for mean, most in ((600, 6000), (250, 2192))
)
workload = Workload(arrival - arrival[0], prompts, outputs)
start = process_time()
run = simulate(workload, 256, step_time=parse_step_time({step_time!r}), policy=DecodeBuckets(256, 8192))
seconds = process_time() - start
assert int((run.steps.rows * run.steps.steps).sum()) == int((outputs - 1).sum())
# Not ru_maxrss: a child's begins with its parent's, which may hold torch.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc to read the peak memory from")
@pytest.mark.parametrize("step_time", ["25", "linear:15,0.03,0.000012"])
def test_a_million_requests_take_half_a_minute_and_a_gibibyte_at_most(step_time: str) -> None:
    code = BUSY.format(step_time=step_time)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, mib = map(float, done.stdout.split())
    assert seconds < 30
    assert mib < 1024
