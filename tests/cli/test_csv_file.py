"""A results file read back: types, what a kill left, and what is no results file. `test_records.py` has the writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nanoserve_cli.columns import COLUMNS, DTYPES, KEY_COLUMNS, RUN_COLUMNS, SETTING_COLUMNS
from nanoserve_cli.csv_file import (
    OtherSchema,
    RecordsError,
    append_row,
    check_finite,
    csv_text,
    measured_rows,
    parse_row,
    prepare_file,
    read_results,
    read_rows,
    write_rows,
)

EXAMPLES = {"string": 'a "b", c\nd', "Int64": 2**53 + 1, "Float64": 0.1, "boolean": True}
ROW: dict[str, Any] = {column.name: EXAMPLES[column.dtype] for column in COLUMNS} | {"schema_version": 2}
HEADER = csv_text([])


class TestRoundTrip:
    def test_every_column_comes_back_with_its_type_and_to_the_bit(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        write_rows(path, [ROW])
        ((row,), cut) = read_rows(path)
        assert (parse_row(row, path), cut) == (ROW, 0)

    def test_what_was_not_measured_comes_back_as_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        write_rows(path, [{"schema_version": 2}])
        ((row,), _) = read_rows(path)
        assert parse_row(row, path) == dict.fromkeys(RUN_COLUMNS) | {"schema_version": 2}

    def test_text_that_looks_like_a_number_stays_text(self, tmp_path: Path) -> None:
        """A git sha of digits alone, or like 1e100, is no number."""
        path = tmp_path / "o.csv"
        write_rows(path, [{"schema_version": 2, "git_sha": "1e100", "config_hash": "0012345678901234"}])
        frame = read_results(path)
        assert frame["git_sha"].tolist() == ["1e100"]
        assert frame["config_hash"].tolist() == ["0012345678901234"]

    def test_a_frame_has_the_documented_dtypes_whether_a_column_is_filled_or_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        for rows in ([ROW], [{"schema_version": 2}], [ROW, {"schema_version": 2}]):
            write_rows(path, rows)
            frame = read_results(path)
            assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == DTYPES
            assert frame.attrs["cut"] == 0
        assert frame["steps"].tolist() == [2**53 + 1, pd.NA]

    def test_parsing_and_writing_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """What `--resume` does to a row that it keeps."""
        path = tmp_path / "o.csv"
        write_rows(path, [ROW, {"schema_version": 2, "waste": 1 / 3, "seed": 0, "git_dirty": False}])
        before = path.read_bytes()
        write_rows(path, [parse_row(row, path) for row in read_rows(path)[0]])
        assert path.read_bytes() == before

    def test_a_byte_order_mark_is_no_column(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text(csv_text([ROW]), encoding="utf-8-sig")
        assert len(read_rows(path)[0]) == 1


class TestCut:
    def test_a_row_cut_anywhere_is_never_taken_for_a_whole_one(self, tmp_path: Path) -> None:
        """Least of all in its last cell, where all columns are there and a number is short of digits."""
        path = tmp_path / "o.csv"
        last = {"schema_version": 2, "steps": 5, "command": "nanoserve sweep --w 8,64", "capture_mib_measured": 123.456}
        first = csv_text([ROW]).encode()
        whole = csv_text([ROW, last]).encode()
        for cut in range(len(first), len(whole)):
            path.write_bytes(whole[:cut])
            rows, lost = read_rows(path)
            assert (len(rows), lost) == (1, int(cut > len(first)))
            append_row(path, last | {"steps": 6})
            assert [row["steps"] for row in read_rows(path)[0]] == [str(2**53 + 1), "6"], whole[:cut]
        assert read_rows(path)[1] == 1

    @pytest.mark.parametrize("cut", [0, 1, 40, len(HEADER) - 1])
    def test_a_header_cut_anywhere_is_a_file_without_rows(self, cut: int, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text(HEADER[:cut])
        assert read_rows(path) == ([], int(cut > 0))
        prepare_file(path)
        append_row(path, ROW)
        assert path.read_text() == csv_text([ROW])

    def test_lines_cut_short_are_counted_in_the_frame(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text(csv_text([ROW]) + "2,2026")
        assert (len(read_results(path)), read_results(path).attrs["cut"]) == (1, 1)


class TestWrong:
    @pytest.mark.parametrize("text", ["", HEADER, HEADER[:-1], HEADER + "2,2026"])
    def test_a_file_without_a_whole_row_measured_nothing(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text(text)
        for read in (measured_rows, read_results):
            with pytest.raises(RecordsError, match=r"o\.csv: holds no whole row: nothing was measured$"):
                read(path)

    def test_another_schema_names_both_versions(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text("schema_version,started_utc\n1,2026\n")
        with pytest.raises(
            OtherSchema, match=r"o\.csv: is of results schema 1, this nanoserve reads 2: make it again$"
        ):
            read_rows(path)

    @pytest.mark.parametrize("text", ["\n", "a,b\n1,2\n", "hello", "{}\n"])
    def test_what_is_no_results_file_is_told_apart_from_another_schema(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text(text)
        with pytest.raises(
            RecordsError, match=r"o\.csv: is no results file: its first line is not the header"
        ) as caught:
            read_rows(path)
        assert not isinstance(caught.value, OtherSchema)

    def test_what_is_no_text_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "o.csv").write_bytes(b"\xff\xfe\x00")
        for path in (tmp_path / "o.csv", tmp_path / "absent.csv", tmp_path):
            with pytest.raises(RecordsError, match="cannot be read: "):
                read_rows(path)

    @pytest.mark.parametrize(
        ("name", "text", "dtype"),
        [("steps", "many", "Int64"), ("waste", "x", "Float64"), ("completed", "yes", "boolean")],
    )
    def test_a_cell_of_another_type_names_its_column(self, name: str, text: str, dtype: str, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        write_rows(path, [ROW | {name: text}])
        with pytest.raises(RecordsError, match=rf"^{path}: column {name} holds '{text}', which is no {dtype}$"):
            parse_row(read_rows(path)[0][0], path)


class TestColumns:
    def test_every_column_says_what_it_holds_or_is_named_after_it(self) -> None:
        """The one place where the schema is documented."""
        assert len(set(RUN_COLUMNS)) == len(RUN_COLUMNS)
        silent = {column.name for column in COLUMNS if not column.about}
        assert silent <= {
            "nanoserve_version",
            "python_version",
            "model",
            "dtype",
            "finished",
            "rejected",
            "failed",
            "preemptions",
        }

    def test_what_tells_two_points_apart_is_a_setting_or_the_seed(self) -> None:
        assert set(KEY_COLUMNS) == {*SETTING_COLUMNS, "seed"} - {"repeats"}

    def test_only_what_can_be_better_has_a_direction(self) -> None:
        assert all(not column.better for column in COLUMNS if column.kind in ("provenance", "setting"))
        assert all(column.dtype == "Float64" for column in COLUMNS if column.kind == "time")


class TestNotOurs:
    """What a file holds that no run of this version wrote: said, and never dropped in silence."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        write_rows(tmp_path / "a.csv", [{"schema_version": 2, "steps": 3, "waste": 0.5, "shapes_available": 4}])
        return tmp_path / "a.csv"

    def test_a_row_of_another_schema_is_no_cut_row(self, path: Path) -> None:
        path.write_text(path.read_text().replace("\n2,", "\n3,"))
        with pytest.raises(OtherSchema, match="holds rows of results schema 3, this nanoserve reads 2"):
            read_rows(path)

    def test_a_column_too_many_is_named(self, path: Path) -> None:
        path.write_text(path.read_text().replace("\n", ",extra\n", 1).replace("\n2,", "\n2,").rstrip("\n") + ",1\n")
        with pytest.raises(RecordsError, match="has other columns than results schema 2: extra; make it again"):
            read_rows(path)

    @pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
    def test_no_run_measures_nan(self, path: Path, value: str) -> None:
        path.write_text(path.read_text().replace(",0.5,", f",{value},"))
        with pytest.raises(RecordsError, match="column waste holds"):
            read_results(path)
        with pytest.raises(RecordsError, match=f"column waste holds {value}, which no run measures"):
            check_finite(parse_row(read_rows(path)[0][0], path), path)


class TestWhereItIsWritten:
    def test_through_a_link_the_file_it_names_changes(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target.csv", tmp_path / "link.csv"
        target.write_text("old")
        link.symlink_to(target)
        write_rows(link, [])
        assert link.is_symlink()
        assert target.read_text().startswith("schema_version,")

    def test_its_mode_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("old")
        path.chmod(0o640)
        write_rows(path, [])
        assert path.stat().st_mode & 0o777 == 0o640
