"""Numbers of each run, accuracy of each method over its seeds, and comparisons with the supervised baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from semifine.report.formatting import MISSING, decimal, distinguishing_digits, duration, percent
from semifine.report.names import is_baseline, is_reference, labels_over_seeds, method_labels, run_labels
from semifine.report.run_settings import repetition_key
from semifine.report.style import run_styles
from semifine.runs.accuracy import accuracy_variance
from semifine.runs.analysis import Z_975, Interval, agreement_with_groups, wilson_interval
from semifine.runs.run import Run

# --- Numbers of one run ---


@dataclass(frozen=True)
class ResultCell:
    """A number, formatted and as in the files of the run."""

    text: str
    value: float | None
    interval: str = ""
    """95 % interval of an accuracy; empty for other numbers."""


@dataclass(frozen=True)
class ResultRow:
    """The numbers of one run."""

    label: str
    method: str
    """Label that all runs of the method on the same data share."""
    hue: str
    seed: int
    cells: dict[str, ResultCell]


def result_rows(runs: Sequence[Run]) -> list[ResultRow]:
    """Returns one row per run, in the order of the runs."""
    styles = run_styles([run.method for run in runs])
    return [
        ResultRow(label, method, hue, run.seed, _result_cells(run))
        for run, label, method, (hue, _) in zip(runs, run_labels(runs), method_labels(runs), styles, strict=True)
    ]


def _result_cells(run: Run) -> dict[str, ResultCell]:
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
    cells = {key: ResultCell(percent(value), value, _interval(run, key, value)) for key, value in numbers.items()}
    size, seconds = unlabeled.get("candidates"), result.get("seconds")
    agreement = agreement_with_groups(run.transitions, run.class_groups)
    cells["candidates"] = ResultCell(decimal(size, 1), size)
    cells["agreement"] = ResultCell(decimal(agreement), agreement)
    cells["seconds"] = ResultCell(MISSING if seconds is None else duration(seconds), seconds)
    return cells


MEASURED_ON = {"top1": "test", "top5": "test", "val": "validation"}
"""Split of the accuracies that are shown with an interval. The others are selected, which an interval ignores."""


def _interval(run: Run, key: str, value: float | None) -> str:
    images = count_images(run, MEASURED_ON[key]) if key in MEASURED_ON else 0
    if value is None or not images:
        return ""
    interval = wilson_interval(value, images)
    return f"{interval.low:.1f} to {interval.high:.1f}"


# --- Accuracy over seeds ---


@dataclass(frozen=True)
class Score:
    """Top-1 accuracy of runs that differ only in their seed."""

    method: str
    label: str
    hue: str
    split: str
    """Images that the accuracy is measured on: ``test`` or ``validation``."""
    values: list[float] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    images: int = 0
    """Number of images in the split; 0 if the run did not record it."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over runs; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the accuracy on new images, over the seeds if there are several; None if it is unknown."""
        if not self.images:
            return None
        if len(self.values) == 1:
            return wilson_interval(self.mean, self.images)
        variance = accuracy_variance(self.mean, self.images) + self.spread**2 / len(self.values)
        half = Z_975 * math.sqrt(variance)
        return Interval(self.mean, max(0.0, self.mean - half), min(100.0, self.mean + half))


def collect_scores(runs: Sequence[Run], rows: Sequence[ResultRow]) -> list[Score]:
    """Returns scores on test images, or on validation images if no run has test images, in the order of the runs."""
    is_tested = any(row.cells["top1"].value is not None for row in rows)
    split, key = ("test", "top1") if is_tested else ("validation", "val")
    scores: dict[object, Score] = {}
    firsts: list[ResultRow] = []
    for run, row in zip(runs, rows, strict=True):
        value = row.cells[key].value
        if value is None:
            continue
        repetition = repetition_key(run)
        if repetition not in scores:
            scores[repetition] = Score(run.method, row.label, row.hue, split, images=count_images(run, split))
            firsts.append(row)
        scores[repetition].values.append(value)
        scores[repetition].seeds.add(run.seed)
    labels = labels_over_seeds([row.method for row in firsts], [row.label for row in firsts])
    return [replace(score, label=label) for score, label in zip(scores.values(), labels, strict=True)]


def count_images(run: Run, split: str) -> int:
    """Returns the number of ``test`` or ``validation`` images of a run; 0 if the run did not record it."""
    recorded = (run.result.get("images") or {}).get({"validation": "val"}.get(split, split))
    if recorded is None and split == "test" and run.confusion is not None:
        return int(run.confusion.sum())
    return int(recorded or 0)


def find_baseline(scores: Sequence[Score]) -> Score | None:
    """Returns the score of the supervised baseline, if there is one."""
    return next((score for score in scores if is_baseline(score.method)), None)


# --- Comparison with the baseline ---

# 99 % quantile of a difference, relative to the 95 % quantile.
STRICT_MARGIN = 2.576 / Z_975


@dataclass(frozen=True)
class Comparison:
    """A method compared with the supervised baseline.

    Example:
        >>> baseline = Score("supervised", "Supervised", "black", "test", [50.0], images=1000)
        >>> soc = Score("soc", "SoC", "blue", "test", [60.0], images=1000)
        >>> comparison = Comparison(soc, baseline)
        >>> comparison.difference, round(comparison.margin, 1), comparison.verdict
        (10.0, 4.3, 'yes')
    """

    score: Score
    baseline: Score

    @property
    def difference(self) -> float:
        """Difference of the mean accuracies, in points."""
        return self.score.mean - self.baseline.mean

    @property
    def images(self) -> int:
        """Number of images of the split, the smaller one if the scores differ; 0 if it is unknown."""
        return min(self.score.images, self.baseline.images)

    @property
    def margin(self) -> float | None:
        """95 % margin of error of the difference in points; None if the number of images is unknown."""
        return chance_margin((self.score, self.baseline), self.images) if self.images else None

    @property
    def verdict(self) -> Literal["yes", "probably", "inconclusive", "probably not", "no"]:
        """Whether the unlabeled images helped, with 99 % confidence (``yes``, ``no``) or with 95 % (``probably``)."""
        if self.margin is None or abs(self.difference) <= self.margin:
            return "inconclusive"
        is_certain = abs(self.difference) > STRICT_MARGIN * self.margin
        if self.difference > 0:
            return "yes" if is_certain else "probably"
        return "no" if is_certain else "probably not"

    @property
    def digits(self) -> int:
        """Number of decimals that shows difference and margin as different numbers."""
        return 1 if self.margin is None else distinguishing_digits(abs(self.difference), self.margin)


def compare(scores: Sequence[Score]) -> list[Comparison]:
    """Compares every method that uses unlabeled images with the baseline. Returns an empty list without a baseline."""
    baseline = find_baseline(scores)
    if baseline is None:
        return []
    return [Comparison(score, baseline) for score in scores if not is_reference(score.method)]


def chance_margin(scores: Sequence[Score], images: int) -> float:
    """Returns the difference in points that two equally good methods exceed with a probability of 5 %.

    Both methods see the same images, so the true margin is slightly smaller. The variance over seeds is included if
    there are several seeds; it is unknown for a single one.
    """
    from_images = sum(accuracy_variance(score.mean, images) for score in scores)
    from_seeds = sum(score.spread**2 / len(score.values) for score in scores)
    return Z_975 * math.sqrt(from_images + from_seeds)


# --- Runs in figures ---


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed, with their common label and line style."""

    label: str
    hue: str
    dash: str
    runs: list[Run]

    @property
    def method(self) -> str:
        return self.runs[0].method


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Groups runs that differ only in their seed, in the order of the runs."""
    members: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(repetition_key(run), []).append(index)
    groups = list(members.values())
    firsts = [indices[0] for indices in groups]
    styles = run_styles([runs[index].method for index in firsts])
    methods, names = method_labels(runs), run_labels(runs)
    labels = labels_over_seeds([methods[index] for index in firsts], [names[index] for index in firsts])
    return [
        RunGroup(label, hue, dash, [runs[index] for index in indices])
        for label, (hue, dash), indices in zip(labels, styles, groups, strict=True)
    ]
