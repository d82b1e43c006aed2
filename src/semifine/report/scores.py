"""The accuracy of each method over its seeds, and how much of a difference chance explains."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from semifine.analysis.runs import RunFacts
from semifine.report.results_table import Row
from semifine.report.settings_table import BESIDE_THE_POINT, flat
from semifine.report.wording import method_name

BASELINE = "supervised"
REFERENCES = (BASELINE, "oracle")
Z_95 = 1.96

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
    for run, row in zip(runs, rows, strict=True):
        value = row.cells[key].value
        if value is None:
            continue
        score = scores.setdefault(what_was_computed(run), Score(run.method, row.label, row.hue, split))
        score.values.append(value)
        score.seeds.add(run.seed)
    return _with_short_labels(list(scores.values()))


def chance_margin(scores: Sequence[Score], images: int) -> float:
    """Difference in points that equally good methods show in one of 20 cases, on this many test images.

    The methods see the same images, so the true margin is a little smaller: this one errs on the careful side.
    How much seeds differ counts where there are several; with one seed each it cannot be known.
    """
    from_images = sum(score.mean * (100 - score.mean) / images for score in scores)
    from_seeds = sum(score.spread**2 / len(score.values) for score in scores)
    return Z_95 * math.sqrt(from_images + from_seeds)


def find_baseline(scores: Sequence[Score]) -> Score | None:
    return next((score for score in scores if score.method == BASELINE), None)


def by_data(runs: Sequence[RunFacts]) -> list[list[int]]:
    """Places of the runs that share their data with its settings; only those may be compared."""
    places: dict[Settings, list[int]] = {}
    for place, run in enumerate(runs):
        data = run.settings.get("data")
        settings = flat(data) if isinstance(data, dict) else {}
        places.setdefault((("", run.data), *sorted(settings.items())), []).append(place)
    return list(places.values())


def what_was_computed(run: RunFacts) -> Settings:
    """Everything that runs must share to be repetitions of each other."""
    settings = flat(run.settings)
    kept = sorted((key, value) for key, value in settings.items() if key not in BESIDE_THE_POINT)
    return (("", run.method), *kept)


def _with_short_labels(scores: Sequence[Score]) -> list[Score]:
    """A method with a single score goes by its name alone; otherwise the first run's label tells them apart."""
    methods = Counter(score.method for score in scores)
    return [
        replace(score, label=method_name(score.method)) if methods[score.method] == 1 else score for score in scores
    ]
