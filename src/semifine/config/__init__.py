"""Typed settings and the presets that ship with semifine."""

from semifine.config.resolve import (
    open_and_resolve,
    read_data_settings,
    read_run_settings,
    read_train_settings,
    resolve,
)
from semifine.config.train_settings import RunSettings, TrainSettings
from semifine.config.yaml_files import preset_names, preset_summary, read_preset, read_settings_file, write_settings

__all__ = [
    "RunSettings",
    "TrainSettings",
    "open_and_resolve",
    "preset_names",
    "preset_summary",
    "read_data_settings",
    "read_preset",
    "read_run_settings",
    "read_settings_file",
    "read_train_settings",
    "resolve",
    "write_settings",
]
