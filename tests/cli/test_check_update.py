"""`--update`: what is written, where, and that nothing else in the file is another byte."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest
from budgets import GRID, LOCKSTEP, budget, run
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.check.update import written_as
from nanoserve_cli.check.verdicts import Figure, Kind

STRANGE = f"""\
%YAML 1.2
---
# ünïcode 🙂 before
schema_version:   1
budgets:
- name: "one"      # quoted
  workload: {{ {LOCKSTEP} }}
  limits:
      padded_cells   :   {{at_most:   1_000,soft: 0% }}     # grouped
      "waste":
        'at_most'   : 1.0e-1       # small
      shapes_used: {{exactly: !!int "7"}}
      open_cells: {{
        at_least: 0x7FFFFFFF,   # hex
      }}

# the end, without a newline"""


def accepted(path: Path, *names: str, code: int = 0) -> list[str]:
    """The messages of an update; the check after it exits with `code`."""
    found = run("check", path, *(part for name in names for part in ("--update", name)))
    assert found.exit_code == code, found.output
    return [line for line in found.stderr.splitlines() if not line.startswith("running ")]


def test_only_the_numbers_change_whatever_the_file_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(STRANGE)
    assert accepted(path, "one") == [
        f"{path}:9: one: padded_cells at_most 1_000 -> 20_480",
        f"{path}:11: one: waste at_most 1.0e-1 -> 0.545313",
        f'{path}:12: one: shapes_used exactly "7" -> 1',
        f"{path}:14: one: open_cells at_least 0x7FFFFFFF -> 9312",
    ]
    expected = STRANGE
    for old, new in (("1_000", "20_480"), ("1.0e-1", "0.545313"), ('"7"', "1"), ("0x7FFFFFFF", "9312")):
        expected = expected.replace(old, new)
    assert path.read_bytes() == expected.encode()


def test_windows_lines_and_a_byte_order_mark_stay(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}}  # é")
    before = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(before)
    accepted(path, "one")
    assert path.read_bytes() == before.replace(b"at_most: 1}", b"at_most: 20480}")


def test_only_the_named_budgets_are_written(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    entries = [
        f"  - {{name: {name}, workload: {{{LOCKSTEP}}}, limits: {{padded_cells: {{at_most: 1}}}}}}" for name in "abc"
    ]
    path.write_text("\n".join(["schema_version: 1", "budgets:", *entries, ""]))
    accepted(path, "a", "c", code=3)
    assert [line.rpartition(": ")[2].rstrip("}\n") for line in path.read_text().splitlines()[2:]] == [
        "20480",
        "1",
        "20480",
    ]


def test_what_passes_or_is_better_stays_as_it_is(tmp_path: Path) -> None:
    limits = "{padded_cells: {at_most: 1}, shapes_available: {at_most: 64}, waste: {at_most: 0.9}}"
    path = budget(tmp_path / "b.yaml", limits)
    accepted(path, "one")
    assert limits.replace("1}", "20480}") in path.read_text()


def test_a_soft_figure_is_accepted_too(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 20400, soft: 2%}}")
    accepted(path, "one")
    assert "{at_most: 20480, soft: 2%}" in path.read_text()


def test_a_limit_on_several_rows_becomes_the_worst(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 3600, at_least: 3600}}", workload=GRID)
    accepted(path, "one")
    assert "{at_most: 4096, at_least: 3584}" in path.read_text()


def test_one_that_is_exact_cannot_be_several(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {exactly: 1}}", workload=GRID)
    before = path.read_bytes()
    found = run("check", path, "--update", "one", "-q")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == (f"error: {path}:5: padded_cells is exact and its rows differ, 3584 to 4096: add `where`\n")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [
        "{name: two, workload: {" + LOCKSTEP + "}, limits: *shared}",
        "{name: two, workload: {" + LOCKSTEP + "}, limits: {<<: *shared, waste: {at_most: 1}}}",
    ],
)
def test_a_value_that_an_anchor_shares_is_edited_by_hand(other: str, tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "&shared {padded_cells: {at_most: 1}}")
    with path.open("a") as file:
        file.write(f"  - {other}\n")
    before = path.read_bytes()
    found = run("check", path, "--update", "one", "-q")
    assert found.exit_code == 2
    assert found.stderr == f"error: {path}:5: padded_cells is shared through an anchor: edit it by hand\n"
    assert path.read_bytes() == before


def test_one_row_that_is_missing_is_accepted_by_nobody(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}, new_storage: {at_most: 0}}")
    assert accepted(path, "one", code=3) == [f"{path}:5: one: padded_cells at_most 1 -> 20480"]
    assert accepted(path, "one", code=3) == ["one: nothing to accept"]


def test_an_unknown_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}}")
    found = run("check", path, "--update", "on")
    assert (found.exit_code, found.stderr) == (2, f"error: {path} has no budget 'on': did you mean one?\n")


def test_a_file_that_cannot_be_written_is_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}}")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = run("check", path, "--update", "one", "-q")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "No space left on device" in found.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.yaml"]
    assert path.read_bytes() == before


@given(st.one_of(st.integers(0, 10**15), st.floats(0, 1e12, allow_nan=False)), st.sampled_from(["at_most", "at_least"]))
def test_what_is_written_is_a_number_that_the_figure_passes(figure: Figure, kind: Kind) -> None:
    text = written_as(figure, kind)
    assert set(text) <= set("0123456789.")
    number = Decimal(text)
    exact = Decimal(repr(figure))
    assert number >= exact if kind == "at_most" else number <= exact
    assert abs(number - exact) <= abs(exact) * Decimal("1e-5")
    assert len(text.replace(".", "").strip("0")) <= (99 if isinstance(figure, int) else 6)


@given(st.floats(0, 1e6, allow_nan=False))
def test_what_is_exact_is_written_with_every_digit(figure: float) -> None:
    assert float(written_as(figure, "exactly")) == figure
