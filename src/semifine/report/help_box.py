"""Does the unlabelled data help? Supervised learning under the same budget beside each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semifine.analysis.runs import RunFacts
from semifine.report.results_table import Row
from semifine.report.scores import REFERENCES, Score, by_data, chance_margin, collect_scores, find_baseline
from semifine.report.settings_table import differences_beyond_method
from semifine.report.wording import enumeration, percent, points


@dataclass(frozen=True)
class Verdict:
    label: str
    hue: str
    accuracy: str
    baseline: str
    difference: str
    margin: str
    word: str
    """``yes``, ``no`` or ``open``."""
    sentence: str


@dataclass(frozen=True)
class HelpBox:
    verdicts: list[Verdict]
    unequal: str
    """In which settings the runs differ beyond the method, so that the budget is not the same."""
    advice: str
    """What to run where there is nothing to compare with."""


def view_help(runs: Sequence[RunFacts], rows: Sequence[Row]) -> HelpBox:
    """One verdict for each method with unlabelled images, against the supervised runs on the same data."""
    verdicts: list[Verdict] = []
    unequal: list[str] = []
    alone: list[RunFacts] = []
    for places in by_data(runs):
        own = [runs[place] for place in places]
        scores = collect_scores(own, [rows[place] for place in places])
        baseline = find_baseline(scores)
        methods = [score for score in scores if score.method not in REFERENCES]
        if baseline is None:
            alone += [run for run in own if run.method not in REFERENCES][:1]
            continue
        verdicts += [_verdict(score, baseline, own) for score in methods]
        unequal += differences_beyond_method(own) if methods else []
    return HelpBox(verdicts, enumeration(list(dict.fromkeys(unequal))), _advice(alone, verdicts))


def _verdict(score: Score, baseline: Score, runs: Sequence[RunFacts]) -> Verdict:
    images = next((int(run.confusion.sum()) for run in runs if run.confusion is not None), 0)
    difference = score.mean - baseline.mean
    margin = chance_margin((score, baseline), images) if images and score.split == "test" else None
    if margin is None or abs(difference) <= margin:
        word, sentence = "open", "The difference is no larger than chance alone may give."
        if margin is None:
            sentence = "Without test images, how much chance gives is not known."
    elif difference > 0:
        word, sentence = "yes", "The difference is larger than chance alone is likely to give."
    else:
        word, sentence = "no", "The unlabelled images made it worse, by more than chance is likely to give."
    seeds = min(len(score.values), len(baseline.values))
    if seeds == 1:
        sentence += " One seed each: how much seeds differ is not in the margin."
    return Verdict(
        label=score.label,
        hue=score.hue,
        accuracy=percent(score.mean),
        baseline=percent(baseline.mean),
        difference=points(difference),
        margin="" if margin is None else f"±{margin:.1f}",
        word=word,
        sentence=sentence,
    )


def _advice(alone: Sequence[RunFacts], verdicts: Sequence[Verdict]) -> str:
    if not alone and verdicts:
        return ""
    if not alone:
        return "No run here learns from unlabelled images together with a supervised one."
    run = alone[0]
    return (
        "No supervised run with the same data and settings is on this page, so nothing can be said. Train one: "
        f"semifine train --config {run.path / 'settings.yaml'} --method supervised --out {run.path}-supervised"
    )
