"""Accuracy of each method over its seeds, and comparisons with the supervised baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from semifine.report.formatting import digits_that_tell_apart
from semifine.report.names import is_baseline, is_reference, labels_over_seeds, method_labels, run_labels
from semifine.report.sections.results import Row
from semifine.report.sections.settings import flat, is_beside_the_point
from semifine.report.style import run_styles
from semifine.runs.analysis import Z_975
from semifine.runs.run import Run

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Score:
    """Top-1 of runs that differ in nothing but their seed."""

    method: str
    label: str
    hue: str
    split: str
    """``test`` or ``validation``: the images that the accuracy is of."""
    values: list[float] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    images: int = 0
    """How many images the accuracy is of; 0 where the run did not note it."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over runs; 0 where there is one run, which shows none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def collect_scores(runs: Sequence[Run], rows: Sequence[Row]) -> list[Score]:
    """Scores on test images, or on validation images where no run has test images, in the order of the runs."""
    tested = any(row.cells["top1"].value is not None for row in rows)
    split, key = ("test", "top1") if tested else ("validation", "val")
    scores: dict[Settings, Score] = {}
    firsts: list[Row] = []
    for run, row in zip(runs, rows, strict=True):
        value = row.cells[key].value
        if value is None:
            continue
        computed = what_was_computed(run)
        if computed not in scores:
            scores[computed] = Score(run.method, row.label, row.hue, split, images=images_of(run, split))
            firsts.append(row)
        scores[computed].values.append(value)
        scores[computed].seeds.add(run.seed)
    labels = labels_over_seeds([row.method for row in firsts], [row.label for row in firsts])
    return [replace(score, label=label) for score, label in zip(scores.values(), labels, strict=True)]


def images_of(run: Run, split: str) -> int:
    """How many ``test`` or ``validation`` images the run has; 0 where it did not note it."""
    noted = (run.result.get("images") or {}).get({"validation": "val"}.get(split, split))
    if noted is None and split == "test" and run.confusion is not None:
        return int(run.confusion.sum())
    return int(noted or 0)


def find_baseline(scores: Sequence[Score]) -> Score | None:
    return next((score for score in scores if is_baseline(score.method)), None)


def what_was_computed(run: Run) -> Settings:
    """Everything that runs must share to be repetitions of each other."""
    settings = flat(run.settings)
    kept = sorted((key, value) for key, value in settings.items() if not is_beside_the_point(key))
    return (("", run.method), *kept)


MARGINS_TO_BE_SURE = 2.576 / Z_975
"""What chance gives in one of 100 cases, in margins: those that it gives in one of 20."""


@dataclass(frozen=True)
class Comparison:
    """What the summary and the box "Does the unlabeled data help?" both tell."""

    score: Score
    baseline: Score

    @property
    def difference(self) -> float:
        return self.score.mean - self.baseline.mean

    @property
    def images(self) -> int:
        """How many images both accuracies are of, at least; 0 where that is not known."""
        return min(self.score.images, self.baseline.images)

    @property
    def margin(self) -> float | None:
        """What chance alone may give, in points; None where the number of images is not known."""
        return chance_margin((self.score, self.baseline), self.images) if self.images else None

    @property
    def verdict(self) -> Literal["yes", "probably", "open", "probably not", "no"]:
        """Whether the unlabeled images helped; no more than probably where the difference barely exceeds chance."""
        if self.margin is None or abs(self.difference) <= self.margin:
            return "open"
        is_sure = abs(self.difference) > MARGINS_TO_BE_SURE * self.margin
        if self.difference > 0:
            return "yes" if is_sure else "probably"
        return "no" if is_sure else "probably not"

    @property
    def digits(self) -> int:
        """Decimals with which the difference is not told as the margin that it exceeds, or the other way round."""
        return 1 if self.margin is None else digits_that_tell_apart(abs(self.difference), self.margin)


def compare(scores: Sequence[Score]) -> list[Comparison]:
    """Every method that uses unlabeled images against the baseline; none without a baseline."""
    baseline = find_baseline(scores)
    if baseline is None:
        return []
    return [Comparison(score, baseline) for score in scores if not is_reference(score.method)]


def chance_margin(scores: Sequence[Score], images: int) -> float:
    """Difference in points that equally good methods show in one of 20 cases, on this many images.

    The methods see the same images, so the true margin is a little smaller: this one errs on the careful side.
    How much seeds differ counts where there are several; with one seed each it cannot be known.
    """
    from_images = sum(_variance(score.mean, images) for score in scores)
    from_seeds = sum(score.spread**2 / len(score.values) for score in scores)
    return Z_975 * math.sqrt(from_images + from_seeds)


def _variance(accuracy: float, images: int) -> float:
    """Of an accuracy in percent over so many images.

    Two right and two wrong answers are added (Agresti and Coull): 0 % of 15 images does not mean 0 % of all.
    """
    share = (accuracy * images / 100 + 2) / (images + 4)
    return 100**2 * share * (1 - share) / (images + 4)


@dataclass(frozen=True)
class RunGroup:
    """The runs, what they are called together, and how they are drawn."""

    label: str
    hue: str
    dash: str
    runs: list[Run]

    @property
    def method(self) -> str:
        return self.runs[0].method


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """One group for each set of settings, in the order of the runs."""
    members: dict[object, list[int]] = {}
    for place, run in enumerate(runs):
        members.setdefault(what_was_computed(run), []).append(place)
    groups = list(members.values())
    firsts = [places[0] for places in groups]
    styles = run_styles([runs[place].method for place in firsts])
    methods, names = method_labels(runs), run_labels(runs)
    labels = labels_over_seeds([methods[place] for place in firsts], [names[place] for place in firsts])
    return [
        RunGroup(label, hue, dash, [runs[place] for place in places])
        for label, (hue, dash), places in zip(labels, styles, groups, strict=True)
    ]
