"""What a list costs on a part of the traffic: its price, its waste, the shapes it used, the weight it sent to eager."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanoserve.buckets import CaptureList
from nanoserve.fitting import Price, price_cells, price_rows
from nanoserve.fitting.prices import Cost, check_total, prices_of
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.tuning.evidence import Part


@dataclass(frozen=True)
class Objective:
    """What is minimised: `rows`, `cells` or `time`, and the price of a step that says it."""

    name: str
    price: Price

    def part(self, part: Part) -> Part:
        """What of a part this objective looks at."""
        return part.by_rows if self.name == "rows" else part

    def scorer(self, part: Part) -> Scorer:
        """Prices lists on `part`."""
        seen = self.part(part)
        cells = None if seen.live_cells is None else seen.histogram.priced(price_cells)
        return Scorer(self, seen, seen.histogram.priced(self.price), cells)


ROWS = Objective("rows", price_rows)
CELLS = Objective("cells", price_cells)


@dataclass(frozen=True)
class Score:
    """One list on one part. Steps off the list run at their own shape and are in `cost` with its price.

    `cost` and `open` are in the objective's unit, `off_list` is a share of the steps. Cells are None where they are not
    known, and under the objective `rows`, which does not look at widths.
    """

    available: int
    used: int
    off_list: float
    cost: Cost
    open: Cost
    open_cells: Cost | None
    padded_cells: Cost | None
    live_cells: int | None

    @property
    def waste(self) -> float:
        """Share of the price that the list costs."""
        return 1.0 - self.open / self.cost

    @property
    def total_waste(self) -> float | None:
        """Share of the cells that no row's context filled."""
        if self.live_cells is None or self.padded_cells is None:
            return None
        return 1.0 - self.live_cells / self.padded_cells


@dataclass(frozen=True, eq=False)
class Scorer:
    """Prices lists on one part. `open` is what it costs with every step at its own shape, `open_cells` its cells."""

    objective: Objective
    part: Part
    open: Cost
    open_cells: Cost | None

    def score(self, policy: Policy) -> Score:
        """Prices every step. ValueError where a policy is smaller than a step."""
        histogram = self.part.histogram
        if not isinstance(policy, CaptureList):
            policy.shape_for(int(histogram.rows.max()), int(histogram.width.max()))
        graph_rows, graph_width = histogram.rows.copy(), histogram.width.copy()
        used: set[tuple[int, int]] = set()
        off_list: Cost = 0
        for rows, entries in histogram.by_rows():
            shapes = policy.shapes_for_rows(rows)
            tops = np.array([shape.width for shape in shapes], np.int64)
            at = np.searchsorted(tops, histogram.width[entries])
            held = at < tops.size
            graph_rows[entries][held] = np.array([shape.rows for shape in shapes], np.int64)[at[held]]
            graph_width[entries][held] = tops[at[held]]
            used |= {(shapes[i].rows, shapes[i].width) for i in np.unique(at[held]).tolist()}
            off_list += histogram.weight[entries][~held].sum().item()
        prices = prices_of(self.objective.price, graph_rows, graph_width)
        check_total(prices.max().item(), histogram.total)
        cells = histogram.weight * graph_rows * graph_width
        return Score(
            available=policy.count,
            used=len(used),
            off_list=off_list / histogram.total,
            cost=(histogram.weight * prices).sum().item(),
            open=self.open,
            open_cells=self.open_cells,
            padded_cells=None if self.open_cells is None else cells.sum().item(),
            live_cells=self.part.live_cells,
        )
