"""What a command replays: a recorded trace or a synthetic one, fitted to a model's length, and what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nanoserve.engine import Engine
from nanoserve.memory import check_columns_fit
from nanoserve.workload import Workload
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.replay import Replay, replay_virtual
from nanoserve_cli.units import NS_PER_MS
from nanoserve_cli.workload.limits import Fitted, MaxLenRule, fit_to
from nanoserve_cli.workload.readers import Trace, read_trace
from nanoserve_cli.workload.resolve import resolve_trace
from nanoserve_cli.workload.synthetic import parse_length, synthetic_workload


@dataclass(frozen=True)
class TrafficOptions:
    """Where requests come from: `source` is a trace's path or key, else `num_requests` are drawn."""

    source: str | None = None
    format: str | None = None
    strict: bool = False
    trace_dir: str | None = None
    limit: int | None = None
    max_len: MaxLenRule = "reject"
    num_requests: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    prompt_len: str = "256"
    output_len: str = "64"
    seed: int = 0

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> TrafficOptions:
        """What a command's parameters of these names ask for."""
        asked = {field.name: params[field.name] for field in fields(cls)}
        return cls(**asked | {"trace_dir": None if asked["trace_dir"] is None else str(asked["trace_dir"])})

    @property
    def settings(self) -> str:
        """What is asked for beyond a whole trace as it was recorded, as `name=value` with blanks between."""
        asked = {name: getattr(self, name) for name in _SETTINGS}
        return " ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in asked.items()
            if value != getattr(TrafficOptions, name)
        )


_SETTINGS = ("format", "num_requests", "limit", "max_len", "request_rate", "burstiness", "prompt_len", "output_len")


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of a source, all of them. `trace` is None where they were drawn."""

    label: str
    workload: Workload
    trace: Trace | None

    def fitted(self, max_model_len: int, rule: MaxLenRule) -> Traffic:
        """Those that a model length admits. ValueError where there are none."""
        workload, fitted = fit_to(self.workload, max_model_len, rule)
        return Traffic(self.label, workload, fitted, self.trace)


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests ready to be replayed. `trace` is None where they were drawn."""

    label: str
    workload: Workload
    fitted: Fitted
    trace: Trace | None

    def notes(self) -> list[str]:
        """What a person should know of them, a line each: rows skipped, requests dropped or cut, coarse stamps."""
        lines: list[str] = []
        if self.trace is not None:
            lines += [
                f"{skipped.count:,} rows skipped: {skipped.reason} (first at line {skipped.first_line:,})"
                for skipped in self.trace.skipped
            ]
            if self.trace.out_of_order:
                lines.append(f"{self.trace.out_of_order:,} requests stood after a later one; sorted by time")
            if self.trace.stamps is not None and self.trace.stamps.warning:
                lines.append(self.trace.stamps.warning)
            lines += self.trace.notes
        if self.fitted.rejected:
            lines.append(f"{self.fitted.rejected:,} requests over max_model_len {self.fitted.max_model_len:,} left out")
        if self.fitted.prompts_cut or self.fitted.outputs_cut:
            lines.append(
                f"{self.fitted.prompts_cut:,} prompts and {self.fitted.outputs_cut:,} outputs cut to "
                f"max_model_len {self.fitted.max_model_len:,}"
            )
        return lines

    def account(self) -> dict[str, Any]:
        """Every row of the source and what became of it: they add up."""
        rows: dict[str, Any] = {"requests_replayed": len(self.workload), "over_max_model_len": self.fitted.rejected}
        rows |= {"prompts_cut": self.fitted.prompts_cut, "outputs_cut": self.fitted.outputs_cut}
        if self.trace is not None:
            rows |= {"rows_read": self.trace.rows_read, "rows_skipped": self.trace.rows_skipped}
            rows["skipped_by_reason"] = {skipped.reason: skipped.count for skipped in self.trace.skipped}
        return rows


def planned_replay(options: TrafficOptions, policy: Policy, block_size: int) -> Replay:
    """The traffic under a policy, planned on the default grid and not run. Raises what `load_traffic` raises."""
    traffic = load_traffic(options, policy.max_model_len)
    engine = Engine.build(None, policy.max_batch_size, policy.max_model_len, block_size=block_size, policy=policy)
    return replay_virtual(engine, traffic.workload, step_ns=25 * NS_PER_MS, seed=options.seed)


def load_traffic(options: TrafficOptions, max_model_len: int) -> Traffic:
    """The requests that `options` ask for, fitted to `max_model_len`.

    Raises what `read_requests` raises, and ValueError where no request fits.
    """
    return read_requests(options).fitted(max_model_len, options.max_len)


def read_requests(options: TrafficOptions) -> Requests:
    """The requests that `options` ask for, whatever their length.

    Raises TraceError for a source that is no trace, ValueError for options that do not go together or draw nothing.
    """
    if options.source is not None:
        trace = read_trace(
            resolve_trace(options.source, options.trace_dir),
            format=options.format,
            strict=options.strict,
            limit=options.limit,
            request_rate=options.request_rate,
            burstiness=options.burstiness,
            seed=options.seed,
        )
        return Requests(trace.key or trace.path, trace.workload, trace)
    if options.num_requests is None:
        raise ValueError("no traffic: give --from FILE or --num-requests N")
    check_columns_fit(options.num_requests)
    drawn = synthetic_workload(
        options.num_requests,
        request_rate=float("inf") if options.request_rate is None else options.request_rate,
        burstiness=options.burstiness,
        prompt_len=parse_length(options.prompt_len),
        output_len=parse_length(options.output_len),
        seed=options.seed,
    )
    return Requests("synthetic", drawn if options.limit is None else drawn.head(options.limit), None)
