"""What a person sees while a run goes on; everything goes to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semifine.engine.dashboard import Dashboard


class Display:
    """Progress bars and a dashboard on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._dashboard: Dashboard | None = None
        self._warned: set[str] = set()
        self._log: Callable[[str], None] | None = None

    @contextmanager
    def logged(self, log: Callable[[str], None]) -> Iterator[None]:
        """For the time of the context all that is said also goes to ``log``, even when quiet."""
        before, self._log = self._log, log
        try:
            yield
        finally:
            self._log = before

    def say(self, text: str) -> None:
        self._record(text)
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _record(self, text: str) -> None:
        if self._log is not None:
            self._log(text)

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

    def training_numbers(self, step: int, numbers: dict[str, Any], warnings: Sequence[str] = ()) -> None:
        """The numbers of the log; a new warning is recorded, and said where there is no dashboard to show it."""
        if self._dashboard is not None:
            self._dashboard.step(step)
            self._dashboard.add(numbers)
            self._dashboard.warn(warnings)
        tell = self.say if self._dashboard is None else self._record
        for warning in warnings:
            kind = warning.partition(":")[0].lstrip("0123456789 ")  # the same warning with other numbers
            if kind not in self._warned:
                self._warned.add(kind)
                tell(f"warning, step {step}: {warning}")

    def evaluation(self, record: dict[str, Any], total: int) -> None:
        if self._dashboard is not None:
            self._dashboard.add(record)
        parts = [
            f"{split} top-1 {record[f'{split}_top1']:.1f} % top-5 {record[f'{split}_top5']:.1f} %"
            for split in ("val", "test")
            if f"{split}_top1" in record
        ]
        self.say(f"step {record['step']:>6}/{total}  " + "  ".join(parts))
