"""Section: the results in words, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semifine.report.class_order import describe_groups
from semifine.report.formatting import count, decimal, join_words, percent, points
from semifine.report.names import data_labels, group_by_data, is_reference
from semifine.report.run_settings import differences_beyond_method
from semifine.report.scores import (
    Comparison,
    ResultRow,
    Score,
    collect_scores,
    compare,
    count_images,
    find_baseline,
    result_rows,
)
from semifine.report.section import ReportData, Section
from semifine.runs.accuracy import final_accuracy
from semifine.runs.run import Run

TEMPLATE = """
<section id="summary">
<h2>Summary</h2>
{% if summary.tiles %}
<ul class="tiles">
{% for tile in summary.tiles %}
  <li class="tile" style="--tile: var(--hue-{{ tile.hue }})">
    <span class="tile-label">{{ tile.label }}</span>
    <span class="tile-value">{{ tile.value }}</span>
    {% if tile.difference %}<span class="tile-difference">{{ tile.difference }}</span>{% endif %}
    <span class="tile-note">{{ tile.note }}</span>
  </li>
{% endfor %}
</ul>
{% endif %}
<div class="prose">
{% for paragraph in summary.paragraphs %}
  <p>{{ paragraph }}</p>
{% endfor %}
{% if summary.notes %}
  <div class="note" role="note">
    <strong>Limits</strong>
    <ul>{% for note in summary.notes %}<li>{{ note }}</li>{% endfor %}</ul>
  </div>
{% endif %}
</div>
</section>
"""


@dataclass(frozen=True)
class Tile:
    """A large number with its name and its difference from the baseline."""

    label: str
    value: str
    difference: str
    note: str
    hue: str


@dataclass(frozen=True)
class Summary:
    """Content of the section."""

    tiles: list[Tile]
    paragraphs: list[str]
    notes: list[str]
    """Limits of the results."""


def context(report: ReportData) -> dict[str, Any]:
    return {"summary": summarize(report.runs, report.rows)}


SECTION = Section({"summary": "Summary"}, TEMPLATE, context)


def summarize(runs: Sequence[Run], rows: Sequence[ResultRow]) -> Summary:
    """Summarizes the runs. Runs on different data sets are not compared."""
    tiles: list[Tile] = []
    paragraphs: list[str] = []
    notes: list[str] = []
    data_sets, names = group_by_data(runs), data_labels(runs)
    for indices in data_sets:
        name = names[indices[0]]
        data_runs, data_rows = [runs[index] for index in indices], [rows[index] for index in indices]
        scores = collect_scores(data_runs, data_rows)
        tiles += _tiles(scores)
        sentences = (
            [_data_sentence(data_runs, name), _accuracy_sentence(scores, data_runs)],
            [_comparison_sentence(comparison) for comparison in compare(scores)],
            _label_sentences(data_runs, data_rows),
        )
        paragraphs += [" ".join(paragraph) for paragraph in sentences if paragraph]
        notes += _notes(scores, data_runs, f" on {name}" if len(data_sets) > 1 else "")
    return Summary(tiles, paragraphs, list(dict.fromkeys(notes)))


def describe_comparisons(runs: Sequence[Run]) -> list[str]:
    """Returns a sentence per method that uses unlabeled images: whether they helped, with the margin of error."""
    return [_comparison_sentence(comparison) for comparison in compare(collect_scores(runs, result_rows(runs)))]


def _tiles(scores: Sequence[Score]) -> list[Tile]:
    baseline = find_baseline(scores)
    tiles = []
    for score in scores:
        note = f"top-1 on {score.split} images"
        if len(score.values) > 1:
            note += f", mean of {len(score.values)} runs"
        if (interval := score.interval) is not None:
            note += f"; 95 % interval {interval.low:.1f} to {interval.high:.1f}"
        difference = ""
        if baseline is not None and not is_reference(score.method):
            difference = f"{points(score.mean - baseline.mean)} vs. supervised"
            if Comparison(score, baseline).verdict == "inconclusive":
                difference += ", within the margin of chance"
        tiles.append(Tile(score.label, percent(score.mean), difference, note, score.hue))
    return tiles


def _data_sentence(runs: Sequence[Run], name: str) -> str:
    run = runs[0]
    images = run.result.get("images") or {}
    labeled, tested = images.get("labeled"), max(count_images(run, "test") for run in runs)
    unlabeled = images.get("unlabeled") or run.unlabeled.get("images")
    parts = [count(run.num_classes, "class", "classes")]
    if labeled:
        parts.append(count(labeled, "labeled image"))
    if unlabeled:
        parts.append(count(unlabeled, "unlabeled image"))
    parts.append(count(tested, "test image") if tested else "no test images")
    return f"The data set \u201c{name}\u201d has {join_words(parts)}."


MEASURED_WITHOUT_TEST = {
    "held_out": "On labels that a trial held out",
    "cross_validation": "In cross-validation of the probe over the labeled images",
}


def _accuracy_sentence(scores: Sequence[Score], runs: Sequence[Run]) -> str:
    if not scores:
        measured = [accuracy for run in runs if (accuracy := final_accuracy(run.result)) is not None]
        if not measured:
            return "No run has test or validation images, so its accuracy is unknown."
        title = MEASURED_WITHOUT_TEST[measured[-1].split]
        return f"There are no test or validation images. {title}, top-1 accuracy is {measured[-1].describe()}."
    accuracies = join_words([f"{_with_spread(score)} with {score.label}" for score in scores])
    sentence = f"Top-1 accuracy on {scores[0].split} images is {accuracies}"
    return f"{sentence}; random guessing gives {percent(100 / runs[0].num_classes)}."


def _with_spread(score: Score) -> str:
    if len(score.values) > 1:
        return percent(score.mean) + f" (±{score.spread:.1f} over runs)"
    interval = score.interval
    return percent(score.mean) + (f" (95 % interval {interval.low:.1f} to {interval.high:.1f})" if interval else "")


def _comparison_sentence(comparison: Comparison) -> str:
    """States whether the unlabeled images helped."""
    label, difference, margin = comparison.score.label, comparison.difference, comparison.margin
    digits = comparison.digits
    if comparison.verdict == "inconclusive":
        error = "The margin of error is unknown"
        if margin is not None:
            images = count(comparison.images, f"{comparison.score.split} image")
            error = f"On {images}, the 95 % margin of error is about ±{margin:.{digits}f} points"
        return (
            f"{label} and supervised learning, which uses only the labeled images, differ by "
            f"{points(difference, digits)}. {error}, so it is inconclusive whether the unlabeled images helped."
        )
    side = "above" if difference > 0 else "below"
    helped = {
        "yes": "helped",
        "probably": "probably helped",
        "probably not": "probably did not help",
        "no": "did not help",
    }[comparison.verdict]
    return (
        f"{label} is {abs(difference):.{digits}f} points {side} supervised learning, which uses only the labeled "
        f"images: the unlabeled images {helped}. The 95 % margin of error is ±{margin:.{digits}f} points."
    )


def _label_sentences(runs: Sequence[Run], rows: Sequence[ResultRow]) -> list[str]:
    """Describes the quality of the soft labels of the first run that has any."""
    for run, row in zip(runs, rows, strict=True):
        stats = run.unlabeled
        if is_reference(run.method) or "candidate_hit_rate" not in stats or stats["candidates"] <= 1:
            continue
        sentences = [
            f"{row.label} keeps {decimal(stats['candidates'], 1)} candidate classes per unlabeled image on average. "
            f"The candidates contain the true class for {percent(stats['candidate_hit_rate'])} of the images. The "
            f"single prediction is correct for {percent(stats['pseudo_label_accuracy'])}."
        ]
        agreement = row.cells["agreement"].value
        if agreement is not None:
            sentences.append(
                f"Its clusters of classes agree with the groups ({describe_groups(run)}), which are not used in "
                f"training, with an adjusted Rand index of {decimal(agreement)} (1: identical, 0: random)."
            )
        return sentences
    return []


def _notes(scores: Sequence[Score], runs: Sequence[Run], where: str) -> list[str]:
    notes = []
    takes_steps = {run.method for run in runs if run.result.get("iterations")}  # a probe hardly depends on its seed
    single = [score.label for score in scores if len(score.seeds) == 1 and score.method in takes_steps]
    if single:
        notes.append(
            f"{join_words(single)}: one seed. Results vary between seeds; repeat with several seeds before relying on "
            "a small difference."
        )
    different = differences_beyond_method(runs)
    if different:
        notes.append(f"The runs{where} differ in more than the method: {join_words(different)}.")
    left_out = max((len(run.result.get("unreadable") or ()) for run in runs), default=0)
    if left_out:
        notes.append(f"{count(left_out, 'image')} could not be read and {'was' if left_out == 1 else 'were'} left out.")
    return notes
