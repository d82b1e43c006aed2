"""Typed settings and the presets that ship with semifine."""

from semifine.config.loading import (
    open_and_resolve,
    preset_names,
    preset_summary,
    read_preset,
    read_run_settings,
    read_settings_file,
    read_train_settings,
    resolve,
    write_settings,
)
from semifine.config.train_settings import RunSettings, TrainSettings

__all__ = [
    "RunSettings",
    "TrainSettings",
    "open_and_resolve",
    "preset_names",
    "preset_summary",
    "read_preset",
    "read_run_settings",
    "read_settings_file",
    "read_train_settings",
    "resolve",
    "write_settings",
]
