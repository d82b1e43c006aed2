"""What runs are called on a page: as short as keeps them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from semifine.analysis.runs import RunFacts
from semifine.report.wording import method_name


def run_labels(runs: Sequence[RunFacts]) -> list[str]:
    """``SoC``; with several seeds ``SoC, seed 1``; where that is not enough, with the folder's name."""
    methods = Counter(run.method for run in runs)
    seeds = Counter((run.method, run.seed) for run in runs)
    labels = []
    for run in runs:
        label = method_name(run.method)
        if seeds[run.method, run.seed] > 1:
            label += f" ({run.name})"
        elif methods[run.method] > 1:
            label += f", seed {run.seed}"
        labels.append(label)
    return labels


def data_name(run: RunFacts) -> str:
    """``semi_cub``, or of one's own photos the folder's or table's name: a page is shown to others."""
    source, _, root = run.data.partition(":")
    return Path(root).name if root and source in ("folder", "table") else source
