"""What `nanoserve bench` computes: lockstep runs or a replayed workload, open against bucketed, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nanoserve.prefill import prefill_padding_waste
from nanoserve.workload import Workload
from nanoserve_cli.compare import ClockSettings, Comparison, EngineSettings, compare
from nanoserve_cli.latency import goodput, latencies_ms, rates, schedule_delay_ms, throughput
from nanoserve_cli.planning import PlanTimes, time_planning
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.records import count_columns, time_columns
from nanoserve_cli.stats import Percentiles, percentiles
from nanoserve_cli.traffic import Traffic
from nanoserve_cli.units import NS_PER_MS, NS_PER_S

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class BenchRun:
    """One comparison with everything that is shown of it. `traffic` is None for a lockstep run."""

    label: str
    comparison: Comparison
    planning: PlanTimes | None
    traffic: Traffic | None
    clock: ClockSettings
    goodput_ms: dict[str, float]
    runner: str

    def row(self) -> dict[str, Any]:
        """The count and time columns."""
        return count_columns(self.comparison) | time_columns(self.comparison, self.planning)

    def fidelity(self) -> dict[str, Any]:
        """How the traffic was replayed: rates, delays, waits, and what the schedule did."""
        replay = self.comparison.bucketed.replay
        if self.clock.kind == "real":
            rate, delay = rates(replay), schedule_delay_ms(replay)
        else:
            rate, delay = self._virtual_rates(), self._grid_delay_ms()
        waits = [record.queue_steps for record in replay.requests if record.queue_steps is not None]
        service = [record.service_steps for record in replay.requests if record.service_steps is not None]
        return {
            "clock": self.clock.kind,
            "step_ms": self.clock.step_ns / NS_PER_MS if self.clock.kind == "virtual" else None,
            "asked_rate_per_s": rate and rate["asked_per_s"],
            "achieved_rate_per_s": rate and rate["achieved_per_s"],
            "schedule_delay_ms": delay,
            "queue_steps": percentiles(waits),
            "service_steps": percentiles(service),
            "prefill_padding_waste": prefill_padding_waste(replay.prefills),
            "compaction_moves": replay.moves,
            "prefix_steps_without_compaction": replay.prefix_steps_without_compaction,
        }

    def latency(self) -> dict[str, dict[str, Percentiles]]:
        """Each mode's latencies; empty under the virtual clock."""
        if self.clock.kind != "real":
            return {}
        modes = {"open": self.comparison.open.replay, "bucketed": self.comparison.bucketed.replay}
        return {mode: latencies_ms(replay) for mode, replay in modes.items()}

    def throughput(self) -> dict[str, dict[str, float]]:
        """Each mode's throughput, and its goodput where limits were given; empty under the virtual clock."""
        if self.clock.kind != "real":
            return {}
        modes = {"open": self.comparison.open.replay, "bucketed": self.comparison.bucketed.replay}
        return {
            mode: throughput(replay)
            | ({"goodput_requests_per_s": goodput(replay, self.goodput_ms)} if self.goodput_ms else {})
            for mode, replay in modes.items()
        }

    def document(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        bucketed, partings = self.comparison.bucketed, self.comparison.partings
        return {
            "workload": self.label,
            "policy": self.comparison.policy.render(),
            "max_batch_size": self.comparison.policy.max_batch_size,
            "max_model_len": self.comparison.policy.max_model_len,
            **self.row(),
            "warm_up_seconds": bucketed.warm_up_seconds,
            "inert_rows_checked": bucketed.inert_rows and bucketed.inert_rows + (self.comparison.open.inert_rows or 0),
            "partings": partings and asdict(partings),
            "eager_partings": self.comparison.eager_partings and asdict(self.comparison.eager_partings),
            "planning": self.planning and asdict(self.planning),
            "steps_per_shape": {str(shape): steps for shape, steps in self.comparison.cost.steps_per_shape},
            "accounting": self.traffic.account() if self.traffic else None,
            "notes": self.traffic.notes() if self.traffic else [],
            "replay": _plain(self.fidelity()),
            "latency_ms": _plain(self.latency()),
            "throughput": self.throughput(),
        }

    def _due_ns(self) -> np.ndarray:
        replay = self.comparison.bucketed.replay
        return np.array([record.arrival_ns for record in replay.requests], dtype=np.int64)

    def _grid_delay_ms(self) -> Percentiles | None:
        due = self._due_ns()
        return percentiles((-due % self.clock.step_ns) / NS_PER_MS)

    def _virtual_rates(self) -> dict[str, float] | None:
        due = self._due_ns()
        ticks = -(-due // self.clock.step_ns) * self.clock.step_ns
        if due.size < 2 or due[-1] == 0 or ticks[-1] == ticks[0]:
            return None
        spans = {"asked_per_s": int(due[-1]), "achieved_per_s": int(ticks[-1] - ticks[0])}
        return {name: (due.size - 1) * NS_PER_S / span for name, span in spans.items()}


def bench_lockstep(
    steps: Sequence[int],
    *,
    rows: int,
    prompt_len: int,
    policy_for: Callable[[int], Policy],
    engine: EngineSettings,
    clock: ClockSettings,
    progress: Progress | None = None,
) -> list[BenchRun]:
    """`rows` equal requests decoding together, once for each number of `steps`.

    `policy_for(prompt_len + steps)` makes each run's policy. Raises what `compare` raises.
    """
    policies = [policy_for(prompt_len + count) for count in steps]
    for count, policy in zip(steps, policies, strict=True):
        _check_fits(rows, prompt_len, count, policy)
    runs = []
    for count, policy in zip(steps, policies, strict=True):
        comparison = compare(
            Workload.lockstep(rows, prompt_len, count), replace(engine, policy=policy), clock, progress=progress
        )
        planning = time_planning(rows, prompt_len, count, policy, engine.block_size)
        runs.append(BenchRun(f"lockstep-{count}", comparison, planning, None, clock, {}, engine.runner.runner))
    return runs


def bench_traffic(
    traffic: Traffic,
    *,
    engine: EngineSettings,
    clock: ClockSettings,
    goodput_ms: dict[str, float],
    progress: Progress | None = None,
) -> BenchRun:
    """One workload, replayed open and bucketed. Raises what `compare` raises."""
    comparison = compare(traffic.workload, engine, clock, progress=progress)
    return BenchRun(traffic.label, comparison, None, traffic, clock, goodput_ms, engine.runner.runner)


def _check_fits(rows: int, prompt_len: int, steps: int, policy: Policy) -> None:
    if rows > policy.max_batch_size:
        raise ValueError(f"--rows {rows} do not fit {policy.max_batch_size} rows of cache: raise --max-batch")
    if prompt_len + steps > policy.max_model_len:
        raise ValueError(
            f"a prompt of {prompt_len} and {steps} steps need {prompt_len + steps} slots, max_model_len is "
            f"{policy.max_model_len}: raise --max-model-len"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Percentiles):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value
