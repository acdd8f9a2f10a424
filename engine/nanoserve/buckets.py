"""Which shapes a decode step may present: ladders, policies, and the gates on their arithmetic.

A decode step computes a rectangle of `rows` requests by `width` KV columns, and both move. A policy rounds
both up into a closed set, so that a compiler or a graph recorder sees each shape once. Integers only:
nothing here knows of tensors, caches or engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter, index
from typing import Protocol, runtime_checkable


class GateError(AssertionError):
    """A check that failed: a fact about this program, not about its arguments.

    The message says the figure, the limit and what to change; `figure` and `limit` carry the two values
    where the gate compares numbers.
    """

    def __init__(self, message: str, *, figure: float | None = None, limit: float | None = None) -> None:
        super().__init__(message)
        self.figure = figure
        self.limit = limit


class BucketsUnsound(GateError):
    """A shape policy that does not hold what it promises, or costs more than its budget."""


@dataclass(frozen=True, order=True)
class Shape:
    """The rectangle of one decode step: `rows` requests by `width` KV columns, one query token a row."""

    rows: int
    width: int
    query_len: int = 1

    def __post_init__(self) -> None:
        # Not isinstance with SupportsIndex: a protocol check takes 4 us, and a closed set is thousands of shapes.
        if not (hasattr(self.rows, "__index__") and hasattr(self.width, "__index__")):
            raise ValueError(f"a shape is two integers, got {self.rows!r} and {self.width!r}")
        if self.rows < 1 or self.width < 1:
            raise ValueError(f"a shape has at least one row and one column, got {self.rows}x{self.width}")
        _check_query_len(self.query_len)

    @property
    def cells(self) -> int:
        """`rows * width`."""
        return self.rows * self.width

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}"


DecodeShape = Shape

_rows_of = attrgetter("rows")
_width_of = attrgetter("width")


@runtime_checkable
class DecodePolicy(Protocol):
    """Maps every `(rows, width)` within its two limits to a shape of its closed set.

    `shape_for` is covering (never smaller than the step on either axis), monotone (more rows never give
    fewer graph rows; more columns at the same rows never a smaller shape) and idempotent (a shape of the
    set maps to itself, and so does every step between a step and its shape's width). It raises ValueError
    outside the limits.
    """

    @property
    def max_batch_size(self) -> int:
        """The most rows a step can have."""
        ...

    @property
    def max_model_len(self) -> int:
        """The widest a step can be."""
        ...

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The closed set, ascending."""
        ...

    @property
    def count(self) -> int:
        """Size of the closed set."""
        ...

    def shape_for(self, rows: int, width: int, query_len: int = 1) -> Shape:
        """The shape that a step of `rows` by `width` runs as."""
        ...

    def shapes_for_rows(self, rows: int) -> tuple[Shape, ...]:
        """The shapes that a step of `rows` can run as, ascending in width: `shape_for` is the first wide enough.

        The last is `max_model_len` wide. ValueError outside the limits.
        """
        ...

    def render(self) -> str:
        """One line for a log."""
        ...


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    if multiple < 1:
        raise ValueError(f"a multiple must be at least 1, got {multiple}")
    return -(-value // multiple) * multiple


def bucket_for(value: int, ladder: Sequence[int]) -> int:
    """The smallest bucket of an ascending `ladder` that holds `value`; ValueError outside 1..its last bucket."""
    if not ladder:
        raise ValueError(f"an empty ladder holds nothing, not even {value}")
    if not 1 <= value <= ladder[-1]:
        raise ValueError(f"{value} is outside the ladder: it holds 1 to {ladder[-1]}")
    return ladder[bisect_left(ladder, value)]


def pow2_rows(max_batch_size: int) -> tuple[int, ...]:
    """Powers of two below `max_batch_size`, and itself, which is the batch a busy server meets: 6 -> (1, 2, 4, 6)."""
    check_positive("max_batch_size", max_batch_size)
    return (*(1 << n for n in range((max_batch_size - 1).bit_length())), max_batch_size)


def multiple_widths(max_model_len: int, multiple: int) -> tuple[int, ...]:
    """Multiples of `multiple` below `max_model_len`, and itself: no slot table is wider than that."""
    check_positive("max_model_len", max_model_len)
    check_positive("width_multiple", multiple)
    return (*range(multiple, max_model_len, multiple), max_model_len)


class _LadderPolicy(ABC):
    """Lookup by ladders: the smallest covering row bucket, then the smallest covering width in that bucket's ladder."""

    max_batch_size: int
    max_model_len: int
    rows: tuple[int, ...]

    @abstractmethod
    def widths_of(self, row_bucket: int) -> tuple[int, ...]:
        """The width ladder of one row bucket."""

    def row_bucket(self, rows: int) -> int:
        """Graph rows of a step of `rows`; ValueError outside 1..max_batch_size."""
        if not 1 <= rows <= self.max_batch_size:
            raise ValueError(f"{rows} rows are outside this policy: it covers 1 to {self.max_batch_size}")
        return self.rows[bisect_left(self.rows, rows)]

    def shape_for(self, rows: int, width: int, query_len: int = 1) -> Shape:
        """The shape that a step of `rows` by `width` runs as; ValueError outside the limits."""
        _check_query_len(query_len)
        shapes = self.shapes_for_rows(rows)
        if not 1 <= width <= self.max_model_len:
            raise ValueError(f"width {width} is outside this policy: it covers 1 to {self.max_model_len}")
        return shapes[bisect_left(shapes, width, key=_width_of)]

    def shapes_for_rows(self, rows: int) -> tuple[Shape, ...]:
        """The shapes of one row bucket, ascending in width; ValueError outside 1..max_batch_size."""
        return self._by_row_bucket[self.row_bucket(rows)]

    @cached_property
    def _by_row_bucket(self) -> dict[int, tuple[Shape, ...]]:
        return {r: tuple(Shape(r, w) for w in self.widths_of(r)) for r in self.rows}

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The closed set, ascending."""
        return tuple(shape for shapes in self._by_row_bucket.values() for shape in shapes)

    @property
    def count(self) -> int:
        """Size of the closed set."""
        return sum(len(self.widths_of(row_bucket)) for row_bucket in self.rows)


@dataclass(frozen=True, init=False)
class DecodeBuckets(_LadderPolicy):
    """The product of a row ladder and a width ladder.

    `rows` defaults to powers of two and `max_batch_size`, `widths` to multiples of `width_multiple` and
    `max_model_len`. An explicit ladder must be strictly ascending, positive, and end exactly at its maximum;
    anything else is a ValueError that names the value.
    """

    max_batch_size: int
    max_model_len: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]

    def __init__(
        self,
        max_batch_size: int,
        max_model_len: int,
        *,
        width_multiple: int = 128,
        rows: Sequence[int] | None = None,
        widths: Sequence[int] | None = None,
    ) -> None:
        if rows is None:
            rows = pow2_rows(max_batch_size)
        if widths is None:
            widths = multiple_widths(max_model_len, width_multiple)
        object.__setattr__(self, "max_batch_size", check_positive("max_batch_size", max_batch_size))
        object.__setattr__(self, "max_model_len", check_positive("max_model_len", max_model_len))
        object.__setattr__(self, "rows", check_ladder("rows", rows, max_batch_size))
        object.__setattr__(self, "widths", check_ladder("widths", widths, max_model_len))

    def widths_of(self, row_bucket: int) -> tuple[int, ...]:
        """The one width ladder that all row buckets share."""
        return self.widths

    def width_bucket(self, width: int) -> int:
        """Graph width of a step of `width` columns; ValueError outside 1..max_model_len."""
        if not 1 <= width <= self.max_model_len:
            raise ValueError(f"width {width} is outside this policy: it covers 1 to {self.max_model_len}")
        return self.widths[bisect_left(self.widths, width)]

    def render(self) -> str:
        """One line for a log."""
        return (
            f"{len(self.rows)} row buckets x {len(self.widths)} width buckets = {self.count} shapes "
            f"(rows {_abridged(self.rows)}; widths {_abridged(self.widths)})"
        )


@dataclass(frozen=True, init=False)
class StaircaseBuckets(_LadderPolicy):
    """Each row bucket with a width ladder of its own, each ending at `max_model_len`.

    `ladders` maps row buckets to their widths. A product is the staircase whose ladders are all the same.
    Raises ValueError where a ladder is not strictly ascending and positive, or does not end at its maximum.
    """

    max_batch_size: int
    max_model_len: int
    ladders: tuple[tuple[int, tuple[int, ...]], ...]

    def __init__(self, max_batch_size: int, max_model_len: int, ladders: Mapping[int, Sequence[int]]) -> None:
        check_positive("max_batch_size", max_batch_size)
        check_positive("max_model_len", max_model_len)
        rows = check_ladder("rows", tuple(ladders), max_batch_size)
        widths = ((r, check_ladder(f"widths of {r} rows", ladders[r], max_model_len)) for r in rows)
        object.__setattr__(self, "max_batch_size", max_batch_size)
        object.__setattr__(self, "max_model_len", max_model_len)
        object.__setattr__(self, "ladders", tuple(widths))

    @cached_property
    def rows(self) -> tuple[int, ...]:  # type: ignore[override]
        """The row buckets, ascending."""
        return tuple(row_bucket for row_bucket, _ in self.ladders)

    @cached_property
    def _widths(self) -> dict[int, tuple[int, ...]]:
        return dict(self.ladders)

    def widths_of(self, row_bucket: int) -> tuple[int, ...]:
        """The width ladder of one row bucket."""
        return self._widths[row_bucket]

    def render(self) -> str:
        """One line for a log."""
        ladders = ", ".join(f"{r}: {_abridged(w)}" for r, w in self.ladders)
        return f"{len(self.rows)} row buckets with ladders of their own = {self.count} shapes ({ladders})"


@dataclass(frozen=True, init=False)
class CaptureList:
    """The shapes a server has graphs for, complete or not. A step off the list runs eager and unpadded.

    The limits are the server's, and default to the largest of the list. Raises ValueError for an empty list or a shape
    beyond them. Not a policy: `find` may answer None; `complete` makes a policy of it.
    """

    shapes: tuple[Shape, ...]
    max_batch_size: int
    max_model_len: int

    def __init__(
        self, shapes: Iterable[Shape], *, max_batch_size: int | None = None, max_model_len: int | None = None
    ) -> None:
        listed = tuple(sorted(set(shapes)))
        if not listed:
            raise ValueError("a capture list needs at least one shape")
        if not all(isinstance(shape, Shape) for shape in listed):
            raise ValueError(f"a capture list holds Shape(rows, width), got {listed[0]!r}")
        rows, width = max(shape.rows for shape in listed), max(shape.width for shape in listed)
        limits = (rows if max_batch_size is None else max_batch_size, width if max_model_len is None else max_model_len)
        if rows > limits[0] or width > limits[1]:
            raise ValueError(f"the list goes up to {rows}x{width}, beyond the limits {limits[0]}x{limits[1]}")
        object.__setattr__(self, "shapes", listed)
        object.__setattr__(self, "max_batch_size", check_positive("max_batch_size", limits[0]))
        object.__setattr__(self, "max_model_len", check_positive("max_model_len", limits[1]))

    @property
    def count(self) -> int:
        """How many graphs the list is."""
        return len(self.shapes)

    @cached_property
    def _ladders(self) -> dict[int, tuple[int, ...]]:
        return {r: tuple(s.width for s in self.shapes if s.rows == r) for r in {s.rows: None for s in self.shapes}}

    def find(self, rows: int, width: int) -> Shape | None:
        """The graph a step of `rows` by `width` replays: fewest rows, then least width; None where none covers it."""
        if rows < 1 or width < 1:
            raise ValueError(f"a step has at least one row and one column, got {rows}x{width}")
        shapes = self.shapes_for_rows(rows)
        at = bisect_left(shapes, width, key=_width_of)
        return shapes[at] if at < len(shapes) else None

    def shapes_for_rows(self, rows: int) -> tuple[Shape, ...]:
        """The graphs that `rows` rows replay as their width grows: `find` is the first wide enough, None past the last.

        Fewest rows first; past that bucket's last width, what the next covering bucket has beyond it. Empty for more
        rows than any graph has; ValueError below 1.
        """
        if rows < 1:
            raise ValueError(f"a step has at least one row, got {rows}")
        row_buckets, chains = self._chains
        return chains[bisect_left(row_buckets, rows)]

    @cached_property
    def _chains(self) -> tuple[tuple[int, ...], tuple[tuple[Shape, ...], ...]]:
        """The row buckets and the shapes from each of them on, and an empty chain for rows past the last bucket."""
        chains: list[tuple[Shape, ...]] = [()]
        ladders = [tuple(shapes) for _, shapes in groupby(self.shapes, key=_rows_of)]
        for own in reversed(ladders):
            beyond = bisect_right(chains[-1], own[-1].width, key=_width_of)
            chains.append(own + chains[-1][beyond:])
        return tuple(own[0].rows for own in ladders), tuple(reversed(chains))

    def complete(self, max_batch_size: int, max_model_len: int) -> StaircaseBuckets:
        """A policy: the list with the maxima added where they lack. ValueError if a shape is beyond them."""
        for shape in self.shapes:
            if shape.rows > max_batch_size or shape.width > max_model_len:
                raise ValueError(f"shape {shape} is beyond the limits {max_batch_size}x{max_model_len}")
        ladders = {
            r: widths if widths[-1] == max_model_len else (*widths, max_model_len)
            for r, widths in self._ladders.items()
        }
        ladders.setdefault(max_batch_size, (max_model_len,))
        return StaircaseBuckets(max_batch_size, max_model_len, ladders)

    def render(self) -> str:
        """One line for a log."""
        return f"{self.count} captured shapes (rows {_abridged(tuple(self._ladders))})"


def bucket_run(open_shapes: Iterable[Shape], buckets: DecodePolicy) -> tuple[Shape, ...]:
    """What each step of a run presents under a policy, in the run's order."""
    return tuple(buckets.shape_for(shape.rows, shape.width) for shape in open_shapes)


def padded_cells(open_shapes: Iterable[Shape], buckets: DecodePolicy) -> int:
    """Cells the run computes under a policy."""
    return sum(shape.cells for shape in bucket_run(open_shapes, buckets))


def waste(open_shapes: Iterable[Shape], buckets: DecodePolicy) -> float:
    """`1 - open / padded`: the share of computed cells that the policy added. 0.0 for a run of no steps."""
    steps = tuple(open_shapes)
    padded = padded_cells(steps, buckets)
    return 1.0 - sum(shape.cells for shape in steps) / padded if padded else 0.0


def _check_query_len(query_len: int) -> None:
    if query_len != 1:
        raise ValueError(f"query_len must be 1 (one token a row), got {query_len}")


def check_positive(name: str, value: int) -> int:
    """`value` as an int, if it is an integer of at least 1; ValueError, with `name`, where it is not."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or index(value) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return index(value)


def check_ladder(name: str, ladder: Sequence[int], maximum: int) -> tuple[int, ...]:
    """`ladder` as a tuple, if it is strictly ascending, positive and ends exactly at `maximum`."""
    values = tuple(check_positive(f"a bucket of {name}", value) for value in ladder)
    if not values:
        raise ValueError(f"{name} is empty: a ladder needs at least one bucket, its maximum {maximum}")
    for before, after in pairwise(values):
        if after <= before:
            raise ValueError(f"{name} must be strictly ascending: {after} comes after {before}")
    if values[-1] != maximum:
        raise ValueError(f"{name} must end at its maximum {maximum}; it ends at {values[-1]}")
    return values


def _abridged(values: tuple[int, ...]) -> str:
    if len(values) <= 6:
        return ",".join(map(str, values))
    return f"{values[0]},{values[1]},{values[2]}..{values[-1]}"
