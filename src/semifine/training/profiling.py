"""Timers during training, and the profiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from semifine.training.estimates import ADVICE, LONG_RUN, format_duration, format_steps, synchronized_clock

SECONDS_TO_MEASURE = 5.0
"""Seconds of steps that are measured before the remaining time is printed."""


class TimeEstimator:
    """Measures the first steps and logs the remaining time once, and once more after :meth:`restart`.

    Args:
        log: Receives the estimate.
        total: Number of steps of the run.
        device: Device of the run.
        labeled_steps: Number of steps at the start of the run that see labeled images only.
        full_cost: Cost of the later steps relative to these.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        total: int,
        device: torch.device,
        labeled_steps: int = 0,
        full_cost: float = 1.0,
    ) -> None:
        self._log = log
        self._total = total
        self._device = device
        self._labeled_steps = labeled_steps
        self._full_cost = full_cost
        self.restart()

    def restart(self) -> None:
        """Starts a new measurement after the next step, which may include initialization."""
        self._first: int | None = None
        self._is_done = False

    def update(self, step: int) -> None:
        """Call this after each step with the number of finished steps."""
        if self._is_done:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first, self._since = step, now
        elif now - self._since >= SECONDS_TO_MEASURE:
            seconds = (synchronized_clock(self._device) - self._since) / (step - self._first)
            if step < self._total:
                self._log(self._format(seconds, step))
            self._is_done = True

    def _format(self, seconds: float, step: int) -> str:
        steps_left = self._total - step
        full_steps = self._total - max(step, self._labeled_steps)
        is_labeled_step = step <= self._labeled_steps
        rest = seconds * (steps_left - full_steps + full_steps * (self._full_cost if is_labeled_step else 1.0))
        kind = " on labeled images" if is_labeled_step else ""
        advice = ADVICE if rest > LONG_RUN else ""
        remaining = f"{format_duration(rest)} for the remaining {format_steps(steps_left)}"
        return f"{seconds:.2g} s per step{kind}: {remaining}{advice}"


Phase = Literal["start_up", "steps", "evaluation", "saving"]


class PhaseTimer:
    """Run time in seconds by phase, including the time before a resume.

    It reads the clock of the host without waiting for the GPU, so that the time of the last few steps may be counted in
    the next phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {"start_up": 0.0, "steps": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._since = time.perf_counter()
        self._read = 0.0

    def start_steps(self, started: float | None) -> None:
        """Ends the phase "start_up", which began at ``started`` on ``time.perf_counter`` (None: now)."""
        self._since = time.perf_counter() if started is None else started
        self._add_to("start_up")
        self._read = self.seconds["steps"]

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Counts the time of the context in the phase, and the time before it in "steps"."""
        self._add_to("steps")
        yield
        self._add_to(phase)

    def lap(self) -> float:
        """Returns the seconds of the phase "steps" since the last call."""
        self._add_to("steps")
        seconds, self._read = self.seconds["steps"] - self._read, self.seconds["steps"]
        return seconds

    @property
    def training(self) -> float:
        """Seconds of all phases except "start_up"."""
        return sum(self.seconds.values()) - self.seconds["start_up"]

    def _add_to(self, phase: Phase) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now


# Profiler

SKIPPED, WARMUP, ACTIVE = 10, 5, 10
MAX_ROWS = 15


@contextmanager
def profile_steps(folder: Path, log: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Profiles ten steps after the first fifteen.

    Writes ``trace.json.gz`` for chrome://tracing or ui.perfetto.dev, and logs the most expensive operations.

    Args:
        folder: Folder for the trace.
        log: Receives the table.

    Yields:
        The function to call after each step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    finished = False

    def finish(profiler: profile) -> None:
        nonlocal finished
        finished = True
        trace = folder / "trace.json.gz"
        profiler.export_chrome_trace(str(trace))
        log(profiler.key_averages().table(sort_by=order, row_limit=MAX_ROWS, max_name_column_width=60))
        log(f"The trace of these {ACTIVE} steps is in {trace}.")

    steps = schedule(skip_first=SKIPPED, wait=0, warmup=WARMUP, active=ACTIVE, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=finish) as profiler:
        yield profiler.step
    if not finished:
        log(f"The run is too short for --profile, which needs {SKIPPED + WARMUP + ACTIVE} steps.")
