"""Formats the tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from semifine.data.csv_table import write_csv
from semifine.experiments.tables import Cell, Row, Table

Cells = Mapping[tuple[str, str], Cell]
INIT_NAMES = {"scratch": "from scratch", "imagenet": "from ImageNet", "inat": "from iNat"}


class Column(NamedTuple):
    """A column with its title and a heading that it shares with its neighbors."""

    heading: str
    title: str


@dataclass(frozen=True)
class Sheet:
    """A table, or a block of a table with its own columns."""

    columns: list[Column]
    rows: list[list[str]]
    is_grouped: bool = False
    """Whether the first column is the group of the row."""


def lay_out(table: Table, inits: Sequence[str], cells: Cells, with_time: bool) -> list[Sheet]:
    """Returns the blocks of a table. They contain the numbers of the paper if there are any."""
    with_paper = any(cell.published for cell in cells.values())
    if table.layout == "blocks":
        groups = groupby(table.rows, key=lambda row: row.group)
        return [_block(group, list(rows), inits, cells, with_paper, with_time) for group, rows in groups]
    columns = [Column("", "Pseudo-label"), Column("", "Method")]
    for init in inits:
        for source in ("", "paper, ") if with_paper else ("",):
            columns += [Column(source + INIT_NAMES[init], title) for title in ("top-1", "top-5")]
    columns += [Column("time", INIT_NAMES[init]) for init in inits if with_time]
    lines = [[row.group, row.title, *_line(row, inits, cells, with_paper, with_time)] for row in table.rows]
    return [Sheet(columns, lines, is_grouped=True)]


def missing_notes(table: Table, inits: Sequence[str], cells: Cells) -> list[str]:
    """Returns a sentence for each row that the data set does not allow, and for each failed run."""
    unavailable = {row.title: cells[row.title, inits[0]].unavailable for row in table.rows}  # equal for all inits
    failed = [
        f"{row.title}, {INIT_NAMES[init]}: {failure}"
        for row in table.rows
        for init in inits
        for failure in cells[row.title, init].failures
    ]
    return [*(f"{title}: {reason}" for title, reason in unavailable.items() if reason), *failed]


def _line(row: Row, inits: Sequence[str], cells: Cells, with_paper: bool, with_time: bool) -> Iterator[str]:
    for init in inits:
        cell = cells[row.title, init]
        yield cell.text("top1") + cell.progress_note
        yield cell.text("top5")
        if with_paper:
            yield from cell.published.split(" / ") if cell.published else ("-", "-")
    if with_time:
        yield from (_format_time(cells[row.title, init]) for init in inits)


def _block(
    title: str, rows: Sequence[Row], inits: Sequence[str], cells: Cells, with_paper: bool, with_time: bool
) -> Sheet:
    lines = []
    for init in inits:
        column = [cells[row.title, init] for row in rows]
        lines.append([f"top-1 / top-5, {INIT_NAMES[init]}", *map(_format_accuracies, column)])
        if with_paper:
            lines.append([f"paper, {INIT_NAMES[init]}", *(cell.published or "-" for cell in column)])
        if with_time:
            lines.append([f"time, {INIT_NAMES[init]}", *map(_format_time, column)])
    return Sheet([Column("", title), *(Column("", row.short) for row in rows)], lines)


def _format_accuracies(cell: Cell) -> str:
    if not cell.results:
        return cell.text("top1")
    return f"{cell.text('top1')} / {cell.text('top5')}{cell.progress_note}"


def _format_time(cell: Cell) -> str:
    return f"{statistics.mean(cell.seconds):.0f} s" if cell.seconds else "-"


LATEX_CHARACTERS = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "±": r"$\pm$",
        "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
        "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
        "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
        "—": "---",
    }
)


def as_markdown(table: Table, inits: Sequence[str], cells: Cells, notes: Sequence[str]) -> str:
    """Returns the table in Markdown, with reasons of missing numbers and the notes as a list below it."""
    lines = [f"# {table.title}", ""]
    for sheet in lay_out(table, inits, cells, with_time=True):
        lines.append(_markdown_row([": ".join(filter(None, column)) for column in sheet.columns]))
        lines.append(_markdown_row(["---"] * len(sheet.columns)))
        lines += [*map(_markdown_row, _without_repeated_groups(sheet)), ""]
    return "\n".join([*lines, *(f"- {note}" for note in [*missing_notes(table, inits, cells), *notes]), ""])


def as_csv(table: Table, inits: Sequence[str], cells: Cells) -> str:
    """Returns one line per row and starting weights, with all numbers of the runs."""
    columns = "row,init,seeds,top1,top1_std,top5,top5_std,best_on_test_top1,seconds,paper,failure".split(",")
    rows: list[list[Any]] = [columns]
    for row in table.rows:
        for init in inits:
            cell = cells[row.title, init]
            best = [result["best_on_test"]["top1"] for result in cell.results if "best_on_test" in result]
            figures = [*_mean_and_std(cell.numbers("top1")), *_mean_and_std(cell.numbers("top5"))]
            figures += [_mean_and_std(best)[0], _mean_and_std(cell.seconds)[0]]
            reason = "; ".join(cell.failures) or cell.unavailable
            rows.append([row.title, init, len(cell.results), *figures, cell.published or "", reason])
    stream = io.StringIO()
    write_csv(stream, rows, line_end="\r\n")
    return stream.getvalue()


def as_latex(table: Table, inits: Sequence[str], cells: Cells) -> str:
    """Returns the table for the LaTeX packages booktabs and multirow, with reasons of missing numbers below it."""
    sheets = [_sheet_to_latex(sheet) for sheet in lay_out(table, inits, cells, with_time=False)]
    names = 1 + sheets[0].is_grouped
    numbers = max(len(sheet.columns) for sheet in sheets) - names
    lines = [r"% \usepackage{booktabs, multirow}", rf"\begin{{tabular}}{{{'l' * names}{'c' * numbers}}}", r"\toprule"]
    for number, sheet in enumerate(sheets):
        lines += [r"\midrule"] * bool(number) + _latex_header(sheet) + [r"\midrule"] + _latex_body(sheet)
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par{{\footnotesize {_latex(note)}}}" for note in missing_notes(table, inits, cells)]
    return "\n".join([*lines, ""])


def _without_repeated_groups(sheet: Sheet) -> list[list[str]]:
    if not sheet.is_grouped:
        return sheet.rows
    repeated = [False, *(before[0] == row[0] for before, row in pairwise(sheet.rows))]
    return [["", *row[1:]] if again else row for again, row in zip(repeated, sheet.rows, strict=True)]


def _sheet_to_latex(sheet: Sheet) -> Sheet:
    columns = [Column(_latex(column.heading), _latex(column.title)) for column in sheet.columns]
    return Sheet(columns, [[_latex(text) for text in row] for row in sheet.rows], sheet.is_grouped)


def _latex(text: str) -> str:
    return text.translate(LATEX_CHARACTERS)


def _latex_header(sheet: Sheet) -> list[str]:
    titles = _latex_row([column.title for column in sheet.columns])
    if not any(column.heading for column in sheet.columns):
        return [titles]
    spans = [
        (heading, len(list(columns))) for heading, columns in groupby(sheet.columns, key=lambda column: column.heading)
    ]
    return [_latex_row([rf"\multicolumn{{{width}}}{{c}}{{{heading}}}" for heading, width in spans]), titles]


def _latex_body(sheet: Sheet) -> list[str]:
    if not sheet.is_grouped:
        return [_latex_row(row) for row in sheet.rows]
    lines: list[str] = []
    for group, members in groupby(sheet.rows, key=lambda row: row[0]):
        rows = [row[1:] for row in members]
        named = [rf"\multirow{{{len(rows)}}}{{*}}{{{group}}}"] + [""] * (len(rows) - 1)
        lines += [r"\midrule"] * bool(lines)
        lines += [_latex_row([name, *row]) for name, row in zip(named, rows, strict=True)]
    return lines


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _mean_and_std(values: Sequence[float]) -> tuple[str, str]:
    mean = f"{statistics.mean(values):.2f}" if values else ""
    return mean, f"{statistics.stdev(values):.2f}" if len(values) > 1 else ""
