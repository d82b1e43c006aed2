"""The results in plain words, with what they do not show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from semifine.analysis.runs import RunFacts
from semifine.report.results_table import Row
from semifine.report.settings_table import differences_beyond_method, flat
from semifine.report.wording import count, decimal, enumeration, method_name, percent, points

BASELINE = "supervised"
REFERENCES = (BASELINE, "oracle")
Z_95 = 1.96


@dataclass(frozen=True)
class Tile:
    """A large number with its name, and how far it is from the baseline."""

    label: str
    value: str
    difference: str
    note: str
    hue: str


@dataclass(frozen=True)
class Summary:
    tiles: list[Tile]
    sentences: list[str]
    remarks: list[str]
    """What a careful reader should keep in mind."""


@dataclass(frozen=True)
class MethodScore:
    """Top-1 of all runs of a method on the same data."""

    method: str
    hue: str
    values: list[float]
    split: str

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def summarise(runs: Sequence[RunFacts], rows: Sequence[Row]) -> Summary:
    """Words and tiles for all runs; runs on different data are never compared."""
    tiles: list[Tile] = []
    sentences: list[str] = []
    remarks: list[str] = []
    by_data: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, run in enumerate(runs):
        by_data.setdefault(_data_key(run), []).append(place)
    for places in by_data.values():
        own_runs, own_rows = [runs[place] for place in places], [rows[place] for place in places]
        scores = method_scores(own_runs, own_rows)
        where = f" on {own_runs[0].data}" if len(by_data) > 1 else ""
        tiles += _tiles(scores, where)
        sentences += [_data_sentence(own_runs), *_score_sentences(scores, own_runs), *_label_sentences(own_runs, own_rows)]
        remarks += _remarks(scores, own_runs)
    return Summary(tiles, sentences, list(dict.fromkeys(remarks)))


def method_scores(runs: Sequence[RunFacts], rows: Sequence[Row]) -> list[MethodScore]:
    """Scores by method, on test images, or on validation images where no run has test images."""
    split, key = ("test", "top1") if any(row.cells["top1"].value is not None for row in rows) else ("validation", "val")
    scores: dict[str, MethodScore] = {}
    for run, row in zip(runs, rows, strict=True):
        value = row.cells[key].value
        if value is not None:
            scores.setdefault(run.method, MethodScore(run.method, row.hue, [], split)).values.append(value)
    return list(scores.values())


def chance_margin(scores: Sequence[MethodScore], images: int) -> float:
    """Difference in points that equally good methods show in one of 20 cases, on this many test images.

    The methods see the same images, so the true margin is a little smaller: this one errs on the careful side.
    How much seeds differ counts where there are several; with one seed each it cannot be known.
    """
    from_images = sum(score.mean * (100 - score.mean) / images for score in scores)
    from_seeds = sum(score.spread**2 / len(score.values) for score in scores)
    return Z_95 * math.sqrt(from_images + from_seeds)


def _data_key(run: RunFacts) -> tuple[tuple[str, str], ...]:
    data = run.settings.get("data")
    settings = flat(data) if isinstance(data, dict) else {}
    return (("", run.data), *sorted(settings.items()))


def _tiles(scores: Sequence[MethodScore], where: str) -> list[Tile]:
    baseline = _baseline(scores)
    tiles = []
    for score in scores:
        note = f"top-1 on {score.split} images"
        if len(score.values) > 1:
            note += f", mean of {len(score.values)} runs"
        compared = baseline is not None and score.method not in REFERENCES
        difference = f"{points(score.mean - baseline.mean)} against supervised" if baseline and compared else ""
        tiles.append(Tile(method_name(score.method) + where, percent(score.mean), difference, note, score.hue))
    return tiles


def _baseline(scores: Sequence[MethodScore]) -> MethodScore | None:
    return next((score for score in scores if score.method == BASELINE), None)


def _data_sentence(runs: Sequence[RunFacts]) -> str:
    run = runs[0]
    images = run.result.get("images") or {}
    labelled, tested = images.get("labelled"), _test_images(runs)
    unlabelled = images.get("unlabelled") or next((r.unlabelled["images"] for r in runs if "images" in r.unlabelled), None)
    parts = []
    if labelled:
        parts.append(count(labelled, "labelled image"))
    if unlabelled:
        parts.append(count(unlabelled, "unlabelled image"))
    words = f"The data \u201c{run.data}\u201d has {count(run.num_classes, 'class', 'classes')}"
    words += f", {enumeration(parts)} to learn from" if parts else ""
    words += f", and {count(tested, 'test image')}" if tested else ", and no test images"
    return words + "."


def _score_sentences(scores: Sequence[MethodScore], runs: Sequence[RunFacts]) -> list[str]:
    if not scores:
        return ["No run has test or validation images, so nothing can be said about its accuracy."]
    reached = [f"{method_name(score.method)} reached {_with_spread(score)}" for score in scores]
    sentences = [f"{enumeration(reached)} top-1 accuracy on {scores[0].split} images at the end of training."]
    baseline = _baseline(scores)
    if baseline is None:
        return sentences
    images = _test_images(runs) if baseline.split == "test" else None
    return sentences + [_comparison(score, baseline, images) for score in scores if score.method not in REFERENCES]


def _with_spread(score: MethodScore) -> str:
    return percent(score.mean) + (f" (±{score.spread:.1f} over seeds)" if len(score.values) > 1 else "")


def _comparison(score: MethodScore, baseline: MethodScore, images: int | None) -> str:
    """Whether the unlabelled images helped, and no more than the numbers carry."""
    name, difference = method_name(score.method), score.mean - baseline.mean
    margin = chance_margin((score, baseline), images) if images else 0.0
    if abs(difference) <= margin:
        return (
            f"{name} and supervised learning, which sees the labelled images alone, differ by {points(difference)}. "
            f"With {count(images or 0, 'test image')}, chance alone gives up to about {margin:.1f}: "
            "whether the unlabelled images helped stays open."
        )
    side, verdict = ("above", "helped") if difference > 0 else ("below", "did not help")
    return (
        f"{name} is {abs(difference):.1f} points {side} supervised learning, which sees the labelled images alone: "
        f"here the unlabelled images {verdict}."
    )


def _label_sentences(runs: Sequence[RunFacts], rows: Sequence[Row]) -> list[str]:
    """What the labels of SoC-like runs are worth; only for the first run that has soft labels."""
    for run, row in zip(runs, rows, strict=True):
        facts = run.unlabelled
        if run.method in REFERENCES or "candidate_hit_rate" not in facts or facts["candidates"] <= 1:
            continue
        name = method_name(run.method)
        sentences = [
            f"For an unlabelled image {name} keeps {decimal(facts['candidates'], 1)} candidate classes on average; "
            f"the true one is among them for {percent(facts['candidate_hit_rate'])} of the images, and the single "
            f"prediction is right for {percent(facts['pseudo_label_accuracy'])}."
        ]
        agreement = row.cells["agreement"].value
        if agreement is not None:
            sentences.append(
                "Without being told any group, it found clusters of classes that agree with the true groups "
                f"by an adjusted Rand index of {decimal(agreement)} (1: the same, 0: chance)."
            )
        return sentences
    return []


def _remarks(scores: Sequence[MethodScore], runs: Sequence[RunFacts]) -> list[str]:
    remarks = []
    single = [method_name(score.method) for score in scores if len(score.values) == 1]
    if single:
        remarks.append(
            f"{enumeration(single)}: a single run with one seed. Another seed gives another number; "
            "repeat with several before relying on a small difference."
        )
    different = differences_beyond_method(runs)
    if different and len(runs) > 1:
        remarks.append(f"The runs differ in more than the method: {enumeration(different)}.")
    left_out = max((len(run.result.get("set_aside") or ()) for run in runs), default=0)
    if left_out:
        remarks.append(f"{count(left_out, 'image')} could not be read and stayed out.")
    return remarks


def _test_images(runs: Sequence[RunFacts]) -> int | None:
    return next((int(run.confusion.sum()) for run in runs if run.confusion is not None), None)
