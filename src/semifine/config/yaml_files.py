"""Settings files: presets that ship with semifine, and the settings a run writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from semifine.config.train_settings import RunSettings
from semifine.errors import UserError
from semifine.files import write_atomically

PRESETS = Path(__file__).parent / "presets"


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """``{"method": {"alpha": 5}}`` as ``{"method.alpha": 5}``; ``method: soc`` is short for its name."""
    short = {"data": "data.source", "method": "method.name"}
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[short.get(key, key)] = value
    return flat


def read_settings_file(path: Path) -> dict[str, Any]:
    """The flat keys of a YAML settings file."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read the settings file {path}: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The settings file {path} is not valid YAML: {reason}.") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise UserError(f"The settings file {path} must hold 'key: value' lines.")
    return flatten(loaded)


def read_run_values(path: Path) -> dict[str, Any]:
    """The flat keys that a run wrote when it began, as they are written."""
    values = read_settings_file(path)
    missing = [key for key in ("data.source", "method.name", "iterations") if key not in values]
    if missing:
        raise UserError(f"{path} is damaged: it does not say '{missing[0]}'; bring back the whole file.")
    return values


def preset_names() -> list[str]:
    """Names that ``--preset`` takes."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """The flat keys of a shipped preset; its ``summary`` is for people and left out."""
    if name not in preset_names():
        raise UserError(f"Unknown preset '{name}'. Valid ones: {', '.join(preset_names())}.")
    return {key: value for key, value in read_settings_file(PRESETS / f"{name}.yaml").items() if key != "summary"}


def preset_summary(name: str) -> str:
    return str(read_settings_file(PRESETS / f"{name}.yaml").get("summary", ""))


def source_defaults(source_name: str) -> dict[str, Any]:
    """What a known data source suggests for training on it."""
    path = PRESETS / "datasets" / f"{source_name}.yaml"
    return read_settings_file(path) if path.exists() else {}


def write_settings(settings: RunSettings, path: Path) -> None:
    """Writes every resolved value, so that the file alone repeats the run."""
    write_atomically(path, yaml.safe_dump(settings.as_dict(), sort_keys=False, allow_unicode=True))
