"""The front alone: every point on it named, the others faint, and step times where they were measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from figure_samples import box_of, named, offsets, overlapping, read, rows
from matplotlib.colors import to_hex
from pandas import DataFrame

from nanoserve_cli.figures import pareto, style
from nanoserve_cli.figures.points import panels


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """Every named row ladder at four width multiples, half of them with a measured step time."""
    some = rows()
    for at, row in enumerate(some[::2]):
        row["step_ms_bucketed"] = 1.0 + (at * 7 % 11)
    return {"sweep": read(tmp_path_factory.mktemp("results"), some)}


def test_every_point_is_drawn_and_those_on_the_front_are_named_once(results: dict[str, DataFrame]) -> None:
    (panel,) = panels(results)
    figure = pareto.draw(results)
    for ax, column in zip(figure.axes, ("waste", "step_ms_bucketed"), strict=True):
        x, y, on_front = panel.values("shapes_available"), panel.values(column), panel.front(column)
        known = ~np.isnan(y)
        drawn = [place for place in offsets(ax) if not np.isnan(place[1])]
        assert drawn == sorted(zip(x[known].tolist(), y[known].tolist(), strict=True))
        labels = list(named(ax, "label"))
        said = sorted(word for label in labels for word in label.get_text().split(", "))
        assert said == sorted(word for word, is_on in zip(panel.words("setting"), on_front, strict=True) if is_on)
        assert overlapping([box_of(label) for label in labels]) == []


def test_the_beaten_are_fainter_than_the_front(results: dict[str, DataFrame]) -> None:
    colors = {
        to_hex(line.get_color()) for line in named(pareto.draw(results).axes[0], "points") if len(line.get_xdata())
    }
    assert {style.ACCENT, style.FAINT} <= colors


def test_no_time_measured_is_no_panel_for_it(tmp_path: Path) -> None:
    some = rows(("pow2",))
    assert len(pareto.draw({"a": read(tmp_path, some)}).axes) == 1
    some[0]["step_ms_bucketed"] = 3.0
    assert len(pareto.draw({"a": read(tmp_path, some)}).axes) == 1
    some[1]["step_ms_bucketed"] = 2.0
    assert len(pareto.draw({"a": read(tmp_path, some)}).axes) == 2


def test_the_tables_hold_the_fronts(results: dict[str, DataFrame]) -> None:
    (panel,) = panels(results)
    of_waste, of_time = pareto.facts(results)
    assert of_waste.row_count == panel.front("waste").sum()
    assert of_time.row_count == panel.front("step_ms_bucketed").sum()
    times = [float(str(cell)) for cell in of_time.columns[2].cells]
    assert times == sorted(times, reverse=True)


def test_one_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has one row, and a trade-off needs 2"):
        pareto.draw({"a": read(tmp_path, rows(("pow2",), ("multiple:128",)))})
