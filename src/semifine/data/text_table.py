"""Text tables (CSV and TSV) as spreadsheets save them, and class names in one Unicode form."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from semifine.errors import UserError, first_few


def class_name(text: str) -> str:
    """The name of the class that a folder, a table or a list of labels means by a text."""
    # Systems write accents composed or decomposed, and nobody sees blanks around a name: it is one class in each form.
    return unicodedata.normalize("NFC", text.strip())


def names_that_differ_in_case(names: Iterable[str]) -> list[str]:
    """A note where classes differ in capital letters alone: most likely one class was meant."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.casefold(), []).append(name)
    meant = [" and ".join(f"'{name}'" for name in same) for same in spellings.values() if len(same) > 1]
    if not meant:
        return []
    return [f"learned as classes of their own, though only capital letters differ: {first_few(meant)}"]


@dataclass(frozen=True)
class TextTable:
    """The header as it is written, and the lines that hold something."""

    file: Path
    header: list[str]
    lines: list[tuple[int, list[str]]]
    """The number of each line in the file, and its cells: there may be fewer than the header has."""

    def column(self, name: str) -> int | None:
        """The place of a column, whatever the case of its name; None where there is none."""
        places = [place for place, column in enumerate(self.header) if _tidy(column) == _tidy(name)]
        if len(places) > 1:
            raise UserError(f"{self.file} has two columns '{_tidy(name)}': leave one.")
        return places[0] if places else None


def read_text_table(file: Path) -> TextTable:
    """Cells between commas, semicolons or tabs, in UTF-8."""
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the header
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
    return TextTable(file, header, lines)


def cell(cells: list[str], column: int | None) -> str:
    """What a line says in a column, without blanks around it; nothing where the line or the table has no such."""
    return cells[column].strip() if column is not None and column < len(cells) else ""


def backslash_hint(paths: list[str]) -> str:
    """What to do about paths as Windows writes them, where there is one: here they name no file."""
    return " Write / instead of \\ in paths." if any("\\" in path for path in paths) else ""


def _delimiter(file: Path, first_line: str) -> str:
    """Spreadsheets of many countries put semicolons, and call it CSV; so do others with tabs."""
    known = "\t,;" if file.suffix.lower() == ".tsv" else ",;\t"
    return next((mark for mark in known if mark in first_line), known[0])


def _tidy(name: str) -> str:
    return name.strip().lower()
