"""A run at a glance on the terminal: progress, curves as sparklines, the health of pseudo-labels, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 32
# The name in metrics.jsonl, what it is called here, and how it is written.
ROWS = (
    ("loss", "loss", "{:.3f}"),
    ("val_top1", "validation top-1", "{:.1f} %"),
    ("test_top1", "test top-1", "{:.1f} %"),
    ("pseudo_label_accuracy", "pseudo-labels right", "{:.1f} %"),
    ("candidate_hit_rate", "truth among candidates", "{:.1f} %"),
    ("candidates", "candidate classes", "{:.1f}"),
    ("accepted", "labels that train", "{:.0%}"),
    ("predicted_classes", "classes predicted", "{:.1f}"),
    ("images_per_second", "images a second", "{:.0f}"),
)


class Dashboard:
    """Keeps the numbers of a run and shows them; rich asks for its look several times a second."""

    def __init__(self, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=WIDTH),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("", total=total, completed=done)
        self._values: dict[str, list[float]] = {}
        self._warnings: Sequence[str] = ()

    def step(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def add(self, numbers: Mapping[str, Any]) -> None:
        """The newest numbers, of training or of an evaluation."""
        for name, _, _ in ROWS:
            if name in numbers:
                self._values.setdefault(name, []).append(float(numbers[name]))

    def warn(self, warnings: Sequence[str]) -> None:
        """What is wrong now; replaces what was before."""
        self._warnings = warnings

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, title, form in ROWS:
            if name in self._values:
                values = self._values[name]
                table.add_row(title, Text(sparkline(values), style="cyan"), form.format(values[-1]))
        alarms = [Text(f"! {warning}", style="bold yellow") for warning in self._warnings]
        return Group(self._progress, table, *alarms)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as blocks of eight heights, from the lowest to the highest; many are averaged."""
    if len(values) > width:
        edges = [place * len(values) // width for place in range(width + 1)]
        parts = [values[start:end] for start, end in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    finite = [value for value in values if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if abs(value) < float("inf") else "?" for value in values)
