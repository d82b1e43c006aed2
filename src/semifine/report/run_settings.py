"""Settings of several runs side by side, and the settings in which the runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PureWindowsPath
from typing import Any

from semifine.config.train_settings import may_change_on_resume
from semifine.methods import method_class
from semifine.report.formatting import ELLIPSIS, MISSING
from semifine.runs.run import Run


@dataclass(frozen=True)
class SettingRow:
    """One setting and its value in each run."""

    key: str
    values: list[str]
    """Values for display. Paths are reduced to the file name."""
    differs: bool


def settings_rows(runs: Sequence[Run]) -> list[SettingRow]:
    """Returns a row for each setting that any of the runs has."""
    return _rows([flatten(run.settings) for run in runs])


def environment_rows(runs: Sequence[Run]) -> list[SettingRow]:
    """Returns a row for each entry of the runs' environments."""
    return _rows([flatten(run.environment) for run in runs])


def differences_beyond_method(runs: Sequence[Run]) -> list[str]:
    """Returns the keys in which the runs differ besides method, data, seed and runtime settings.

    If there are any, a comparison of the runs is not a comparison of their methods alone.
    """
    return [
        row.key
        for row in settings_rows(runs)
        if row.differs and not is_seed_or_runtime(row.key) and not row.key.startswith(("method", "data"))
    ]


def changed_method_settings(run: Run) -> list[str]:
    """Returns the settings of a method of this package that differ from their defaults, such as ``alpha``."""
    given = run.settings.get("method")
    default = asdict(method_class(run.method).Settings())
    return [key for key, value in given.items() if key in default and value != default[key]] if given else []


def is_seed_or_runtime(key: str) -> bool:
    """Whether repetitions of a run may differ in this setting: the seed, or a setting that may change on resume."""
    return key == "seed" or may_change_on_resume(key)


def repetition_key(run: Run) -> tuple[tuple[str, str], ...]:
    """Returns the settings that are equal for repetitions of the same run."""
    kept = sorted((key, value) for key, value in flatten(run.settings).items() if not is_seed_or_runtime(key))
    return (("", run.method), *kept)


def flatten(nested: Mapping[str, Any]) -> dict[str, str]:
    """Returns nested settings as text by dotted key.

    Example:
        >>> flatten({"method": {"alpha": 5}, "nesterov": True})
        {'method.alpha': '5', 'nesterov': 'yes'}
    """
    values: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            values |= {f"{key}.{name}": inner for name, inner in flatten(value).items()}
        else:
            values[key] = _as_text(value)
    return values


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_as_text(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else str(value)


def _rows(columns: Sequence[Mapping[str, str]]) -> list[SettingRow]:
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = []
    for key in keys:
        values = [column.get(key, MISSING) for column in columns]
        rows.append(SettingRow(key, [_hide_folders(value) for value in values], len(set(values)) > 1))
    return rows


def _hide_folders(value: str) -> str:
    """Shortens ``folder:/home/ada/birds`` to ``folder:…/birds``, because reports are shared with others."""
    source, colon, root = value.rpartition(":")
    path = root if colon and source.isidentifier() and len(source) > 1 else value
    parts = PureWindowsPath(path)  # also splits at the slashes of other systems
    if not (parts.root or path.startswith("~")) or len(parts.parts) < 2:
        return value
    return f"{value.removesuffix(path)}{ELLIPSIS}/{parts.name}"
