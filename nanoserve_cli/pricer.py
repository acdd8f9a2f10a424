"""Points of a sweep priced: each traffic simulated once for a pair of limits, every policy from its segments."""

from __future__ import annotations

from dataclasses import dataclass

from nanoserve.pricing import RunCost, StepsIndex
from nanoserve.simulate import simulate
from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve.steps import Steps
from nanoserve.workload import Workload
from nanoserve_cli.grid import Lockstep, Point
from nanoserve_cli.traffic import Traffic, TrafficOptions, load_traffic
from nanoserve_cli.workload.limits import fit_to


@dataclass(frozen=True)
class Priced:
    """One point and what it costs, exactly. `requests` were replayed; all of them finish under the virtual clock."""

    point: Point
    traffic: Traffic
    cost: RunCost

    @property
    def requests(self) -> int:
        """How many requests ran."""
        return len(self.traffic.workload)


class Pricer:
    """Prices points, remembering what they share: the requests of a traffic, and their steps under a pair of limits."""

    def __init__(self) -> None:
        self._traffic: dict[tuple[Lockstep | TrafficOptions, int], Traffic] = {}
        self._indices: dict[tuple[Lockstep | TrafficOptions, int, int, str], StepsIndex] = {}

    def traffic(self, asked: Lockstep | TrafficOptions, max_model_len: int) -> Traffic:
        """The requests, fitted to a model length. Raises what `load_traffic` raises."""
        key = (asked, max_model_len)
        if key not in self._traffic:
            self._traffic[key] = load(asked, max_model_len)
        return self._traffic[key]

    def price(self, point: Point) -> Priced:
        """What a point costs. Under a step time that looks at the shape the traffic is simulated for its policy."""
        traffic = self.traffic(point.traffic, point.max_model_len)
        policy = point.policy()
        step_time = parse_step_time(point.step_time)
        if not isinstance(step_time, FixedStep):
            steps = simulate(traffic.workload, point.max_batch_size, step_time=step_time, policy=policy).steps
            return Priced(point, traffic, StepsIndex(steps).price(policy))
        key = (point.traffic, point.max_batch_size, point.max_model_len, point.step_time)
        if key not in self._indices:
            self._indices[key] = StepsIndex(self._steps(traffic.workload, point, step_time))
        return Priced(point, traffic, self._indices[key].price(policy))

    def _steps(self, workload: Workload, point: Point, step_time: FixedStep) -> Steps:
        return simulate(workload, point.max_batch_size, step_time=step_time).steps


def load(asked: Lockstep | TrafficOptions, max_model_len: int) -> Traffic:
    """The requests of a traffic. Raises what `load_traffic` raises."""
    if isinstance(asked, TrafficOptions):
        return load_traffic(asked, max_model_len)
    workload, fitted = fit_to(Workload.lockstep(asked.rows, asked.prompt, asked.steps), max_model_len, "reject")
    return Traffic(asked.label, workload, fitted, None)
