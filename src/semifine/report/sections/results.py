"""The results table: one row a run, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semifine.report.formatting import MISSING, count, decimal, duration, enumeration, percent, three_digits, with_unit
from semifine.report.names import is_reference, method_labels, run_labels
from semifine.report.style import run_styles
from semifine.runs.analysis import agreement_with_groups
from semifine.runs.run import Run


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, and exactly as the run's files have it."""

    text: str
    value: float | None


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    explanation: str = ""


@dataclass(frozen=True)
class Row:
    label: str
    method: str
    """What all runs of the method on the same data are called."""
    hue: str
    seed: int
    cells: dict[str, Cell]


COLUMNS = (
    Column("top1", "Top-1", "test, last evaluation"),
    Column("top5", "Top-5", "test, last evaluation"),
    Column("val", "Validation", "top-1, last evaluation"),
    Column("selected_on_val", "Selected on validation", "test top-1 at the best validation accuracy"),
    Column("best_on_test", "Best on test", "the paper\u2019s protocol; not an honest estimate"),
    Column("pseudo_label_accuracy", "Pseudo-label accuracy", "unlabeled images, at the end"),
    Column("candidates", "Candidate classes", "mean per unlabeled image"),
    Column("candidate_hit_rate", "Hit rate", "true class is a candidate"),
    Column("agreement", "Agreement with groups", "adjusted Rand index"),
    Column("seconds", "Time", "after start-up"),
)


def result_rows(runs: Sequence[Run]) -> list[Row]:
    """The rows in the order of the runs."""
    styles = run_styles([run.method for run in runs])
    return [
        Row(label, method, hue, run.seed, result_cells(run))
        for run, label, method, (hue, _) in zip(runs, run_labels(runs), method_labels(runs), styles, strict=True)
    ]


def filled_columns(rows: Sequence[Row]) -> list[Column]:
    """Columns in which at least one run has a number; validation accuracy only in place of missing test accuracy."""
    filled = {key for row in rows for key, cell in row.cells.items() if cell.value is not None}
    wanted = filled - ({"val"} if "top1" in filled else set())
    return [column for column in COLUMNS if column.key in wanted]


def result_cells(run: Run) -> dict[str, Cell]:
    """The numbers of one run by column; a missing one is a dash."""
    result, unlabeled = run.result, run.unlabeled
    numbers: dict[str, float | None] = {
        "top1": result.get("top1"),
        "top5": result.get("top5"),
        "val": (result.get("val") or {}).get("top1"),
        "selected_on_val": (result.get("selected_on_val") or {}).get("top1"),
        "best_on_test": (result.get("best_on_test") or {}).get("top1"),
        "pseudo_label_accuracy": unlabeled.get("pseudo_label_accuracy"),
        "candidate_hit_rate": unlabeled.get("candidate_hit_rate"),
    }
    cells = {key: Cell(percent(value), value) for key, value in numbers.items()}
    size, seconds = unlabeled.get("candidates"), result.get("seconds")
    agreement = agreement_with_groups(run.transitions, run.class_groups)
    cells["candidates"] = Cell(decimal(size, 1), size)
    cells["agreement"] = Cell(decimal(agreement), agreement)
    cells["seconds"] = Cell(MISSING if seconds is None else duration(seconds), seconds)
    return cells


@dataclass(frozen=True)
class OutsideRow:
    """The labels that a run gives images of its classes, or images of none of them."""

    label: str
    which: str
    images: str
    confidence: str
    candidates: str
    accepted: str


def outside_rows(runs: Sequence[Run]) -> list[OutsideRow]:
    """Two rows for each run that knows of unlabeled images of no class."""
    rows = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        for key, which in (("in_class", "of the classes"), ("out_of_class", "of no class")):
            means = run.unlabeled.get(key)
            if isinstance(means, dict):
                rows.append(
                    OutsideRow(
                        label,
                        which,
                        count(means["images"], "image"),
                        percent(100 * means["confidence"]),
                        decimal(means["candidates"], 1),
                        MISSING if is_reference(run.method) else percent(100 * means["accepted"]),
                    )
                )
    return rows


# The names in result.json, and what they are called here.
PARTS = {"steps": "steps", "evaluation": "evaluation", "saving": "checkpoints", "start_up": "start-up"}


def time_lines(runs: Sequence[Run]) -> list[str]:
    """One line for each run that recorded what its time went into."""
    return [_line(run, label) for run, label in zip(runs, run_labels(runs), strict=True) if any(run.time.values())]


def _line(run: Run, label: str) -> str:
    total = sum(run.time.values())
    shares = [f"{_share(run.time.get(part, 0) / total)} {name}" for part, name in PARTS.items()]
    return f"{label}: {duration(total)} in all, {enumeration(shares)}{_speed(run)}."


def _speed(run: Run) -> str:
    """Of the steps with unlabeled images, where some had none."""
    words = []
    if run.step_seconds is not None:
        is_part = run.supervised_steps and not is_reference(run.method)
        which = " with unlabeled images" if is_part else ""
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
