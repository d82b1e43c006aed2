"""CSV and TSV tables with different delimiters."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.data.csv_table import CsvTable, backslash_hint, get_cell, read_csv
from semifine.errors import UserError


def read(folder: Path, text: str, name: str = "t.csv") -> CsvTable:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return read_csv(folder / name)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_header_determines_the_delimiter(tmp_path: Path, mark: str, name: str) -> None:
    table = read(tmp_path, f"path{mark}label\r\na.png{mark}wren\r\n", name)
    assert (table.header, table.lines) == (["path", "label"], [(2, ["a.png", "wren"])])


def test_the_comma_takes_precedence_and_the_tab_in_tsv_files(tmp_path: Path) -> None:
    assert read(tmp_path, "path,a;b\tc\n").header == ["path", "a;b\tc"]
    assert read(tmp_path, "path\ta,b;c\n", "t.tsv").header == ["path", "a,b;c"]


def test_blank_lines_are_skipped_and_short_lines_are_kept(tmp_path: Path) -> None:
    assert read(tmp_path, "a,b\n\n , \n,\n1\n").lines == [(5, ["1"])]


def test_columns_are_found_in_any_case_and_must_be_unique(tmp_path: Path) -> None:
    table = read(tmp_path, "Path , LABEL,label\n")
    assert table.column("path") == 0
    assert table.column("split") is None
    with pytest.raises(UserError, match=r"t\.csv has two columns 'label': remove one"):
        table.column("label")


def test_cells_are_stripped_and_may_be_missing() -> None:
    assert [get_cell([" a ", "b"], column) for column in (0, 1, 2, None)] == ["a", "b", "", ""]


def test_a_hint_is_given_for_windows_paths() -> None:
    assert backslash_hint(["a/b.jpg", "a\\b.jpg"]) == " Write / instead of \\ in paths."
    assert backslash_hint(["a/b.jpg"]) == ""
