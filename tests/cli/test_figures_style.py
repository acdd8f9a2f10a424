"""Every figure: as wide as it says, print that can be read, its source in the corner, and the same bytes twice."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from figure_samples import named, overhang, read, rows, steps_of
from matplotlib.figure import Figure
from matplotlib.text import Text

from nanoserve import DecodeBuckets
from nanoserve_cli.figures import KINDS, kind_named, style

Inputs = dict[str, tuple[Any, ...]]
Drawn = Callable[..., Figure]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """What each kind of figure takes."""
    some = rows(("pow2", "vllm", "tgi"), model="tiny", dtype="float32", capture_mib=10.0, capture_s=3.0)
    results = {"sweep": read(tmp_path_factory.mktemp("results"), some)}
    return {"results": (results,), "steps": (steps_of(), DecodeBuckets(64, 8192)), "nothing": ()}


@pytest.fixture(scope="module")
def drawn(inputs: Inputs) -> Drawn:
    """`drawn(kind, layout)`, drawn once for every test that only looks."""
    return cache(lambda kind, layout="column": draw(kind, inputs, layout=style.LAYOUTS[layout]))


def draw(kind: str, inputs: Inputs, **more: Any) -> Figure:
    return KINDS[kind].draw(*inputs[KINDS[kind].takes], **more)


KIND = pytest.mark.parametrize("kind", KINDS)


class TestEveryKind:
    @KIND
    def test_a_column_is_3_5_inches_and_a_slide_is_16_to_9(self, kind: str, drawn: Drawn) -> None:
        assert drawn(kind).get_size_inches()[0] == 3.5
        width, height = drawn(kind, "slide").get_size_inches()
        assert width == 7.2
        assert height >= 4.05

    @KIND
    @pytest.mark.parametrize("layout", style.LAYOUTS)
    def test_nothing_leaves_the_page(self, kind: str, layout: str, drawn: Drawn) -> None:
        assert overhang(drawn(kind, layout)) <= 0.5

    @KIND
    def test_no_print_is_smaller_than_5_points(self, kind: str, drawn: Drawn) -> None:
        assert min(text.get_fontsize() for text in drawn(kind).findobj(Text) if text.get_text()) >= 5

    @KIND
    def test_its_source_is_in_the_corner(self, kind: str, inputs: Inputs) -> None:
        more = {"source": "a file"} if kind == "steps" else {}
        (text,) = named(draw(kind, inputs, **more), "source")
        words = " ".join(text.get_text().split())
        if kind == "shape":
            assert re.fullmatch(r"5 requests, planned by nanoserve \S+ and drawn from its plans", words)
        elif kind == "steps":
            assert words == "a file"
        else:
            assert words == "some-trace ab12cd34 · nanoserve 0.1.0 (0123456) · 2026-03-04"

    @KIND
    def test_every_panel_has_a_title_and_its_facts_a_table(self, kind: str, inputs: Inputs) -> None:
        tables = KINDS[kind].facts(*inputs[KINDS[kind].takes])
        assert tables
        assert all(table.title and table.row_count for table in tables)

    @KIND
    def test_axes_say_their_units(self, kind: str, drawn: Drawn) -> None:
        for ax in drawn(kind).axes:
            if ax.axison:
                assert ax.get_xlabel()
                assert ax.get_ylabel() or kind == "waste"

    @pytest.mark.parametrize("kind", ["tradeoff", "steps"])
    def test_matplotlib_is_left_as_it_was(self, kind: str, inputs: Inputs, tmp_path: Path) -> None:
        with matplotlib.rc_context({"font.size": 33.0, "axes.grid": True}):
            before = dict(matplotlib.rcParams)
            style.save(draw(kind, inputs), tmp_path / "a.png")
            assert dict(matplotlib.rcParams) == before


class TestFiles:
    @pytest.mark.parametrize(
        ("kind", "suffix"),
        [*((kind, ".png") for kind in KINDS), ("tradeoff", ".svg"), ("steps", ".svg"), ("waste", ".pdf")],
    )
    def test_the_same_data_give_the_same_bytes(self, kind: str, suffix: str, inputs: Inputs, tmp_path: Path) -> None:
        one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix}"
        style.save(draw(kind, inputs), one)
        with matplotlib.rc_context({"font.size": 33.0, "axes.grid": True, "svg.hashsalt": "another"}):
            style.save(draw(kind, inputs), other)
        assert one.read_bytes() == other.read_bytes()

    def test_a_pdf_has_its_fonts_as_text_and_no_date(self, drawn: Drawn, tmp_path: Path) -> None:
        style.save(drawn("tradeoff"), tmp_path / "a.pdf")
        content = (tmp_path / "a.pdf").read_bytes()
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        assert b"CreationDate" not in content

    def test_an_svg_has_no_date_and_a_png_no_software(self, drawn: Drawn, tmp_path: Path) -> None:
        for suffix, absent in ((".svg", b"<dc:date>"), (".png", b"Software")):
            style.save(drawn("waste"), tmp_path / f"a{suffix}")
            assert absent not in (tmp_path / f"a{suffix}").read_bytes()

    def test_a_png_is_300_dots_an_inch(self, drawn: Drawn, tmp_path: Path) -> None:
        style.save(drawn("waste"), tmp_path / "a.png")
        header = (tmp_path / "a.png").read_bytes()[16:24]
        assert int.from_bytes(header[:4], "big") == 1050

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("a.jpg", "a figure is written as .png, .svg, .pdf, not .jpg"),
            ("a", "a figure is written as .png, .svg, .pdf, not a name without one"),
        ],
    )
    def test_another_suffix_is_refused(self, name: str, words: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=re.escape(words)):
            style.save(Figure(), tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_a_suffix_may_be_in_capitals(self, tmp_path: Path) -> None:
        style.save(style.new_figure(style.COLUMN), tmp_path / "A.PNG")
        assert (tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")

    def test_what_cannot_be_written_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").mkdir()
        for path in (tmp_path / "a.png", tmp_path / "gone" / "a.png"):
            with pytest.raises(OSError, match=r"a\.png: cannot be written: "):
                style.save(style.new_figure(style.COLUMN), path)
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


class TestTitles:
    def test_a_long_one_is_cut_at_a_word(self) -> None:
        with style.applied():
            (ax,) = style.add_panels(style.new_figure(style.COLUMN), style.COLUMN, [2.0], source="here")
            style.title(ax, "synthetic " + "num_requests=20000 " * 9, "short")
        first, second = ax.texts
        assert re.fullmatch(r"synthetic( num_requests=20000)+ \.\.\.", first.get_text())
        assert second.get_text() == "short"
        assert overhang(ax.figure) <= 0.5


class TestRegistry:
    def test_the_nearest_kind_is_named(self) -> None:
        with pytest.raises(ValueError, match="no figure is called 'parto': did you mean pareto"):
            kind_named("parto")

    def test_nothing_heavy_is_imported_before_a_figure_is_drawn(self) -> None:
        code = (
            "import sys, nanoserve_cli.commands.plot\n"
            "print(sorted({'matplotlib', 'pandas', 'torch'} & {name.partition('.')[0] for name in sys.modules}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"

    def test_no_figure_is_kept_by_pyplot(self) -> None:
        code = (
            "import sys\nfrom nanoserve_cli.figures import KINDS\nKINDS['shape'].draw()\n"
            "print('matplotlib.pyplot' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
