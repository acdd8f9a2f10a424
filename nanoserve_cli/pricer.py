"""Points of a sweep priced: each traffic simulated once for a pair of limits, every policy from its segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanoserve.pricing import RunCost, StepsIndex
from nanoserve.simulate import simulate
from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve.workload import Workload
from nanoserve_cli.grid import Lockstep, Point, SweepSpec
from nanoserve_cli.traffic import Requests, Traffic, TrafficOptions, read_requests

Asked = Lockstep | TrafficOptions


@dataclass(frozen=True)
class Priced:
    """One point and what it costs, exactly. All requests of the traffic run and finish: the clock is virtual."""

    point: Point
    traffic: Traffic
    cost: RunCost

    @property
    def workload(self) -> str:
        """The traffic in words, as it was found."""
        return self.point.workload(self.traffic.label)

    @property
    def trace_sha256(self) -> str | None:
        """Of the trace's file; None where requests were drawn."""
        return None if self.traffic.trace is None else self.traffic.trace.sha256


class Pricer:
    """Prices points, remembering what they share: requests, those that fit a model length, and their steps."""

    def __init__(self) -> None:
        self._requests: dict[Asked, Requests] = {}
        self._traffic: dict[tuple[Asked, int], Traffic] = {}
        self._indices: dict[tuple[Asked, int, int, str], StepsIndex] = {}

    def traffic(self, asked: Asked, max_model_len: int) -> Traffic:
        """The requests, fitted to a model length. Raises what `load` raises."""
        key = (asked, max_model_len)
        if key not in self._traffic:
            if asked not in self._requests:
                self._requests[asked] = _requests(asked)
            self._traffic[key] = _fitted(asked, self._requests[asked], max_model_len)
        return self._traffic[key]

    def price(self, point: Point) -> Priced:
        """What a point costs. Raises what `load` raises, ValueError, naming the point, for a run that is too long."""
        traffic = self.traffic(point.traffic, point.max_model_len)
        try:
            return Priced(point, traffic, self._cost(point, traffic.workload))
        except ValueError as error:
            raise ValueError(f"{point.label}: {error}") from None

    def _cost(self, point: Point, workload: Workload) -> RunCost:
        """Under a step time that looks at the shape, the traffic is simulated anew for every policy."""
        policy, step_time = point.policy(), parse_step_time(point.step_time)
        if not isinstance(step_time, FixedStep):
            steps = simulate(workload, point.max_batch_size, step_time=step_time, policy=policy).steps
            return StepsIndex(steps).price(policy)
        key = (point.traffic, point.max_batch_size, point.max_model_len, point.step_time)
        if key not in self._indices:
            self._indices[key] = StepsIndex(simulate(workload, point.max_batch_size, step_time=step_time).steps)
        return self._indices[key].price(policy)


def price_grid(spec: SweepSpec, report: Callable[[int], None]) -> list[Priced]:
    """Every point of a sweep and its price, in the grid's order. Raises what `Pricer.price` raises."""
    pricer = Pricer()
    priced = []
    for point in spec.points:
        priced.append(pricer.price(point))
        report(len(priced))
    return priced


def load(asked: Asked, max_model_len: int) -> Traffic:
    """The requests of a traffic. Raises what `load_traffic` raises, naming the traffic where none of it fits."""
    return _fitted(asked, _requests(asked), max_model_len)


def _requests(asked: Asked) -> Requests:
    if isinstance(asked, TrafficOptions):
        return read_requests(asked)
    return Requests(asked.label, Workload.lockstep(asked.rows, asked.prompt, asked.steps), None)


def _fitted(asked: Asked, requests: Requests, max_model_len: int) -> Traffic:
    try:
        return requests.fitted(max_model_len, asked.max_len if isinstance(asked, TrafficOptions) else "reject")
    except ValueError as error:
        raise ValueError(f"{requests.label}: {error}") from None
