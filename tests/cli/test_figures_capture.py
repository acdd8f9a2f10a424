"""The capture bill: a policy once, predicted and measured told apart, budgets where they are, nothing made up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from figure_samples import box_of, lockstep, named, offsets, overlapping, read, rows, words_in

from nanoserve_cli.figures import capture

Row = dict[str, Any]


def billed(rules: tuple[str, ...] = ("pow2", "vllm"), **more: Any) -> list[Row]:
    """Rows with a predicted bill, and for those of under 100 shapes a measured one."""
    some = rows(rules, model="tiny", dtype="float32", **more)
    for row in some:
        shapes = row["shapes_available"]
        row |= {"capture_mib": 100.0 + shapes % 5, "capture_s": shapes * 0.05}
        if shapes < 100:
            row |= {"capture_mib_measured": 120.0, "capture_s_measured": shapes * 0.04}
    return some


def test_a_panel_for_mib_and_one_for_seconds_with_every_policy(tmp_path: Path) -> None:
    some = billed()
    figure = capture.draw({"a": read(tmp_path, some)})
    for ax, column in zip(figure.axes, ("capture_mib", "capture_s"), strict=True):
        assert offsets(ax) == sorted((row["shapes_available"], row[column]) for row in some)
        measured = [place for place in offsets(ax, "measured") if not math.isnan(place[1])]
        known = [row for row in some if row.get(f"{column}_measured")]
        assert measured == sorted((row["shapes_available"], row[f"{column}_measured"]) for row in known)
    assert {"predicted", "measured"} <= set(words_in(figure))


def test_a_policy_is_drawn_once_whatever_the_traffic(tmp_path: Path) -> None:
    some = billed() + billed(steps=lockstep(), workload="lockstep")
    figure = capture.draw({"a": read(tmp_path, some)})
    assert len(offsets(figure.axes[0])) == len(some) // 2


def test_another_model_is_another_panel(tmp_path: Path) -> None:
    some = billed() + [row | {"model": "small"} for row in billed()]
    figure = capture.draw({"a": read(tmp_path, some)})
    assert [text for text in words_in(figure) if "float32" in text] == ["tiny · float32"] * 2 + ["small · float32"] * 2


def test_seconds_that_were_not_priced_have_no_panel(tmp_path: Path) -> None:
    some = [row | {"capture_s": None, "capture_s_measured": None} for row in billed()]
    assert [ax.get_ylabel() for ax in capture.draw({"a": read(tmp_path, some)}).axes] == ["MiB of the graphs' pool"]


def test_both_budgets_are_drawn_where_they_are(tmp_path: Path) -> None:
    figure = capture.draw({"a": read(tmp_path, billed())}, budget_graphs=50, budget_mib=110)
    of_mib, of_seconds = figure.axes
    graphs, words, mib = named(of_mib, "budget")
    assert (list(graphs.get_xdata()), words.get_text(), list(mib.get_ydata())) == (
        [50, 50],
        "budget 50 graphs",
        [110] * 2,
    )
    assert len(list(named(of_seconds, "budget"))) == 2
    assert "budget 110 MiB" in words_in(figure)


def test_no_label_is_over_another_on_every_ladder(tmp_path: Path) -> None:
    some = billed(tuple(dict.fromkeys(row["rows_ladder"] for row in rows())))
    for ax in capture.draw({"a": read(tmp_path, some)}).axes:
        boxes = [box_of(label) for label in named(ax, "label")]
        assert len(boxes) > 5
        assert overlapping(boxes) == []


def test_the_table_says_which_budget_a_policy_is_over(tmp_path: Path) -> None:
    some = billed(("pow2",))
    (table,) = capture.facts({"a": read(tmp_path, some)}, budget_graphs=100, budget_mib=102)
    assert [str(cell) for cell in table.columns[0].cells] == ["pow2 8192", "pow2 2048", "pow2 512", "pow2 128"]
    assert [int(str(cell)) for cell in table.columns[1].cells] == [7, 28, 112, 448]
    assert [str(cell) for cell in table.columns[-1].cells] == [
        "within",
        "over in MiB",
        "over in graphs",
        "over in graphs, MiB",
    ]
    assert [str(cell) for cell in table.columns[3].cells] == ["120.0", "120.0", "-", "-"]


def test_no_bill_anywhere_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a: capture_mib is empty in every row: .*`nanoserve sweep` with the extra"):
        capture.draw({"a": read(tmp_path, rows(("pow2",)))})


@pytest.mark.parametrize("mib", [math.nan, math.inf, -1.0])
def test_a_budget_that_is_no_number(mib: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a budget must be a number of MiB"):
        capture.draw({"a": read(tmp_path, billed())}, budget_mib=mib)
