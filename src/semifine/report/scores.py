"""The accuracy of each method over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from semifine.analysis.runs import RunFacts
from semifine.report.naming import BASELINE, labels_over_seeds
from semifine.report.results_table import Row
from semifine.report.settings_table import flat, is_beside_the_point

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


def collect_scores(runs: Sequence[RunFacts], rows: Sequence[Row]) -> list[Score]:
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


def images_of(run: RunFacts, split: str) -> int:
    """How many ``test`` or ``validation`` images the run has; 0 where it did not note it."""
    noted = (run.result.get("images") or {}).get({"validation": "val"}.get(split, split))
    if noted is None and split == "test" and run.confusion is not None:
        return int(run.confusion.sum())
    return int(noted or 0)


def find_baseline(scores: Sequence[Score]) -> Score | None:
    return next((score for score in scores if score.method == BASELINE), None)


def what_was_computed(run: RunFacts) -> Settings:
    """Everything that runs must share to be repetitions of each other."""
    settings = flat(run.settings)
    kept = sorted((key, value) for key, value in settings.items() if not is_beside_the_point(key))
    return (("", run.method), *kept)
