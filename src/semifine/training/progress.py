"""Progress of a run: warnings, the dashboard on the terminal, and ``log.jsonl``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from semifine.errors import Interrupted
from semifine.files import errors_name, open_regular
from semifine.runs.accuracy import short_interval
from semifine.version import code_version

EARLY = 0.1
"""Fraction of the steps during which collapsed predictions are normal."""
FEW_CLASSES = 0.2
"""Fraction of the classes below which predictions count as collapsed; a balanced run predicts nearly all classes."""
LONG_WAIT = 0.5
"""Fraction of the time from which on making batches is a problem."""


def find_warnings(step: int, total: int, num_classes: int, metrics: Mapping[str, float], skipped: int) -> list[str]:
    """Returns one sentence for each problem that the metrics show.

    Args:
        step: Number of finished steps.
        total: Number of steps of the run.
        num_classes: Number of classes.
        metrics: The metrics of the last steps.
        skipped: Number of steps skipped because of a non-finite loss.

    Example:
        >>> find_warnings(500, 1000, 100, {"predicted_classes": 3.0}, skipped=0)
        ['predictions collapse: only about 3 of 100 classes are predicted.']
    """
    found = []
    is_late = step >= EARLY * total
    predicted = metrics.get("predicted_classes")
    if is_late and predicted is not None and predicted < max(1.5, FEW_CLASSES * num_classes) and num_classes > 2:
        found.append(f"predictions collapse: only about {predicted:.0f} of {num_classes} classes are predicted.")
    if is_late and metrics.get("accepted") == 0:
        found.append("no pseudo-label passes the threshold: unlabeled images have no effect.")
    if skipped:
        found.append(f"the loss was not finite in {skipped} steps, which were skipped.")
    waiting = metrics.get("data_wait", 0.0)
    if waiting > LONG_WAIT:
        found.append(f"{100 * waiting:.0f} % of the time is spent on making batches.")
    return found


BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 32
# Name in metrics.jsonl, title and format of each row of the dashboard.
ROWS = (
    ("loss", "loss", "{:.3f}"),
    ("val_top1", "validation top-1", "{:.1f} %"),
    ("test_top1", "test top-1", "{:.1f} %"),
    ("pseudo_label_accuracy", "pseudo-label accuracy", "{:.1f} %"),
    ("candidate_hit_rate", "candidates contain truth", "{:.1f} %"),
    ("candidates", "candidates per image", "{:.1f}"),
    ("accepted", "accepted pseudo-labels", "{:.0%}"),
    ("predicted_classes", "predicted classes", "{:.1f}"),
    ("images_per_second", "images per second", "{:.0f}"),
)


class Dashboard:
    """Live view of a run in the terminal: progress bar, curves and warnings.

    Args:
        total: Number of steps of the run.
        done: Number of steps finished before.
    """

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

    def set_step(self, done: int) -> None:
        """Moves the progress bar."""
        self._progress.update(self._task, completed=done)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Appends metrics of training or of an evaluation to the curves."""
        for name, _, _ in ROWS:
            if name in metrics:
                self._values.setdefault(name, []).append(float(metrics[name]))

    def set_warnings(self, warnings: Sequence[str]) -> None:
        """Replaces the warnings."""
        self._warnings = warnings

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, title, format_spec in ROWS:
            if name in self._values:
                values = self._values[name]
                table.add_row(title, Text(sparkline(values), style="cyan"), format_spec.format(values[-1]))
        warnings = [Text(f"! {warning}", style="bold yellow") for warning in self._warnings]
        return Group(self._progress, table, *warnings)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draws values as blocks of eight heights; more values than ``width`` are averaged in groups.

    Example:
        >>> sparkline([0, 1, 2, 3])
        '▁▃▆█'
    """
    if len(values) > width:
        edges = [column * len(values) // width for column in range(width + 1)]
        parts = [values[start:end] for start, end in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    finite = [value for value in values if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if abs(value) < float("inf") else "?" for value in values)


class Display:
    """Output on stderr: progress bars and a dashboard on a terminal, plain lines otherwise.

    Args:
        quiet: Print nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._dashboard: Dashboard | None = None
        self._warned: set[str] = set()
        self._sink: Callable[[str], None] | None = None

    @contextmanager
    def tee(self, sink: Callable[[str], None]) -> Iterator[None]:
        """Within the context, also sends all messages to ``sink``, even if the display is quiet."""
        before, self._sink = self._sink, sink
        try:
            yield
        finally:
            self._sink = before

    def log(self, text: str) -> None:
        """Prints a message."""
        self._record(text)
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _record(self, text: str) -> None:
        if self._sink is not None:
            self._sink(text)

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[Display]:
        """Shows a progress bar within the context."""
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            self._progress = progress
            self._task = progress.add_task(title, total=total)
            try:
                yield self
            finally:
                self._progress = None

    def advance(self, done: int) -> None:
        """Moves the progress bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[Display]:
        """Shows the dashboard within the context if stderr is a terminal.

        Args:
            total: Number of steps of the run.
            done: Number of steps finished before.
        """
        if not self.console.is_terminal or self.console.quiet:
            yield self
            return
        self._dashboard = Dashboard(total, done)
        with Live(self._dashboard, console=self.console, refresh_per_second=4):
            try:
                yield self
            finally:
                self._dashboard = None

    def log_metrics(self, step: int, metrics: dict[str, Any], warnings: Sequence[str] = ()) -> None:
        """Shows metrics and warnings on the dashboard; without a dashboard, prints each kind of warning once."""
        if self._dashboard is not None:
            self._dashboard.set_step(step)
            self._dashboard.add(metrics)
            self._dashboard.set_warnings(warnings)
        log = self.log if self._dashboard is None else self._record
        for warning in warnings:
            kind = warning.partition(":")[0].lstrip("0123456789 ")  # warnings of one kind differ in their numbers
            if kind not in self._warned:
                self._warned.add(kind)
                log(f"warning, step {step}: {warning}")

    def log_evaluation(self, record: dict[str, Any], total: int, images: Mapping[str, int] | None = None) -> None:
        """Prints the accuracies of an evaluation with their 95 % intervals.

        Args:
            record: Step and accuracies, such as ``test_top1``.
            total: Number of steps of the run.
            images: Number of images of each split.
        """
        if self._dashboard is not None:
            self._dashboard.add(record)
        parts = [
            f"{split} top-1 {short_interval(record[f'{split}_top1'], (images or {}).get(split, 0))}"
            f" top-5 {record[f'{split}_top5']:.1f} %"
            for split in ("val", "test")
            if f"{split}_top1" in record
        ]
        self.log(f"step {record['step']:>6}/{total}  " + "  ".join(parts))


class RunLog:
    """Appends JSON lines to ``log.jsonl``, which all processes of a run share.

    Args:
        path: The file.
        rank: Rank of this process.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self._rank = rank

    def write(self, kind: str, text: str) -> None:
        """Appends a record."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "process": self._rank, "kind": kind, "text": text}, ensure_ascii=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with errors_name(self._path), open_regular(self._path, "ab+") as file:
            if file.tell() and not self._ends_with_newline(file):
                line = "\n" + line  # the previous line is incomplete: its process was killed, or the disk was full
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    @staticmethod
    def _ends_with_newline(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


@contextlib.contextmanager
def record_log(path: Path, display: Display, rank: int) -> Iterator[None]:
    """Within the context, writes the messages of the first process and the warnings and errors of all to ``path``."""
    log = RunLog(path, rank)
    log.write("start", f"semifine {code_version()}, process id {os.getpid()}")
    show, handler = warnings.showwarning, _LogHandler(log)

    def show_and_log(message: Warning | str, category: type[Warning], *where: Any) -> None:
        log.write("warning", f"{category.__name__}: {message}")
        show(message, category, *where)

    warnings.showwarning = show_and_log  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    try:
        with display.tee(lambda text: log.write("message", text)) if rank == 0 else contextlib.nullcontext():
            yield
        log.write("end", "finished")
    except BaseException as error:
        with contextlib.suppress(OSError):  # the error itself may be a full disk
            log.write("stopped" if isinstance(error, Interrupted) else "error", str(error) or type(error).__name__)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        warnings.showwarning = show


class _LogHandler(logging.Handler):
    """Writes warnings of the ``logging`` module to the log."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("warning", record.getMessage())
