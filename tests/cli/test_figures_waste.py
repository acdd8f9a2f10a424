"""A bar a policy: four parts that are its padded cells, the least waste first, told apart without colour."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from figure_samples import named, read, rows
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from pandas import DataFrame

from nanoserve_cli.figures import waste
from nanoserve_cli.figures.points import panels


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    return {"sweep": read(tmp_path_factory.mktemp("results"), rows(("pow2", "vllm", "tgi")))}


@pytest.fixture(scope="module")
def ax(results: dict[str, DataFrame]) -> Axes:
    (found,) = waste.draw(results).axes
    return found


def bars(ax: Axes) -> np.ndarray:
    """Widths of the drawn segments, `(parts, bars)`, from the top down."""
    return np.array([[patch.get_width() for patch in container] for container in ax.containers])


def test_the_parts_of_a_bar_are_its_cells(ax: Axes, results: dict[str, DataFrame]) -> None:
    (panel,) = panels(results)
    order = np.lexsort((panel.values("shapes_available"), panel.values("total_waste"), panel.values("waste")))
    columns = ("live_cells", "ragged_padding", "width_padding", "row_padding")
    cells = np.stack([panel.values(column)[order] for column in columns])
    assert np.allclose(bars(ax), cells / panel.values("padded_cells")[order], rtol=0, atol=1e-12)
    assert np.allclose(bars(ax).sum(axis=0), 1.0)


def test_bars_are_sorted_by_waste_and_say_both(ax: Axes) -> None:
    wastes = [float(text.get_text().rstrip("%")) for text in list(named(ax, "waste"))[1:]]
    totals = [float(text.get_text().rstrip("%")) for text in list(named(ax, "total_waste"))[1:]]
    assert wastes == sorted(wastes)
    assert np.allclose(wastes, 100 * bars(ax)[2:].sum(axis=0), atol=0.051)
    assert np.allclose(totals, 100 * bars(ax)[1:].sum(axis=0), atol=0.051)
    assert [text.get_text() for text in (next(named(ax, "waste")), next(named(ax, "total_waste")))] == [
        "waste",
        "total",
    ]


def test_a_bar_a_policy_with_its_name(ax: Axes, results: dict[str, DataFrame]) -> None:
    (panel,) = panels(results)
    assert sorted(text.get_text() for text in ax.get_yticklabels()) == sorted(panel.policies)


def test_parts_are_told_apart_by_lightness_or_hatch() -> None:
    looks = [look for _, _, look in waste.PARTS]
    for one, other in combinations(looks, 2):
        lightness = [float(np.dot(to_rgb(look["facecolor"]), (0.299, 0.587, 0.114))) for look in (one, other)]
        assert abs(lightness[0] - lightness[1]) > 0.2 or one.get("hatch") != other.get("hatch")


def test_names_fit_left_of_the_bars(tmp_path: Path) -> None:
    figure = waste.draw(
        {"a-long-name-of-a-file": read(tmp_path, rows(("vllm-interactive",))), "b": read(tmp_path, rows())}
    )
    for ax in figure.axes:
        assert all(text.get_window_extent().x0 >= 0 for text in ax.get_yticklabels())


def test_the_table_has_the_same_shares(ax: Axes, results: dict[str, DataFrame]) -> None:
    (table,) = waste.facts(results)
    shares = [[float(str(cell).rstrip("%")) for cell in column.cells] for column in table.columns[1:5]]
    assert np.allclose(shares, 100 * bars(ax), atol=0.051)
    assert [str(column.header) for column in table.columns] == [
        "policy",
        "live",
        "ragged",
        "width",
        "row",
        "waste",
        "total\nwaste",
    ]


def test_one_row_is_one_bar(tmp_path: Path) -> None:
    (ax,) = waste.draw({"a": read(tmp_path, rows(("pow2",), ("multiple:128",)))}).axes
    assert bars(ax).shape == (4, 1)


def test_a_row_without_a_part_is_refused(tmp_path: Path) -> None:
    some = rows(("pow2",))
    some[1]["ragged_padding"] = None
    with pytest.raises(ValueError, match="a row has no ragged_padding"):
        waste.draw({"a": read(tmp_path, some)})
