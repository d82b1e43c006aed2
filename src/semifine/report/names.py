"""Labels of runs and data sets, as short as possible and unique within a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from semifine.data.sources import is_own_photos
from semifine.methods.registry import method_display
from semifine.report.formatting import MISSING, NO_BREAK_SPACE
from semifine.report.run_settings import SettingRow, flatten, settings_rows
from semifine.runs.run import Run


def group_by_data(runs: Sequence[Run]) -> list[list[int]]:
    """Returns the indices of runs with the same data set and data settings. Only such runs are compared."""
    return _indices_by_key(_data_and_settings(run) for run in runs)


def data_name(run: Run) -> str:
    """Returns the name of a data set, such as ``semi_cub``, or the name of the user's folder or table."""
    source, _, root = run.data.partition(":")
    return Path(root).name if root and is_own_photos(source) else source


def data_labels(runs: Sequence[Run]) -> list[str]:
    """Returns the data name of each run; equal names are extended by settings, as in ``synthetic (genera 4)``."""
    labels = [data_name(run) for run in runs]
    for indices in _indices_by_key(labels):
        rows = settings_rows([runs[index] for index in indices])
        distinguishing = _distinguishing_rows([row for row in rows if row.key.startswith("data.")])
        for column, index in enumerate(indices):
            values = [(row.key.removeprefix("data."), row.values[column]) for row in distinguishing]
            words = ", ".join(f"{key}{NO_BREAK_SPACE}{value}" for key, value in values if value != MISSING)
            labels[index] += f" ({words})" if words else ""
    return labels


def _distinguishing_rows(rows: Sequence[SettingRow]) -> list[SettingRow]:
    """Returns the first rows that separate as many columns as all rows together."""
    chosen: list[SettingRow] = []
    separated = 1
    for row in rows:
        columns = set(zip(*(other.values for other in (*chosen, row)), strict=True))
        if len(columns) > separated:
            chosen.append(row)
            separated = len(columns)
    return chosen


def _data_and_settings(run: Run) -> Hashable:
    data = run.settings.get("data")
    return run.data, tuple(sorted(flatten(data).items())) if isinstance(data, dict) else ()


def _indices_by_key(keys: Iterable[Hashable]) -> list[list[int]]:
    """Returns the indices of equal keys, in the order of first occurrence."""
    indices: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    return list(indices.values())


def is_baseline(method: str) -> bool:
    """Whether other methods are compared with this one."""
    return method_display(method).group == "baseline"


def is_reference(method: str) -> bool:
    """Whether the method makes no pseudo-labels: the supervised baseline or the oracle."""
    return method_display(method).group in ("baseline", "reference")


def is_soc(method: str) -> bool:
    """Whether this is the paper's method, which figures show first."""
    return method_display(method).group == "soc"


def method_labels(runs: Sequence[Run]) -> list[str]:
    """Returns the method of each run, as in ``SoC``, or ``SoC on semi_cub`` if the runs have several data sets."""
    has_several = len(group_by_data(runs)) > 1
    return [
        method_display(run.method).title + (f" on {data}" if has_several else "")
        for run, data in zip(runs, data_labels(runs), strict=True)
    ]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Returns a unique label of each run: the method, with the seed or the folder name if needed."""
    methods = method_labels(runs)
    seeds = [(method, run.seed) for method, run in zip(methods, runs, strict=True)]
    labels = []
    for method, with_seed, run in zip(methods, seeds, runs, strict=True):
        label = method
        if seeds.count(with_seed) > 1:
            label += f" ({run.name})"
        elif methods.count(method) > 1:
            label += f", seed {run.seed}"
        labels.append(label)
    return labels


def labels_over_seeds(methods: Sequence[str], firsts: Sequence[str]) -> list[str]:
    """Returns a label for each set of runs: its method label if unique, otherwise the label of its first run.

    Example:
        >>> labels_over_seeds(["SoC", "SoC", "FixMatch"], ["SoC (a)", "SoC (b)", "FixMatch"])
        ['SoC (a)', 'SoC (b)', 'FixMatch']
    """
    number = Counter(methods)
    return [method if number[method] == 1 else first for method, first in zip(methods, firsts, strict=True)]
