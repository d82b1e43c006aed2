"""A filled table as text in rows and columns, as the paper lays it out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from semifine.experiments.tables import Cell, Row, Table

Cells = Mapping[tuple[str, str], Cell]
INIT_NAMES = {"scratch": "from scratch", "imagenet": "from ImageNet", "inat": "from iNat"}


class Column(NamedTuple):
    """A title, and what stands above it and its neighbours."""

    over: str
    title: str


@dataclass(frozen=True)
class Sheet:
    """What has the same columns: a whole table, or a block of it. The first column of a grouped one is the group."""

    columns: list[Column]
    rows: list[list[str]]
    is_grouped: bool = False


def lay_out(table: Table, inits: Sequence[str], cells: Cells, with_time: bool) -> list[Sheet]:
    """The paper's numbers stand beside ours where there are any."""
    with_paper = any(cell.published for cell in cells.values())
    if table.layout == "blocks":
        groups = groupby(table.rows, key=lambda row: row.group)
        return [_block(group, list(rows), inits, cells, with_paper, with_time) for group, rows in groups]
    columns = [Column("", "Pseudo-label"), Column("", "Method")]
    for init in inits:
        for whose in ("", "paper, ") if with_paper else ("",):
            columns += [Column(whose + INIT_NAMES[init], title) for title in ("top-1", "top-5")]
    columns += [Column("time", INIT_NAMES[init]) for init in inits if with_time]
    lines = [[row.group, row.title, *_line(row, inits, cells, with_paper, with_time)] for row in table.rows]
    return [Sheet(columns, lines, is_grouped=True)]


def missing_notes(table: Table, inits: Sequence[str], cells: Cells) -> list[str]:
    """One sentence for each row that cannot be, and for each run that failed."""
    absent = {row.title: cells[row.title, inits[0]].absent for row in table.rows}  # of the images, whatever the start
    failed = [
        f"{row.title}, {INIT_NAMES[init]}: {failure}"
        for row in table.rows
        for init in inits
        for failure in cells[row.title, init].failures
    ]
    return [*(f"{title}: {reason}" for title, reason in absent.items() if reason), *failed]


def _line(row: Row, inits: Sequence[str], cells: Cells, with_paper: bool, with_time: bool) -> Iterator[str]:
    for init in inits:
        cell = cells[row.title, init]
        yield cell.text("top1") + cell.so_far
        yield cell.text("top5")
        if with_paper:
            yield from cell.published.split(" / ") if cell.published else ("-", "-")
    if with_time:
        yield from (_time(cells[row.title, init]) for init in inits)


def _block(
    title: str, rows: Sequence[Row], inits: Sequence[str], cells: Cells, with_paper: bool, with_time: bool
) -> Sheet:
    lines = []
    for init in inits:
        column = [cells[row.title, init] for row in rows]
        lines.append([f"top-1 / top-5, {INIT_NAMES[init]}", *map(_both, column)])
        if with_paper:
            lines.append([f"paper, {INIT_NAMES[init]}", *(cell.published or "-" for cell in column)])
        if with_time:
            lines.append([f"time, {INIT_NAMES[init]}", *map(_time, column)])
    return Sheet([Column("", title), *(Column("", row.short) for row in rows)], lines)


def _both(cell: Cell) -> str:
    if not cell.results:
        return cell.text("top1")
    return f"{cell.text('top1')} / {cell.text('top5')}{cell.so_far}"


def _time(cell: Cell) -> str:
    return f"{statistics.mean(cell.seconds):.0f} s" if cell.seconds else "-"
