"""Rows of results files as the points of a figure: one panel a run, a setting in words each, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoserve_cli.figures.style import DOT

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Results = Mapping[str, "DataFrame"]
"""Results files by the name they go by in a legend."""

RUN = (
    "workload",
    "seed",
    "trace_sha256",
    "max_batch_size",
    "max_model_len",
    "clock",
    "step_time",
    "live_cells",
)
"""Rows equal in these are policies over the same run: live cells are the requests' own, whatever the policy."""
CAPTURE = ("model", "dtype", "device", "max_batch_size", "max_model_len")
"""Rows equal in these are policies of one model under the same limits, whatever the traffic."""
NEEDED = (
    "workload",
    "max_batch_size",
    "max_model_len",
    "shapes_available",
    "shapes_used",
    "waste",
)
MULTIPLE = "multiple:"
MAX_PANELS = 12
CURVE_POINTS = 14


@dataclass(frozen=True, eq=False)
class Panel:
    """The policies that were priced over one run, which `title` and `subtitle` tell in words.

    `rows` has the columns of a results file and `file`, `name`, `width` and `setting`: the row rule, the width rule and
    what of both varies, in words.
    """

    title: str
    subtitle: str
    rows: DataFrame

    def values(self, column: str) -> NDArray[np.float64]:
        """One column as floats, NaN where it is empty."""
        return self.rows[column].to_numpy(float, na_value=np.nan)

    def words(self, column: str) -> list[str]:
        """One column of text."""
        return [str(value) for value in self.rows[column]]

    @property
    def policies(self) -> list[str]:
        """The row and the width rule of each row, in words."""
        return [" ".join(filter(None, pair)) for pair in zip(self.words("name"), self.words("width"), strict=True)]

    @property
    def curves(self) -> NDArray[np.bool_]:
        """Rows of a row ladder with so many points that it reads as a curve, and has one name and not one a point."""
        names = self.rows["name"]
        return np.asarray(names.map(names.value_counts()) > CURVE_POINTS, bool)

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Rows that left no step off their list: a step off it is unpadded, so their waste is of fewer steps."""
        return np.asarray(self.rows["off_list_steps"].fillna(0) == 0, bool)

    def front(self, column: str) -> NDArray[np.bool_]:
        """Comparable rows that none beats in both shapes available and `column`."""
        return front(np.where(self.comparable, self.values("shapes_available"), np.nan), self.values(column))

    def best_within(self, column: str, budget_graphs: int) -> int | None:
        """The comparable row of least `column` with at most that many shapes, the fewest of equals; None of none."""
        value, shapes = self.values(column), self.values("shapes_available")
        within = np.flatnonzero(self.comparable & (shapes <= budget_graphs) & ~np.isnan(value))
        return min(within.tolist(), key=lambda at: (value[at], shapes[at], at), default=None)


def panels(results: Results, *, least: int = 1, by: Sequence[str] = RUN) -> list[Panel]:
    """The rows of results, a panel for each run (`by` are the columns that make one), in the order they come.

    ValueError where a row lacks a figure that every picture needs, no run has `least` rows, or there are too many runs.
    """
    import pandas as pd

    for name, frame in results.items():
        for column in NEEDED:
            if frame[column].isna().any():
                at = int(np.flatnonzero(frame[column].isna())[0])
                raise ValueError(f"{name}: row {at + 1} has no {column}: it is no finished run")
        _check_figures(name, frame)
    rows = pd.concat([frame.assign(file=name) for name, frame in results.items()], ignore_index=True)
    rows["name"] = [_row_rule(row) for _, row in rows.iterrows()]
    rows["width"] = _width_rules(rows["width_ladder"])
    groups = [group for _, group in rows.groupby(list(by), dropna=False, sort=False)]
    names = ", ".join(results)
    if len(rows) < least:
        raise ValueError(f"{names}: has one row, and a trade-off needs {least}: sweep several policies over one run")
    if max(map(len, groups)) < least:
        raise ValueError(
            f"{names}: the {len(rows)} rows are of {len(groups)} different runs, and a trade-off needs {least} "
            "policies over the same one: sweep them"
        )
    if len(groups) > MAX_PANELS:
        raise ValueError(
            f"{names}: {len(groups)} runs (traffic and limits) are more than the {MAX_PANELS} panels of a figure: "
            "sweep fewer at a time"
        )
    told = [column for column in ("seed", "step_time") if column in by and rows[column].nunique(dropna=False) > 1]
    return [Panel(*_titles(group, by, told), _with_settings(group)) for group in groups]


def _check_figures(name: str, frame: DataFrame) -> None:
    """ValueError for a figure that no run has: a file edited by hand would be drawn as though it were measured."""
    for column, low, high in (
        ("waste", 0, 1),
        ("total_waste", 0, 1),
        ("shapes_available", 1, np.inf),
        ("steps", 1, np.inf),
    ):
        odd = frame[column].notna() & ~frame[column].between(low, high)
        if odd.any():
            at = int(np.flatnonzero(odd)[0])
            raise ValueError(f"{name}: row {at + 1} has {column} {frame[column][at]}, which no run has")


def _titles(group: DataFrame, by: Sequence[str], told: Sequence[str]) -> tuple[str, str]:
    """What a panel is of; `told` are further columns by which the panels of this figure are told apart."""
    first = group.iloc[0]
    limits = f"up to {first['max_batch_size']:,} rows x {first['max_model_len']:,}"
    if "workload" not in by:
        return DOT.join(str(first[column]) for column in ("model", "dtype") if _has(first[column])), limits
    words = {"steps": "steps", "open_shapes": "open shapes"}
    known = [f"{_range(group[column])} {word}" for column, word in words.items() if group[column].notna().all()]
    known += [f"{column.replace('_', ' ')} {first[column]}" for column in told if _has(first[column])]
    return _traffic(first), DOT.join((limits, *known))


def _range(counts: Series[Any]) -> str:
    """A count that all rows have, or the least and the most: under a step time of their own policies run apart."""
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _row_rule(row: Series[Any]) -> str:
    """The rule of the row buckets, `as it is` where its list lacks its maxima; of a policy file its buckets."""
    rule = row["rows_ladder"]
    if _has(rule):
        return f"{rule} as it is" if _has(row["completed"]) and not row["completed"] else str(rule)
    words = str(row["policy"]).partition(" (")[0].partition(" = ")[0]
    return words.replace("row buckets", "rows").replace("width buckets", "widths")


def _width_rules(rules: Series[str]) -> list[str]:
    """Width rules in words: a number alone where all are multiples."""
    given = [str(rule) if _has(rule) else "" for rule in rules]
    short = all(rule.startswith(MULTIPLE) for rule in given if rule)
    words = {rule: rule.removeprefix(MULTIPLE) if short else rule for rule in given}
    words |= {rule: f"list of {rule.count(',') + 1}" for rule in given if rule.startswith("list:")}
    return [words[rule] for rule in given]


def _with_settings(rows: DataFrame) -> DataFrame:
    """The rows with `setting`: of the two rules those that vary, and both where none does."""
    parts = [column for column in ("name", "width") if rows[column].nunique() > 1] or ["name", "width"]
    words = [" ".join(filter(None, row)) for row in rows[parts].itertuples(index=False)]
    return rows.assign(setting=words).reset_index(drop=True)


def front(cost: ArrayLike, figure: ArrayLike) -> NDArray[np.bool_]:
    """The points that no other beats: none has both values at most theirs and one of them less. NaN is on no front."""
    x, y = np.asarray(cost, float), np.asarray(figure, float)
    known = ~(np.isnan(x) | np.isnan(y))
    kept = np.zeros(x.shape, bool)
    best = np.inf
    for value in np.unique(x[known]):
        here = known & (x == value)
        least = y[here].min()
        if least < best:
            kept |= here & (y == least)
            best = least
    return kept


def source(results: Results) -> str:
    """Where the data of a figure are from: traces with the first digits of their sums, the code, the day."""
    import pandas as pd

    rows = [row for _, row in pd.concat(list(results.values()), ignore_index=True).iterrows()]
    days = sorted({str(row["started_utc"])[:10] for row in rows if _has(row["started_utc"])})
    day = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "undated"
    return DOT.join((joined(map(_origin, rows)), joined(map(_code, rows)), day))


def _origin(row: Series[Any]) -> str:
    """The traffic with its trace's sum or its seed."""
    if _has(row["trace_sha256"]):
        return f"{row['trace_key'] if _has(row['trace_key']) else _traffic(row)} {row['trace_sha256'][:8]}"
    return f"{_traffic(row)} seed {row['seed']}" if _has(row["seed"]) else _traffic(row)


def _traffic(row: Series[Any]) -> str:
    """The traffic in words: a trace without a key by its file's name, whatever folder it lay in."""
    if _has(row["trace_key"]):
        return str(row["workload"] if str(row["workload"]).startswith(row["trace_key"]) else row["trace_key"])
    return PurePath(str(row["workload"])).name


def _code(row: Series[Any]) -> str:
    words = f"nanoserve {row['nanoserve_version']}" if _has(row["nanoserve_version"]) else "nanoserve"
    changed = "+" if _has(row["git_dirty"]) and row["git_dirty"] else ""
    return f"{words} ({row['git_sha'][:7]}{changed})" if _has(row["git_sha"]) else words


def _has(value: Any) -> bool:
    """Whether a cell is not empty."""
    import pandas as pd

    return not pd.isna(value)


def joined(words: Iterable[str]) -> str:
    """Words in their order, each once."""
    return ", ".join(dict.fromkeys(words))
