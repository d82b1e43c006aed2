"""The results in plain words, with what they do not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semifine.report.class_order import groups_told
from semifine.report.formatting import count, decimal, enumeration, percent, points
from semifine.report.names import by_data, data_labels, is_reference
from semifine.report.scores import Comparison, Score, collect_scores, compare, find_baseline, images_of
from semifine.report.sections.results import Row
from semifine.report.sections.settings import differences_beyond_method
from semifine.runs.run import Run


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
    paragraphs: list[str]
    notes: list[str]
    """What a careful reader should keep in mind."""


def summarize(runs: Sequence[Run], rows: Sequence[Row]) -> Summary:
    """Words and tiles for all runs; runs on different data are never compared."""
    tiles: list[Tile] = []
    paragraphs: list[str] = []
    notes: list[str] = []
    data_sets, names = by_data(runs), data_labels(runs)
    for places in data_sets:
        name = names[places[0]]
        own_runs, own_rows = [runs[place] for place in places], [rows[place] for place in places]
        scores = collect_scores(own_runs, own_rows)
        tiles += _tiles(scores)
        told = (
            [_data_sentence(own_runs, name), _score_sentence(scores, own_runs[0].num_classes)],
            [_told(comparison) for comparison in compare(scores)],
            _label_sentences(own_runs, own_rows),
        )
        paragraphs += [" ".join(sentences) for sentences in told if sentences]
        notes += _remarks(scores, own_runs, f" on {name}" if len(data_sets) > 1 else "")
    return Summary(tiles, paragraphs, list(dict.fromkeys(notes)))


def _tiles(scores: Sequence[Score]) -> list[Tile]:
    baseline = find_baseline(scores)
    tiles = []
    for score in scores:
        note = f"top-1 on {score.split} images"
        if len(score.values) > 1:
            note += f", mean of {len(score.values)} runs"
        difference = ""
        if baseline is not None and not is_reference(score.method):
            difference = f"{points(score.mean - baseline.mean)} against supervised"
        tiles.append(Tile(score.label, percent(score.mean), difference, note, score.hue))
    return tiles


def _data_sentence(runs: Sequence[Run], name: str) -> str:
    run = runs[0]
    images = run.result.get("images") or {}
    labeled, tested = images.get("labeled"), max(images_of(run, "test") for run in runs)
    unlabeled = images.get("unlabeled") or run.unlabeled.get("images")
    parts = []
    if labeled:
        parts.append(count(labeled, "labeled image"))
    if unlabeled:
        parts.append(count(unlabeled, "unlabeled image"))
    words = f"The data \u201c{name}\u201d has {count(run.num_classes, 'class', 'classes')}"
    words += f", {enumeration(parts)} to learn from" if parts else ""
    words += f", and {count(tested, 'test image')}" if tested else ", and no test images"
    return words + "."


def _score_sentence(scores: Sequence[Score], num_classes: int) -> str:
    if not scores:
        return "No run has test or validation images, so nothing can be said about its accuracy."
    reached = enumeration([f"{_with_spread(score)} with {score.label}" for score in scores])
    sentence = f"At the end of training, top-1 accuracy on {scores[0].split} images is {reached}"
    return f"{sentence}; guessing would give {percent(100 / num_classes)}."


def _with_spread(score: Score) -> str:
    return percent(score.mean) + (f" (±{score.spread:.1f} over runs)" if len(score.values) > 1 else "")


def _told(comparison: Comparison) -> str:
    """Whether the unlabeled images helped."""
    label, difference, margin = comparison.score.label, comparison.difference, comparison.margin
    digits = comparison.digits
    if comparison.verdict == "open":
        chance = "How much chance alone gives is not known"
        if margin is not None:
            images = count(comparison.images, f"{comparison.score.split} image")
            chance = f"With {images}, chance alone gives up to about {margin:.{digits}f}"
        return (
            f"{label} and supervised learning, which sees the labeled images alone, differ by "
            f"{points(difference, digits)}. {chance}: whether the unlabeled images helped stays open."
        )
    side = "above" if difference > 0 else "below"
    helped = {
        "yes": "helped",
        "probably": "probably helped",
        "probably not": "probably did not help",
        "no": "did not help",
    }[comparison.verdict]
    return (
        f"{label} is {abs(difference):.{digits}f} points {side} supervised learning, which sees the labeled "
        f"images alone: here the unlabeled images {helped}."
    )


def _label_sentences(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """What soft labels are worth, for the first run that gives any."""
    for run, row in zip(runs, rows, strict=True):
        stats = run.unlabeled
        if is_reference(run.method) or "candidate_hit_rate" not in stats or stats["candidates"] <= 1:
            continue
        sentences = [
            f"For an unlabeled image {row.label} keeps {decimal(stats['candidates'], 1)} candidate classes on "
            f"average; the true one is among them for {percent(stats['candidate_hit_rate'])} of the images, and the "
            f"single prediction is right for {percent(stats['pseudo_label_accuracy'])}."
        ]
        agreement = row.cells["agreement"].value
        if agreement is not None:
            sentences.append(
                "Without being told any group, it found clusters of classes that agree with the groups "
                f"({groups_told(run)}) by an adjusted Rand index of {decimal(agreement)} (1: the same, 0: chance)."
            )
        return sentences
    return []


def _remarks(scores: Sequence[Score], runs: Sequence[Run], where: str) -> list[str]:
    notes = []
    single = [score.label for score in scores if len(score.seeds) == 1]
    if single:
        notes.append(
            f"{enumeration(single)}: one seed. Another seed gives another number; "
            "repeat with several before relying on a small difference."
        )
    different = differences_beyond_method(runs)
    if different:
        notes.append(f"The runs{where} differ in more than the method: {enumeration(different)}.")
    left_out = max((len(run.result.get("unreadable") or ()) for run in runs), default=0)
    if left_out:
        notes.append(f"{count(left_out, 'image')} could not be read and stayed out.")
    return notes
