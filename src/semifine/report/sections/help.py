"""Does the unlabeled data help? Supervised learning under the same budget beside each method."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semifine.report.formatting import count, enumeration, percent, points
from semifine.report.names import by_data, data_labels, is_reference
from semifine.report.scores import Comparison, collect_scores, compare, find_baseline
from semifine.report.sections.results import Row
from semifine.report.sections.settings import differences_beyond_method
from semifine.runs.run import Run

SENTENCES = {
    "yes": "The difference is larger than chance alone is likely to give.",
    "probably": "The difference is barely larger than chance alone is likely to give: repeat with other seeds.",
    "open": "The difference is no larger than chance alone may give.",
    "probably not": "The unlabeled images made it worse, but by barely more than chance alone is likely to give: "
    "repeat with other seeds.",
    "no": "The unlabeled images made it worse, by more than chance is likely to give.",
}


@dataclass(frozen=True)
class Verdict:
    label: str
    hue: str
    accuracy: str
    baseline: str
    difference: str
    margin: str
    word: str
    """``yes``, ``probably``, ``open``, ``probably not`` or ``no``."""
    sentence: str


@dataclass(frozen=True)
class Advice:
    """What to do where there is nothing to compare with."""

    text: str
    command: str = ""
    """The line that does it, ready to be run."""


@dataclass(frozen=True)
class HelpBox:
    verdicts: list[Verdict]
    unequal: list[str]
    """Which runs differ in which settings beyond the method, so that their budget is not the same."""
    advice: list[Advice]


def view_help(runs: Sequence[Run], rows: Sequence[Row]) -> HelpBox:
    """One verdict for each method with unlabeled images, against the supervised runs on the same data."""
    verdicts: list[Verdict] = []
    unequal: list[str] = []
    advice: list[Advice] = []
    data_sets, names = by_data(runs), data_labels(runs)
    for places in data_sets:
        own_runs, own_rows = [runs[place] for place in places], [rows[place] for place in places]
        scores = collect_scores(own_runs, own_rows)
        if find_baseline(scores) is None:
            advice += _advice(own_runs, own_rows, is_measured=bool(scores))
            continue
        comparisons = compare(scores)
        verdicts += [_verdict(comparison) for comparison in comparisons]
        different = differences_beyond_method(own_runs) if comparisons else []
        if different:
            where = f" on {names[places[0]]}" if len(data_sets) > 1 else ""
            unequal.append(f"the runs{where} differ in {enumeration(different)}")
    if not verdicts and not advice:
        advice = [Advice("No run here learns from unlabeled images together with a supervised one.")]
    return HelpBox(verdicts, unequal, advice)


def _advice(runs: Sequence[Run], rows: Sequence[Row], is_measured: bool) -> list[Advice]:
    """For runs on one data set; none where all of them are references."""
    learners = [(run, row) for run, row in zip(runs, rows, strict=True) if not is_reference(run.method)]
    if not learners:
        return []
    who = enumeration(list(dict.fromkeys(row.method for _, row in learners)))
    if not is_measured:
        return [Advice(f"{who}: no test or validation images, so nothing can be said.")]
    missing = "no supervised run with the same data and settings is on this page, so nothing can be said. Train one:"
    return [Advice(f"{who}: {missing}", supervised_command(learners[0][0].path))]


def _verdict(comparison: Comparison) -> Verdict:
    score, baseline, margin = comparison.score, comparison.baseline, comparison.margin
    digits = comparison.digits
    sentence = SENTENCES[comparison.verdict]
    if margin is None:
        sentence = f"How many {score.split} images there were is not known, nor is what chance gives."
    single = [which.label for which in (score, baseline) if len(which.values) == 1]
    if single:
        whose = "One seed each" if len(single) == 2 else f"One seed of {single[0]}"
        sentence += f" {whose}: how much seeds differ is not in the margin."
    return Verdict(
        label=score.label,
        hue=score.hue,
        accuracy=percent(score.mean),
        baseline=percent(baseline.mean),
        difference=points(comparison.difference, digits),
        margin="" if margin is None else f"±{margin:.{digits}f} on {count(comparison.images, f'{score.split} image')}",
        word=comparison.verdict,
        sentence=sentence,
    )


def supervised_command(run: Path) -> str:
    """Trains without unlabeled images and else as the run did, into a folder beside it."""
    folder = run if run.name not in ("", "..") else run.resolve()
    out = folder.with_name(f"{folder.name}-supervised")
    return shlex.join(
        ["semifine", "train", "--config", str(folder / "settings.yaml"), "--method", "supervised", "--out", str(out)]
    )
