"""Where the time of each run went, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from semifine.analysis.runs import RunFacts
from semifine.report.naming import run_labels
from semifine.report.wording import count, duration, enumeration

# The names in result.json, and what they are called here.
PARTS = {"steps": "steps", "evaluation": "evaluation", "saving": "checkpoints", "start_up": "start-up"}


def time_lines(runs: Sequence[RunFacts]) -> list[str]:
    """One line for each run that recorded what its time went into."""
    return [_line(run, label) for run, label in zip(runs, run_labels(runs), strict=True) if any(run.time.values())]


def _line(run: RunFacts, label: str) -> str:
    total = sum(run.time.values())
    shares = [f"{100 * run.time.get(part, 0) / total:.0f} % {name}" for part, name in PARTS.items()]
    return f"{label}: {duration(total)} in all, {enumeration(shares)}; {enumeration(_speed(run))}."


def _speed(run: RunFacts) -> list[str]:
    words = [f"{1000 * (run.step_seconds or 0):.3g} ms a step"]
    if "images_per_second" in run.series:
        words.append(count(run.series["images_per_second"].values.mean(), "image") + " a second")
    if "data_wait" in run.series:
        words.append(f"{100 * run.series['data_wait'].values.mean():.0f} % of the time of steps to make batches")
    return words
