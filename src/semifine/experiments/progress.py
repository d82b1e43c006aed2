"""Shows the progress of many training runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from semifine.experiments.formats import INIT_NAMES
from semifine.experiments.scheduler import Job, State
from semifine.experiments.tables import Jobs

SYMBOLS = {State.WAITING: "·", State.DONE: "✓", State.FAILED: "✗"}


class GridProgress:
    """Shows a live table on a terminal, otherwise prints a line when a run ends.

    Args:
        jobs: All jobs.
        cells: Jobs by cell of the table.
        console: Terminal or file to print to.
    """

    def __init__(self, jobs: Sequence[Job], cells: Jobs, console: Console) -> None:
        self._jobs = jobs
        self._cells = cells
        self._console = console
        self._printed: set[int] = set()
        self._live = Live(console=console, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> GridProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self.update()
            self._live.stop()

    def update(self) -> None:
        """Shows the current states of the jobs."""
        if self._live:
            self._live.update(Group(self._grid(), self._summary()))
            return
        for number, job in enumerate(self._jobs):
            if number not in self._printed and job.state in (State.DONE, State.FAILED):
                self._printed.add(number)
                reason = f": {job.reason}" if job.reason else ""
                self.log(f"{job.folder.path} {job.state.value}{reason}")

    def log(self, text: str) -> None:
        """Prints a line, above the live table if there is one."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _grid(self) -> RichTable:
        grid = RichTable("")
        inits = list(dict.fromkeys(init for _, init in self._cells))
        for init in inits:
            grid.add_column(INIT_NAMES[init])
        for title in dict.fromkeys(title for title, _ in self._cells):
            seeds = (" ".join(self._symbol(jobs) for jobs in self._cells[title, init]) for init in inits)
            grid.add_row(title, *seeds)
        return grid

    def _symbol(self, jobs: Sequence[Job]) -> str:
        """Returns the progress of the running stage of one seed, or the state of the seed."""
        running = next((job for job in jobs if job.state is State.RUNNING), None)
        if running is not None:
            stage = f"{jobs.index(running) + 1}/{len(jobs)} " if len(jobs) > 1 else ""
            return f"{stage}{running.progress():.0%}"
        if any(job.state is State.FAILED for job in jobs):
            return SYMBOLS[State.FAILED]
        return SYMBOLS[jobs[-1].state]

    def _summary(self) -> Text:
        done = sum(job.state is State.DONE for job in self._jobs)
        failed = [f"{job.stage.name}: {job.reason}" for job in self._jobs if job.state is State.FAILED]
        return Text("\n".join([f"{done} of {len(self._jobs)} runs done", *failed]))
