"""The workload `bench`: its options are the command's own, read by the command's own parser.

All that a check knows of `nanoserve bench` is in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoserve.decode import RunnerOptions
from nanoserve_cli import options as opt
from nanoserve_cli.bench import BenchRun, bench_lockstep, bench_traffic
from nanoserve_cli.check.command_options import parsed
from nanoserve_cli.check.workloads import BudgetError, Point, Sample, trace_identity
from nanoserve_cli.columns import Column
from nanoserve_cli.commands.bench import TRAFFIC_MAX_MODEL_LEN, bench, check_flags, runs_document, usable_backend
from nanoserve_cli.compare import ClockSettings, EngineSettings
from nanoserve_cli.latency import parse_goodput
from nanoserve_cli.model_choice import choose_model
from nanoserve_cli.policy_file import Policy, chosen_policy
from nanoserve_cli.traffic import TrafficOptions, load_traffic
from nanoserve_cli.units import NS_PER_MS

NEW_STORAGE = Column("new_storage", "count", "Int64", "tensors an audited run made outside its traced regions", "lower")
NOT_OPTIONS = frozenset({"json_", "out_dir", "quiet", "trace_dir"})
"""Flags of the command that say what becomes of a result, or where traces lie, which `check` is told itself."""


class BenchWorkload:
    """A bench. Raises BudgetError for options that it has not, or that do nothing together."""

    def __init__(self, options: Mapping[str, Any], trace_dir: Path | None) -> None:
        context = parsed("bench", bench, options, NOT_OPTIONS)
        self._asked = asked = context.params
        self._trace_dir = trace_dir
        self._has_traffic = asked["source"] is not None or asked["num_requests"] is not None
        try:
            check_flags(
                context,
                has_traffic=self._has_traffic,
                host_only=asked["host_only"],
                clock=asked["clock"],
                runner=asked["runner"],
            )
            self._steps = opt.parse_list("8,64,128,512" if asked["steps"] is None else asked["steps"], "--steps")
            step_ns = opt.milliseconds(asked["step_ms"], "--step-ms")
            self._clock = ClockSettings(asked["clock"], step_ns, asked["speedup"], asked["seed"])
            self._goodput_ms = parse_goodput((asked["goodput"] or "").split())
        except ValueError as error:
            raise BudgetError(f"bench: {error}") from None

    def points(self) -> list[Point]:
        """One a run: each number of lockstep steps, or the traffic."""
        if self._has_traffic:
            source, sha256 = self._asked["source"], None
            label = "synthetic"
            if source is not None:
                label, sha256 = trace_identity(source, self._trace_dir)
            return [self._point(label, self._policy(TRAFFIC_MAX_MODEL_LEN), sha256)]
        prompt = self._asked["prompt"] or 16
        return [self._point(f"lockstep-{steps}", self._policy(prompt + steps), None) for steps in self._steps]

    def run(self) -> list[Sample]:
        """Every run, in that order."""
        asked = self._asked
        choice = choose_model(
            None if asked["host_only"] else asked["model"],
            device=asked["device"],
            dtype=asked["dtype"],
            seed=asked["seed"],
        )
        compiles = asked["runner"] == "compiled" or asked["graph_body"] == "compiled"
        backend = usable_backend(asked["compile_backend"], choice) if compiles else asked["compile_backend"]
        runner = RunnerOptions(asked["runner"], backend, asked["dynamic"], asked["graph_backend"], asked["graph_body"])
        engine = EngineSettings(
            policy=self._policy(TRAFFIC_MAX_MODEL_LEN),
            decoder=choice.decoder,
            runner=runner,
            **{name: asked[name] for name in ("block_size", "num_blocks", "check_inert", "allow_partial", "audit")},
        )
        runs = self._runs(engine)
        document = runs_document(runs, choice, engine, self._clock, self._ladders)
        whole = document | document["settings"]
        return [self._sample(whole | entry) for entry in document["runs"]]

    def _runs(self, engine: EngineSettings) -> list[BenchRun]:
        asked = self._asked
        if self._has_traffic:
            options = TrafficOptions.of({**asked, "trace_dir": self._trace_dir})
            traffic = load_traffic(options, engine.policy.max_model_len)
            return [bench_traffic(traffic, engine=engine, clock=self._clock, goodput_ms=self._goodput_ms)]
        return bench_lockstep(
            self._steps,
            rows=asked["rows"] or 3,
            prompt_len=asked["prompt"] or 16,
            policy_for=self._policy,
            engine=engine,
            clock=self._clock,
        )

    def _sample(self, row: Mapping[str, Any]) -> Sample:
        """An audit raises at the first storage that is made: a run that ended under one made none."""
        if self._asked["audit"]:
            return Sample(row["workload"], {**row, NEW_STORAGE.name: 0})
        general = "host_only runs no step" if self._asked["host_only"] else "not of this runner"
        return Sample(row["workload"], row, absent={"": general, NEW_STORAGE.name: "add audit: true"})

    def _policy(self, default_max_model_len: int) -> Policy:
        names = {"max_batch": "max_batch_size", "max_model_len": "max_model_len", "width_multiple": "width_multiple"}
        limits = {to: self._asked[name] for name, to in names.items()}
        return chosen_policy(self._asked["policy"], **limits, default_max_model_len=default_max_model_len)

    @property
    def _ladders(self) -> dict[str, str]:
        if self._asked["policy"] is not None:
            return {}
        return {"rows_ladder": "pow2", "width_ladder": f"multiple:{self._asked['width_multiple'] or 128}"}

    def _point(self, label: str, policy: Policy, sha256: str | None) -> Point:
        is_virtual = self._clock.kind == "virtual"
        columns = {
            "workload": label,
            "seed": self._clock.seed,
            "runner": "host-only" if self._asked["host_only"] else self._asked["runner"],
            "max_batch_size": policy.max_batch_size,
            "max_model_len": policy.max_model_len,
            "policy": policy.render(),
            **self._ladders,
            "clock": self._clock.kind,
            "step_time": f"{self._clock.step_ns / NS_PER_MS:g}" if is_virtual else None,
        }
        return Point(label, columns, sha256)
