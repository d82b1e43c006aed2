"""What a person sees while a run goes on; everything goes to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Display:
    """Progress bars on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        self._task = TaskID(0)
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
        if self._log is not None:
            self._log(text)
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int | None, done: int = 0) -> Iterator[Display]:
        """A progress bar for the time of the context."""
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            self._progress = progress
            self._task = progress.add_task(title, total=total, completed=done, note="")
            try:
                yield self
            finally:
                self._progress = None

    def advance(self, done: int, note: str = "") -> None:
        """Moves the bar of the current context."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, note=note)

    def training_numbers(self, step: int, numbers: dict[str, Any]) -> None:
        parts = [f"loss {numbers['loss']:.3f}"]
        if "pseudo_label_accuracy" in numbers:
            parts.append(f"pseudo-labels {numbers['pseudo_label_accuracy']:.1f} %")
        if "candidates" in numbers:
            parts.append(f"candidates {numbers['candidates']:.1f}")
        parts.append(f"{numbers['images_per_second']:.0f} images/s")
        self.advance(step, "  ".join(parts))

    def evaluation(self, record: dict[str, Any], total: int) -> None:
        parts = [
            f"{split} top-1 {record[f'{split}_top1']:.1f} % top-5 {record[f'{split}_top5']:.1f} %"
            for split in ("val", "test")
            if f"{split}_top1" in record
        ]
        self.say(f"step {record['step']:>6}/{total}  " + "  ".join(parts))
