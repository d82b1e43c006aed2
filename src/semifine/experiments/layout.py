"""A filled table as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence

from semifine.experiments.tables import Cell, Table

Cells = Mapping[tuple[str, str], Cell]
INIT_NAMES = {"scratch": "from scratch", "imagenet": "from ImageNet", "inat": "from iNat"}


def heading(inits: Sequence[str], with_paper: bool) -> list[str]:
    """Titles of the columns after the first."""
    titles = []
    for init in inits:
        titles.append(INIT_NAMES[init])
        if with_paper:
            titles.append(f"paper, {INIT_NAMES[init]}")
    return titles


def has_published(cells: Cells) -> bool:
    return any(cell.published for cell in cells.values())


def body(table: Table, inits: Sequence[str], cells: Cells) -> list[list[str]]:
    """The rows as text, the paper's numbers beside ours where there are any."""
    with_paper = has_published(cells)
    rows = []
    for row in table.rows:
        line = [row.title]
        for init in inits:
            cell = cells[row.title, init]
            line.append(cell.text())
            if with_paper:
                line.append(cell.published or "-")
        rows.append(line)
    return rows


def as_markdown(table: Table, inits: Sequence[str], cells: Cells, notes: Sequence[str]) -> str:
    titles = ["", *heading(inits, has_published(cells)), *(f"time, {INIT_NAMES[init]}" for init in inits)]
    lines = [f"# {table.title}", "", _markdown_row(titles), _markdown_row(["---"] * len(titles))]
    for row, line in zip(table.rows, body(table, inits, cells), strict=True):
        lines.append(_markdown_row([*line, *(_time(cells[row.title, init]) for init in inits)]))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def as_csv(table: Table, inits: Sequence[str], cells: Cells) -> str:
    """One line a row and start, with every number that a run has."""
    columns = "row,init,seeds,top1,top1_std,top5,top5_std,best_on_test_top1,seconds,paper,failure".split(",")
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(columns)
    for row in table.rows:
        for init in inits:
            cell = cells[row.title, init]
            best = [result["best_on_test"]["top1"] for result in cell.results if "best_on_test" in result]
            figures = [*_mean_and_std(cell.numbers("top1")), *_mean_and_std(cell.numbers("top5"))]
            figures += [_mean_and_std(best)[0], _mean_and_std(cell.seconds)[0]]
            reason = "; ".join(cell.failures)
            writer.writerow([row.title, init, len(cell.results), *figures, cell.published or "", reason])
    return stream.getvalue()


def as_latex(table: Table, inits: Sequence[str], cells: Cells) -> str:
    titles = ["Method", *heading(inits, has_published(cells))]
    lines = [r"\begin{tabular}{l" + "c" * (len(titles) - 1) + "}", r"\toprule", _latex_row(titles), r"\midrule"]
    lines += [_latex_row(line) for line in body(table, inits, cells)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _time(cell: Cell) -> str:
    return f"{statistics.mean(cell.seconds):.0f} s" if cell.seconds else "-"


def _mean_and_std(values: Sequence[float]) -> tuple[str, str]:
    mean = f"{statistics.mean(values):.2f}" if values else ""
    return mean, f"{statistics.stdev(values):.2f}" if len(values) > 1 else ""


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("±", r"$\pm$").replace("%", r"\%").replace("_", r"\_") for cell in cells)
    return " & ".join(escaped) + r" \\"
