"""What a person sees while many runs go on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from semifine.experiments.formats import INIT_NAMES
from semifine.experiments.scheduler import Job, State
from semifine.experiments.tables import Jobs

MARKS = {State.WAITING: "·", State.DONE: "✓", State.FAILED: "✗"}


class GridView:
    """A live table on a terminal; elsewhere one line for each run that ends."""

    def __init__(self, jobs: Sequence[Job], cells: Jobs, console: Console) -> None:
        self._jobs = jobs
        self._cells = cells
        self._console = console
        self._told: set[int] = set()
        self._live = Live(console=console, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> GridView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self.update()
            self._live.stop()

    def update(self) -> None:
        if self._live:
            self._live.update(Group(self._grid(), self._summary()))
            return
        for number, job in enumerate(self._jobs):
            if number not in self._told and job.state in (State.DONE, State.FAILED):
                self._told.add(number)
                reason = f": {job.reason}" if job.reason else ""
                self.log(f"{job.folder.path} {job.state.value}{reason}")

    def log(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _grid(self) -> RichTable:
        grid = RichTable("")
        inits = list(dict.fromkeys(init for _, init in self._cells))
        for init in inits:
            grid.add_column(INIT_NAMES[init])
        for title in dict.fromkeys(title for title, _ in self._cells):
            seeds = (" ".join(self._mark(jobs) for jobs in self._cells[title, init]) for init in inits)
            grid.add_row(title, *seeds)
        return grid

    def _mark(self, jobs: Sequence[Job]) -> str:
        """One seed of a cell: its running stage, or how it stands."""
        running = next((job for job in jobs if job.state is State.RUNNING), None)
        if running is not None:
            which = f"{jobs.index(running) + 1}/{len(jobs)} " if len(jobs) > 1 else ""
            return f"{which}{running.progress():.0%}"
        if any(job.state is State.FAILED for job in jobs):
            return MARKS[State.FAILED]
        return MARKS[jobs[-1].state]

    def _summary(self) -> Text:
        done = sum(job.state is State.DONE for job in self._jobs)
        failed = [f"{job.stage.name}: {job.reason}" for job in self._jobs if job.state is State.FAILED]
        return Text("\n".join([f"{done} of {len(self._jobs)} runs done", *failed]))
