"""The accuracy of each method over its seeds."""

from __future__ import annotations

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
    for run, row in zip(runs, rows, strict=True):
        value = row.cells[key].value
        if value is None:
            continue
        new = Score(run.method, row.label, row.hue, split, images=images_of(run, split))
        score = scores.setdefault(what_was_computed(run), new)
        score.values.append(value)
        score.seeds.add(run.seed)
    return _with_short_labels(list(scores.values()))


def images_of(run: RunFacts, split: str) -> int:
    """How many ``test`` or ``validation`` images the run has; 0 where it did not note it."""
    noted = (run.result.get("images") or {}).get({"validation": "val"}.get(split, split))
    if noted is None and split == "test" and run.confusion is not None:
        return int(run.confusion.sum())
    return int(noted or 0)


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
