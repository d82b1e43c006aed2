"""Reads CSV and TSV tables as spreadsheets save them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from semifine.errors import UserError


@dataclass(frozen=True)
class CsvTable:
    """The header and the non-empty lines of a table.

    Args:
        file: The file of the table.
        header: The column names as written.
        lines: The line number and the cells of each line; a line may have fewer cells than the header.
    """

    file: Path
    header: list[str]
    lines: list[tuple[int, list[str]]]

    def column(self, name: str) -> int | None:
        """Finds the index of a column, ignoring case and surrounding spaces; None if there is no such column."""
        indices = [index for index, column in enumerate(self.header) if _normalize(column) == _normalize(name)]
        if len(indices) > 1:
            raise UserError(f"{self.file} has two columns '{_normalize(name)}': remove one.")
        return indices[0] if indices else None


def read_csv(file: Path) -> CsvTable:
    """Reads a UTF-8 table with cells separated by commas, semicolons or tabs.

    Raises:
        UserError: If the file is not UTF-8 text or not a valid table.

    Example:
        >>> Path("labels.csv").write_text("path;label\\na.jpg;robin\\n")
        23
        >>> read_csv(Path("labels.csv")).lines
        [(2, ['a.jpg', 'robin'])]
    """
    try:
        # utf-8-sig: spreadsheets write a byte order mark before the header
        with open(file, encoding="utf-8-sig", newline="") as opened:
            first = opened.readline()
            reader = csv.reader(chain([first], opened), delimiter=_delimiter(file, first), strict=True)
            header, lines = next(reader, []), []
            for cells in reader:
                if any(text.strip() for text in cells):
                    lines.append((reader.line_num, cells))
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}.") from error
    return CsvTable(file, header, lines)


def get_cell(cells: list[str], column: int | None) -> str:
    """The cell of a column without surrounding spaces; empty if the line or the table does not have the column."""
    return cells[column].strip() if column is not None and column < len(cells) else ""


def backslash_hint(paths: list[str]) -> str:
    """A remedy for paths with backslashes, which name no file on Linux and macOS; empty if there are none."""
    return " Write / instead of \\ in paths." if any("\\" in path for path in paths) else ""


def _delimiter(file: Path, first_line: str) -> str:
    """Finds the delimiter: spreadsheets in many countries save CSV with semicolons or tabs."""
    candidates = "\t,;" if file.suffix.lower() == ".tsv" else ",;\t"
    return next((delimiter for delimiter in candidates if delimiter in first_line), candidates[0])


def _normalize(name: str) -> str:
    return name.strip().lower()
