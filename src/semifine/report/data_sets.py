"""Which runs share their data, and what a data set is called on a page."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from semifine.analysis.runs import RunFacts
from semifine.report.settings_table import SettingRow, flat, settings_rows
from semifine.report.wording import MISSING, NO_BREAK_SPACE


def by_data(runs: Sequence[RunFacts]) -> list[list[int]]:
    """Places of the runs that share their data with its settings; only those may be compared."""
    return _places_by(_data_and_settings(run) for run in runs)


def data_name(run: RunFacts) -> str:
    """``semi_cub``, or of one's own photos the folder's or table's name: a page is shown to others."""
    source, _, root = run.data.partition(":")
    return Path(root).name if root and source in ("folder", "table") else source


def data_labels(runs: Sequence[RunFacts]) -> list[str]:
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


def _data_and_settings(run: RunFacts) -> Hashable:
    data = run.settings.get("data")
    return run.data, tuple(sorted(flat(data).items())) if isinstance(data, dict) else ()


def _places_by(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, in the order of their first."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return list(places.values())
