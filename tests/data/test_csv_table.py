"""CSV and TSV tables with different delimiters."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semifine.data import csv_table
from semifine.data.csv_table import (
    CsvTable,
    backslash_hint,
    get_cell,
    quote_formula,
    read_csv,
    unquote_formula,
    write_csv,
)
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


CELLS = st.text(st.sampled_from("=+-@\uff1d\t\r\n'\"ab1, ;é")) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0")
)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1))
def test_names_are_read_as_they_were_written(pairs: list[tuple[str, str]]) -> None:
    """Only spaces around names are lost, as in tables that people write."""
    names = [(path.strip() or "x", label.strip()) for path, label in pairs]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            write_csv(stream, [("path", "label"), *names])
        found = [(get_cell(cells, 0), get_cell(cells, 1)) for _, cells in read_csv(file).lines]
    assert found == names


@given(CELLS | st.integers() | st.floats())
def test_no_text_begins_a_formula_and_numbers_stay(value: str | float) -> None:
    quoted = quote_formula(value)
    if isinstance(value, str):
        assert not quoted.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        assert not any(part.startswith(("=", "+", "-", "@", "\uff1d")) for part in re.split("[;\t\r\n]", quoted))
        assert unquote_formula(quoted) == value
    else:
        assert quoted is value


@pytest.mark.parametrize("text", ["path,label\n" + "a" * 2_000_000, "a" * 2_000_000])
def test_a_line_has_a_limit(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.csv is no table: a line has more than 1,048,576 characters"):
        read(tmp_path, text)


def test_an_endless_table_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_table, "MAX_LENGTH", 1000)
    with pytest.raises(UserError, match=r"t\.csv is no table: it has more than 1,000 characters"):
        read(tmp_path, "path,label\n" + "a,b\n" * 1000)
    with pytest.raises(UserError, match=r"/dev/zero is no table"):
        read_csv(Path("/dev/zero"))


def test_a_hint_is_given_for_windows_paths() -> None:
    assert backslash_hint(["a/b.jpg", "a\\b.jpg"]) == " Write / instead of \\ in paths."
    assert backslash_hint(["a/b.jpg"]) == ""
