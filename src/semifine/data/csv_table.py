"""Reads CSV and TSV tables as spreadsheets save them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from semifine.errors import UserError

MAX_LINE = 1 << 20
MAX_LENGTH = 1 << 30
"""Number of characters of the longest table, with a few million images."""


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
            return parse_csv(opened, file)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: save it as CSV in UTF-8.") from error


def parse_csv(stream: TextIO, file: Path) -> CsvTable:
    """Reads a table from text; ``file`` is its name in messages.

    Raises:
        UserError: If the text is not a valid table.

    Example:
        >>> parse_csv(io.StringIO("path,label\\na.jpg,robin\\n"), Path("labels.csv")).lines
        [(2, ['a.jpg', 'robin'])]
    """
    text = _bounded_lines(stream, file)
    first = next(text, "")
    reader = csv.reader(chain([first], text), delimiter=_delimiter(file, first), strict=True)
    try:
        header, lines = next(reader, []), []
        for cells in reader:
            if any(text.strip() for text in cells):
                lines.append((reader.line_num, cells))
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}; correct the line.") from error
    return CsvTable(file, header, lines)


def _bounded_lines(opened: TextIO, file: Path) -> Iterator[str]:
    """Yields the lines; raises UserError for a file that is larger than any table, such as an endless one."""
    length = 0
    while line := opened.readline(MAX_LINE):
        length += len(line)
        if len(line) == MAX_LINE or length > MAX_LENGTH:
            part, limit = ("a line", MAX_LINE) if len(line) == MAX_LINE else ("it", MAX_LENGTH)
            raise UserError(f"{file} is no table: {part} has more than {limit:,} characters.")
        yield line


def get_cell(cells: list[str], column: int | None) -> str:
    """The text of a cell, without surrounding spaces and the apostrophe of :func:`quote_formula`.

    The text is empty if the line or the table does not have the column.
    """
    return unquote_formula(cells[column].strip()) if column is not None and column < len(cells) else ""


# At the start, and after a character at which some spreadsheets begin a new cell. The last four are wide letters.
_START = r"(?<![^;\t\r\n])"
_FORMULA = r"(?='*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])"
_UNQUOTED, _QUOTE = re.compile(_START + _FORMULA), re.compile(_START + "'" + _FORMULA)


def quote_formula(value: Any) -> Any:
    """Puts an apostrophe before text that spreadsheets would execute as a formula, such as a file name that begins
    with ``=``. Numbers and other values stay as they are.

    Spreadsheets in many countries split cells at semicolons, so a formula after a semicolon is quoted, too.

    Example:
        >>> quote_formula("=1+1.jpg"), quote_formula("robin"), quote_formula(-0.5)
        ("'=1+1.jpg", 'robin', -0.5)
        >>> quote_formula("robin;=1+1.jpg")
        "robin;'=1+1.jpg"
    """
    return _UNQUOTED.sub("'", value) if isinstance(value, str) else value


def unquote_formula(text: str) -> str:
    """Removes the apostrophe of :func:`quote_formula`.

    Example:
        >>> unquote_formula("'=1+1.jpg"), unquote_formula("'t Hooft.jpg")
        ('=1+1.jpg', "'t Hooft.jpg")
    """
    return _QUOTE.sub("", text)


def write_csv(stream: TextIO, rows: Iterable[Iterable[Any]], line_end: str = "\n") -> None:
    """Writes a table that :func:`read_csv` reads and spreadsheets open without executing a cell.

    Example:
        >>> import sys
        >>> write_csv(sys.stdout, [("path", "label"), ("-1.jpg", "robin")])
        path,label
        '-1.jpg,robin
    """
    line = io.StringIO()
    writer = csv.writer(line)  # with its own line end, it quotes all line ends in cells
    for row in rows:
        writer.writerow([quote_formula(cell) for cell in row])
        stream.write(line.getvalue().removesuffix("\r\n") + line_end)
        line.seek(0)
        line.truncate()


def backslash_hint(paths: list[str]) -> str:
    """A remedy for paths with backslashes, which name no file on Linux and macOS; empty if there are none."""
    return " Write / instead of \\ in paths." if any("\\" in path for path in paths) else ""


def _delimiter(file: Path, first_line: str) -> str:
    """Finds the delimiter: spreadsheets in many countries save CSV with semicolons or tabs."""
    candidates = "\t,;" if file.suffix.lower() == ".tsv" else ",;\t"
    return next((delimiter for delimiter in candidates if delimiter in first_line), candidates[0])


def _normalize(name: str) -> str:
    return name.strip().lower()
