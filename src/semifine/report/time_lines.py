"""Where the time of each run went, in one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semifine.analysis.runs import RunFacts
from semifine.report.naming import REFERENCES, run_labels
from semifine.report.wording import count, duration, enumeration, three_digits, with_unit

# The names in result.json, and what they are called here.
PARTS = {"steps": "steps", "evaluation": "evaluation", "saving": "checkpoints", "start_up": "start-up"}


def time_lines(runs: Sequence[RunFacts]) -> list[str]:
    """One line for each run that recorded what its time went into."""
    return [_line(run, label) for run, label in zip(runs, run_labels(runs), strict=True) if any(run.time.values())]


def _line(run: RunFacts, label: str) -> str:
    total = sum(run.time.values())
    shares = [f"{_share(run.time.get(part, 0) / total)} {name}" for part, name in PARTS.items()]
    return f"{label}: {duration(total)} in all, {enumeration(shares)}{_speed(run)}."


def _speed(run: RunFacts) -> str:
    """Of the steps with unlabelled images, where some had none."""
    words = []
    if run.step_seconds is not None:
        is_part = run.labelled_only_steps and run.method not in REFERENCES
        which = " with unlabelled images" if is_part else ""
        words.append(f"{with_unit(three_digits(1000 * run.step_seconds), 'ms')} a step{which}")
    if len(speeds := run.of_full_steps("images_per_second")):
        words.append(count(float(np.median(speeds)), "image") + " a second")
    if len(waits := run.of_full_steps("data_wait")):
        words.append(f"{_share(float(waits.mean()))} of the time of steps to make batches")
    if run.peak_gpu_bytes:
        words.append(f"at most {with_unit(three_digits(run.peak_gpu_bytes / 1e9), 'GB')} of GPU memory")
    return f"; {enumeration(words)}" if words else ""


def _share(part: float) -> str:
    return with_unit(f"{100 * part:.0f}", "%")
