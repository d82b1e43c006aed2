"""Progress of a run on the terminal and in its log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

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
from semifine.version import code_version

EARLY = 0.1
"""Share of the steps in which a network that has learned nothing yet may look ill."""
FEW_CLASSES = 0.2
"""Share of the classes below which predictions count as collapsed; a balanced run has nearly all."""
MUCH_WAITING = 0.5
"""Share of the time that making batches may take before it is worth a word."""


def find_warnings(step: int, total: int, num_classes: int, numbers: Mapping[str, float], skipped: int) -> list[str]:
    """One sentence for each thing that is wrong now; empty when all is well."""
    found = []
    settled = step >= EARLY * total
    spread = numbers.get("predicted_classes")
    if settled and spread is not None and spread < max(1.5, FEW_CLASSES * num_classes) and num_classes > 2:
        found.append(f"predictions collapse: only about {spread:.0f} of {num_classes} classes are predicted.")
    if settled and numbers.get("accepted") == 0:
        found.append("no pseudo-label passes the threshold: unlabeled images teach nothing.")
    if skipped:
        found.append(f"the loss was not finite in {skipped} steps, which were skipped.")
    waiting = numbers.get("data_wait", 0.0)
    if waiting > MUCH_WAITING:
        found.append(f"{100 * waiting:.0f} % of the time goes into making batches.")
    return found


Phase = Literal["start_up", "steps", "evaluation", "saving"]


class PhaseTimer:
    """Seconds by part, those before a resume included; what is booked on no other part goes into steps.

    The host's clock is read and no GPU waited for: of the steps that the host is ahead, some are booked late.
    """

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {"start_up": 0.0, "steps": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._since = time.perf_counter()
        self._taken = 0.0

    def start_steps(self, started: float | None) -> None:
        """All since the moment ``started``, on ``time.perf_counter``, was start-up."""
        self._since = time.perf_counter() if started is None else started
        self._book("start_up")
        self._taken = self.seconds["steps"]

    @contextmanager
    def measure(self, part: Phase) -> Iterator[None]:
        """What passes in the context goes into the part."""
        self._book("steps")
        yield
        self._book(part)

    def lap(self) -> float:
        """Seconds of steps since the last time."""
        self._book("steps")
        seconds, self._taken = self.seconds["steps"] - self._taken, self.seconds["steps"]
        return seconds

    @property
    def training(self) -> float:
        """All but the start-up."""
        return sum(self.seconds.values()) - self.seconds["start_up"]

    def _book(self, part: Phase) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now


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


class Display:
    """Progress bars and a dashboard on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._dashboard: Dashboard | None = None
        self._warned: set[str] = set()
        self._sink: Callable[[str], None] | None = None

    @contextmanager
    def tee(self, sink: Callable[[str], None]) -> Iterator[None]:
        """Also sends all messages to ``sink`` within the context, even when quiet."""
        before, self._sink = self._sink, sink
        try:
            yield
        finally:
            self._sink = before

    def log(self, text: str) -> None:
        self._record(text)
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _record(self, text: str) -> None:
        if self._sink is not None:
            self._sink(text)

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[Display]:
        """A progress bar for the time of the context."""
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
        """Moves the bar of the current context."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[Display]:
        """The dashboard for the time of the context, where there is a terminal to show it."""
        if not self.console.is_terminal or self.console.quiet:
            yield self
            return
        self._dashboard = Dashboard(total, done)
        with Live(self._dashboard, console=self.console, refresh_per_second=4):
            try:
                yield self
            finally:
                self._dashboard = None

    def log_metrics(self, step: int, numbers: dict[str, Any], warnings: Sequence[str] = ()) -> None:
        """The numbers of the log; a new warning is recorded, and said where there is no dashboard to show it."""
        if self._dashboard is not None:
            self._dashboard.step(step)
            self._dashboard.add(numbers)
            self._dashboard.warn(warnings)
        tell = self.log if self._dashboard is None else self._record
        for warning in warnings:
            kind = warning.partition(":")[0].lstrip("0123456789 ")  # the same warning with other numbers
            if kind not in self._warned:
                self._warned.add(kind)
                tell(f"warning, step {step}: {warning}")

    def log_evaluation(self, record: dict[str, Any], total: int) -> None:
        if self._dashboard is not None:
            self._dashboard.add(record)
        parts = [
            f"{split} top-1 {record[f'{split}_top1']:.1f} % top-5 {record[f'{split}_top5']:.1f} %"
            for split in ("val", "test")
            if f"{split}_top1" in record
        ]
        self.log(f"step {record['step']:>6}/{total}  " + "  ".join(parts))


class RunLog:
    """Appends one JSON object a line; processes of a run share the file."""

    def __init__(self, path: Path, process: int) -> None:
        self._path = path
        self._process = process

    def write(self, kind: str, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "process": self._process, "kind": kind, "text": text}, ensure_ascii=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            if file.tell() and not self._ends_a_line(file):
                line = "\n" + line  # the line before was cut short when a process or the disk ended
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    @staticmethod
    def _ends_a_line(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


@contextlib.contextmanager
def record_log(path: Path, display: Display, process: int) -> Iterator[None]:
    """For the time of the context what the first process says, and what any warns of and raises, goes to the log."""
    log = RunLog(path, process)
    log.write("start", f"semifine {code_version()}, process id {os.getpid()}")
    show, handler = warnings.showwarning, _LogHandler(log)

    def show_and_log(message: Warning | str, category: type[Warning], *where: Any) -> None:
        log.write("warning", f"{category.__name__}: {message}")
        show(message, category, *where)

    warnings.showwarning = show_and_log  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    try:
        with display.tee(lambda text: log.write("message", text)) if process == 0 else contextlib.nullcontext():
            yield
        log.write("end", "finished")
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk, say, is itself what ended the run
            log.write("stopped" if isinstance(error, Interrupted) else "error", str(error) or type(error).__name__)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        warnings.showwarning = show


class _LogHandler(logging.Handler):
    """Warnings of libraries that speak through Python's logging."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._sink = log

    def emit(self, record: logging.LogRecord) -> None:
        self._sink.write("warning", record.getMessage())
