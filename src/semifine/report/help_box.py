"""Does the unlabelled data help? Supervised learning under the same budget beside each method."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semifine.analysis.runs import RunFacts
from semifine.report.comparison import Comparison, compare
from semifine.report.results_table import Row
from semifine.report.scores import REFERENCES, by_data, collect_scores, find_baseline
from semifine.report.settings_table import differences_beyond_method
from semifine.report.wording import count, enumeration, percent, points


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
    """What to do where there is nothing to compare with."""
    command: str
    """The line that does it, ready to be run; empty where there is none."""


def view_help(runs: Sequence[RunFacts], rows: Sequence[Row]) -> HelpBox:
    """One verdict for each method with unlabelled images, against the supervised runs on the same data."""
    verdicts: list[Verdict] = []
    unequal: list[str] = []
    alone: list[RunFacts] = []
    for places in by_data(runs):
        own = [runs[place] for place in places]
        scores = collect_scores(own, [rows[place] for place in places])
        if find_baseline(scores) is None:
            alone += [run for run in own if run.method not in REFERENCES][:1]
            continue
        comparisons = compare(scores)
        verdicts += [_verdict(comparison) for comparison in comparisons]
        unequal += differences_beyond_method(own) if comparisons else []
    advice = command = ""
    if alone:
        advice = "No supervised run with the same data and settings is on this page, so nothing can be said. Train one:"
        command = supervised_command(alone[0].path)
    elif not verdicts:
        advice = "No run here learns from unlabelled images together with a supervised one."
    return HelpBox(verdicts, enumeration(list(dict.fromkeys(unequal))), advice, command)


def _verdict(comparison: Comparison) -> Verdict:
    score, baseline, margin = comparison.score, comparison.baseline, comparison.margin
    sentence = {
        "yes": "The difference is larger than chance alone is likely to give.",
        "no": "The unlabelled images made it worse, by more than chance is likely to give.",
        "open": "The difference is no larger than chance alone may give.",
    }[comparison.verdict]
    if margin is None:
        sentence = f"How many {score.split} images there were is not known, nor is what chance gives."
    if min(len(score.values), len(baseline.values)) == 1:
        sentence += " One seed each: how much seeds differ is not in the margin."
    return Verdict(
        label=score.label,
        hue=score.hue,
        accuracy=percent(score.mean),
        baseline=percent(baseline.mean),
        difference=points(comparison.difference),
        margin="" if margin is None else f"±{margin:.1f} on {count(comparison.images, f'{score.split} image')}",
        word=comparison.verdict,
        sentence=sentence,
    )


def supervised_command(run: Path) -> str:
    """Trains without unlabelled images and else as the run did, into a folder beside it."""
    folder = run if run.name not in ("", "..") else run.resolve()
    out = folder.with_name(f"{folder.name}-supervised")
    return shlex.join(
        ["semifine", "train", "--config", str(folder / "settings.yaml"), "--method", "supervised", "--out", str(out)]
    )
