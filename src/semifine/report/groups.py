"""Runs that differ in nothing but their seed, as one line or bar of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semifine.analysis.runs import RunFacts
from semifine.report.naming import labels_over_seeds, method_labels, run_labels
from semifine.report.palette import run_styles
from semifine.report.scores import what_was_computed


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
    firsts = [places[0] for places in groups]
    styles = run_styles([runs[place].method for place in firsts])
    methods, names = method_labels(runs), run_labels(runs)
    labels = labels_over_seeds([methods[place] for place in firsts], [names[place] for place in firsts])
    return [
        RunGroup(label, hue, dash, [runs[place] for place in places])
        for label, (hue, dash), places in zip(labels, styles, groups, strict=True)
    ]
