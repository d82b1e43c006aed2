"""What runs are called on a page: as short as keeps them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from semifine.analysis.runs import RunFacts
from semifine.report.data_sets import by_data, data_labels
from semifine.report.wording import method_name

BASELINE = "supervised"
REFERENCES = (BASELINE, "oracle")
"""Methods that give unlabelled images no labels to train on: the others are measured against them."""


def method_labels(runs: Sequence[RunFacts]) -> list[str]:
    """``SoC``; where the runs have several data sets, ``SoC on semi_cub``."""
    are_several = len(by_data(runs)) > 1
    return [
        method_name(run.method) + (f" on {data}" if are_several else "")
        for run, data in zip(runs, data_labels(runs), strict=True)
    ]


def run_labels(runs: Sequence[RunFacts]) -> list[str]:
    """The method's label; with several seeds ``SoC, seed 1``; where that is not enough, with the folder's name."""
    methods = method_labels(runs)
    seeds = [(method, run.seed) for method, run in zip(methods, runs, strict=True)]
    labels = []
    for method, own, run in zip(methods, seeds, runs, strict=True):
        label = method
        if seeds.count(own) > 1:
            label += f" ({run.name})"
        elif methods.count(method) > 1:
            label += f", seed {run.seed}"
        labels.append(label)
    return labels


def labels_over_seeds(methods: Sequence[str], firsts: Sequence[str]) -> list[str]:
    """Of sets of runs: the method's label where one set has it, else the label of the set's first run."""
    sets = Counter(methods)
    return [method if sets[method] == 1 else first for method, first in zip(methods, firsts, strict=True)]
