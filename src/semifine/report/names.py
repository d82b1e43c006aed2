"""Names of runs and data sets in the report, and runs that differ in their seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from semifine.methods.registry import method_display
from semifine.report.formatting import MISSING, NO_BREAK_SPACE
from semifine.report.sections.settings import SettingRow, flat, settings_rows
from semifine.runs.run import Run


def by_data(runs: Sequence[Run]) -> list[list[int]]:
    """Places of the runs that share their data with its settings; only those may be compared."""
    return _places_by(_data_and_settings(run) for run in runs)


def data_name(run: Run) -> str:
    """``semi_cub``, or of one's own photos the folder's or table's name: a page is shown to others."""
    source, _, root = run.data.partition(":")
    return Path(root).name if root and source in ("folder", "table") else source


def data_labels(runs: Sequence[Run]) -> list[str]:
    """The name of each run's data; with what differs, ``synthetic (genera 4)``, where several go by one name."""
    labels = [data_name(run) for run in runs]
    for namesakes in _places_by(labels):
        rows = settings_rows([runs[place] for place in namesakes])
        telling = _telling([row for row in rows if row.key.startswith("data.")])
        for column, place in enumerate(namesakes):
            own = [(row.key.removeprefix("data."), row.values[column]) for row in telling]
            words = ", ".join(f"{key}{NO_BREAK_SPACE}{value}" for key, value in own if value != MISSING)
            labels[place] += f" ({words})" if words else ""
    return labels


def _telling(rows: Sequence[SettingRow]) -> list[SettingRow]:
    """The first rows that tell apart as many columns as all rows together."""
    telling: list[SettingRow] = []
    apart = 1
    for row in rows:
        columns = set(zip(*(known.values for known in (*telling, row)), strict=True))
        if len(columns) > apart:
            telling.append(row)
            apart = len(columns)
    return telling


def _data_and_settings(run: Run) -> Hashable:
    data = run.settings.get("data")
    return run.data, tuple(sorted(flat(data).items())) if isinstance(data, dict) else ()


def _places_by(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, in the order of their first."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return list(places.values())


def is_baseline(method: str) -> bool:
    """Whether other methods are measured against this one."""
    return method_display(method).group == "baseline"


def is_reference(method: str) -> bool:
    """Whether the method gives unlabeled images no labels to train on: the baseline or the oracle."""
    return method_display(method).group in ("baseline", "reference")


def is_soc(method: str) -> bool:
    """Whether this is the paper's own method, which figures show first."""
    return method_display(method).group == "soc"


def method_labels(runs: Sequence[Run]) -> list[str]:
    """``SoC``; where the runs have several data sets, ``SoC on semi_cub``."""
    are_several = len(by_data(runs)) > 1
    return [
        method_display(run.method).title + (f" on {data}" if are_several else "")
        for run, data in zip(runs, data_labels(runs), strict=True)
    ]


def run_labels(runs: Sequence[Run]) -> list[str]:
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
