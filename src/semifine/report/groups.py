"""Runs that differ in nothing but their seed, as one line or bar of a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from semifine.analysis.runs import RunFacts
from semifine.report.naming import run_labels
from semifine.report.palette import run_styles
from semifine.report.scores import what_was_computed
from semifine.report.wording import method_name


@dataclass(frozen=True)
class RunGroup:
    """The runs, what they are called together, and how they are drawn."""

    label: str
    hue: str
    dash: str
    runs: list[RunFacts]

    @property
    def method(self) -> str:
        return self.runs[0].method


def group_runs(runs: Sequence[RunFacts]) -> list[RunGroup]:
    """One group for each set of settings, in the order of the runs."""
    members: dict[object, list[int]] = {}
    for place, run in enumerate(runs):
        members.setdefault(what_was_computed(run), []).append(place)
    groups = list(members.values())
    firsts = [runs[places[0]] for places in groups]
    styles = run_styles([run.method for run in firsts])
    methods = Counter(run.method for run in firsts)
    names = run_labels(runs)
    return [
        RunGroup(
            label=method_name(first.method) if methods[first.method] == 1 else names[places[0]],
            hue=hue,
            dash=dash,
            runs=[runs[place] for place in places],
        )
        for first, places, (hue, dash) in zip(firsts, groups, styles, strict=True)
    ]
