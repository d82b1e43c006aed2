"""Settings and environment of all runs side by side, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import Any

from semifine.config.train_settings import may_change_on_resume
from semifine.report.formatting import ELLIPSIS, MISSING
from semifine.runs.run import Run


@dataclass(frozen=True)
class SettingRow:
    key: str
    values: list[str]
    """As the page shows them: of a path the name alone."""
    differs: bool


def settings_rows(runs: Sequence[Run]) -> list[SettingRow]:
    return _rows([flat(run.settings) for run in runs])


def environment_rows(runs: Sequence[Run]) -> list[SettingRow]:
    return _rows([flat(run.environment) for run in runs])


def differences_beyond_method(runs: Sequence[Run]) -> list[str]:
    """Settings other than the method's own in which the runs differ: then not only the methods are compared."""
    rows = settings_rows(runs)
    return [
        row.key
        for row in rows
        if row.differs and not is_beside_the_point(row.key) and not row.key.startswith(("method", "data"))
    ]


def is_beside_the_point(key: str) -> bool:
    """Whether runs that differ in this setting are still runs of the same: its seed, or what a begun run may change."""
    return key == "seed" or may_change_on_resume(key)


def flat(nested: Mapping[str, Any]) -> dict[str, str]:
    """``{"method": {"alpha": 5}}`` as ``{"method.alpha": "5"}``."""
    values: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            values |= {f"{key}.{name}": inner for name, inner in flat(value).items()}
        else:
            values[key] = _text(value)
    return values


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_text(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else str(value)


def _rows(columns: Sequence[Mapping[str, str]]) -> list[SettingRow]:
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = []
    for key in keys:
        values = [column.get(key, MISSING) for column in columns]
        rows.append(SettingRow(key, [_without_folders(value) for value in values], len(set(values)) > 1))
    return rows


def _without_folders(value: str) -> str:
    """``folder:/home/ada/birds`` as ``folder:…/birds``: where it lies on this machine is nobody else's concern."""
    source, colon, root = value.rpartition(":")
    path = root if colon and source.isidentifier() and len(source) > 1 else value
    parts = PureWindowsPath(path)  # which also takes the slashes of the others
    if not (parts.root or path.startswith("~")) or len(parts.parts) < 2:
        return value
    return f"{value.removesuffix(path)}{ELLIPSIS}/{parts.name}"
