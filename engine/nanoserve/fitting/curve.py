"""What a fit answers: the best list for every number of graphs, and the fewest graphs that meet a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from nanoserve.fitting.prices import Cost

T = TypeVar("T")


@dataclass(frozen=True)
class Fitted(Generic[T]):
    """The best list of some number of graphs, what the run costs under it, and how many graphs it needs for that."""

    best: T
    cost: Cost
    graphs: int


@dataclass(frozen=True)
class Curve(Generic[T]):
    """The optimum for every number of graphs from the fewest that the constraints allow, in order.

    Costs never rise with the number. A point has fewer graphs than it may have where more would not lower the cost.
    """

    fewest: int
    points: tuple[Fitted[T], ...]

    @property
    def most(self) -> int:
        """The largest number of graphs that was solved for."""
        return self.fewest + len(self.points) - 1

    def at(self, graphs: int) -> Fitted[T]:
        """The best list of at most `graphs` graphs; ValueError outside `fewest..most`."""
        if not self.fewest <= graphs <= self.most:
            raise ValueError(f"{graphs} graphs are outside this curve: it was solved for {self.fewest} to {self.most}")
        return self.points[graphs - self.fewest]


def fewest(curve: Curve[T], target: Cost) -> Fitted[T]:
    """The list with the fewest graphs whose cost is at most `target`; ValueError where none on the curve is.

    Waste of at most `w` is the target `open / (1 - w)`, with `open` the histogram's own price; to match another list
    is the price of what it presents.
    """
    for point in curve.points:
        if point.cost <= target:
            return point
    raise ValueError(
        f"no list of up to {curve.most} graphs costs {target} or less: the best costs {curve.points[-1].cost}"
    )
