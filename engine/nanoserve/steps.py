"""A run of decode steps in time order, as segments: the one form in which traffic is recorded and priced.

Between two events (an admission, a finish) the rows stay the same and each row's context grows by one token a
step, so a segment of any length is five integers: 140,000 steps of an hour of traffic are 30,000 segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import Shape

Column = NDArray[np.int64]


class Segment(NamedTuple):
    """`steps` consecutive decode steps from `start_step` on: `rows` constant, the width `width`, `width + 1`, ...

    `live_cells` is the sum over the segment's steps; within it they grow by `rows` a step.
    """

    start_step: int
    rows: int
    width: int
    steps: int
    live_cells: int


@dataclass(frozen=True, eq=False)
class Steps:
    """The segments of one run as columns (int64 arrays of one length), in time order.

    Raises ValueError where a column differs in length, a count is below 1, two segments overlap in time, or
    live cells are more than the rectangle holds or fewer than its longest row and one for each other.
    """

    start_step: Column
    rows: Column
    width: Column
    steps: Column
    live_cells: Column

    def __post_init__(self) -> None:
        lengths = {column.size for column in self.columns}
        if len(lengths) > 1:
            raise ValueError(f"the columns of a run differ in length: {sorted(lengths)}")
        for name, column in zip(Segment._fields, self.columns, strict=True):
            least = 0 if name == "start_step" else 1
            if column.size and int(column.min()) < least:
                at = int(column.argmin())
                raise ValueError(f"segment {at}: {name} must be at least {least}, got {int(column[at])}")
        late = np.flatnonzero(self.start_step[1:] < (self.start_step + self.steps)[:-1])
        if late.size:
            raise ValueError(f"segment {int(late[0]) + 1} starts before the one before it ends: not in time order")
        # One row is as long as the step is wide, the others hold at least a token.
        fewest = self.open_cells_each // self.rows + (self.rows - 1) * self.steps
        beyond = np.flatnonzero((self.live_cells > self.open_cells_each) | (self.live_cells < fewest))
        if beyond.size:
            at = int(beyond[0])
            raise ValueError(
                f"segment {at}: {int(self.live_cells[at])} live cells do not fit {int(self.steps[at])} steps "
                f"from {int(self.rows[at])}x{int(self.width[at])}"
            )

    @property
    def columns(self) -> tuple[Column, Column, Column, Column, Column]:
        """The five columns, in the order of `Segment`."""
        return (self.start_step, self.rows, self.width, self.steps, self.live_cells)

    @property
    def open_cells_each(self) -> Column:
        """Open cells of each segment: `rows` times the sum of its widths, in closed form."""
        return self.rows * (self.steps * self.width + self.steps * (self.steps - 1) // 2)

    @property
    def total_steps(self) -> int:
        """How many decode steps the run has."""
        return int(self.steps.sum())

    def __iter__(self) -> Iterator[Segment]:
        for row in zip(*(column.tolist() for column in self.columns), strict=True):
            yield Segment(*row)

    def __len__(self) -> int:
        return int(self.rows.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Steps):
            return NotImplemented
        return all(np.array_equal(a, b) for a, b in zip(self.columns, other.columns, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def open_shapes(self) -> Iterator[Shape]:
        """The open shape of every step, in time order."""
        for segment in self:
            for width in range(segment.width, segment.width + segment.steps):
                yield Shape(segment.rows, width)

    def histogram(self) -> dict[tuple[int, int], int]:
        """`(rows, width) -> steps` over the whole run."""
        counts: dict[tuple[int, int], int] = {}
        for segment in self:
            for width in range(segment.width, segment.width + segment.steps):
                counts[segment.rows, width] = counts.get((segment.rows, width), 0) + 1
        return counts

    def between(self, start_step: int, stop_step: int) -> Steps:
        """The part of the run whose steps are numbered `start_step` to `stop_step - 1`: segments are cut exactly.

        Raises ValueError for a stop before the start, and where live cells of a segment to be cut cannot grow by `rows`
        a step.
        """
        if stop_step < start_step:
            raise ValueError(f"a part of a run cannot stop at step {stop_step}, before its start at {start_step}")
        first = np.maximum(self.start_step, start_step)
        count = np.minimum(self.start_step + self.steps, stop_step) - first
        cut = (count > 0) & (count < self.steps)
        # Sum over n steps of `first_live + j * rows`, solved for `first_live`.
        first_live, rest = np.divmod(self.live_cells - self.rows * self.steps * (self.steps - 1) // 2, self.steps)
        uneven = np.flatnonzero(cut & (rest != 0))
        if uneven.size:
            at = int(uneven[0])
            raise ValueError(
                f"segment {at} cannot be cut: {int(self.live_cells[at])} live cells are not those of "
                f"{int(self.steps[at])} steps that grow by {int(self.rows[at])} a step"
            )
        skipped = first - self.start_step
        part = count * (first_live + self.rows * skipped) + self.rows * count * (count - 1) // 2
        live_cells = np.where(cut, part, self.live_cells)
        columns = (first, self.rows, self.width + skipped, count, live_cells)
        return Steps(*(column[count > 0] for column in columns))

    @classmethod
    def of(cls, segments: list[Segment]) -> Steps:
        """The columns of a list of segments."""
        table = np.array(segments, dtype=np.int64).reshape(-1, 5)
        return cls(*(np.ascontiguousarray(table[:, i]) for i in range(5)))


class StepsRecorder:
    """Records decode steps as they happen and merges them into segments. Anyone's engine can feed it.

    recorder = StepsRecorder()
    recorder.add(rows=3, width=17, live_cells=51)   # once a decode step
    steps = recorder.steps()
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._open: Segment | None = None
        self._last_live = 0

    def add(self, rows: int, width: int, live_cells: int, *, step: int | None = None) -> None:
        """One decode step of `rows` requests, the longest of `width` tokens, `live_cells` tokens of context in all.

        `step` numbers it on the run's clock and defaults to the next; give it where the clock has steps with
        no row. ValueError for a step that is no rectangle, or that goes back in time.
        """
        if not (rows >= 1 and width >= 1 and width + rows - 1 <= live_cells <= rows * width):
            raise ValueError(f"no decode step has {rows} rows, width {width} and {live_cells} live cells")
        current = self._open
        upcoming = 0 if current is None else current.start_step + current.steps
        at = upcoming if step is None else step
        if at < upcoming:
            raise ValueError(f"step {at} was already recorded: the next one is {upcoming}")
        if (
            current is not None
            and at == upcoming
            and rows == current.rows
            and width == current.width + current.steps
            and live_cells == self._last_live + rows
        ):
            self._open = current._replace(steps=current.steps + 1, live_cells=current.live_cells + live_cells)
        else:
            if current is not None:
                self._segments.append(current)
            self._open = Segment(at, rows, width, 1, live_cells)
        self._last_live = live_cells

    def steps(self) -> Steps:
        """What was recorded so far; the recorder goes on."""
        return Steps.of(self._segments + ([] if self._open is None else [self._open]))
