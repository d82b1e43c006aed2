"""Merges layers of settings (presets, files, command line) into the settings of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semifine.config.train_settings import RunSettings, TrainSettings
from semifine.config.yaml_files import flatten, read_begun_settings, source_defaults
from semifine.errors import UserError
from semifine.fields import build, field_names, unknown_key

if TYPE_CHECKING:
    from semifine.config.autotune import Suggestions


def resolve(layers: Sequence[Mapping[str, Any]]) -> RunSettings:
    """One run's settings from layers of flat keys, the later one winning.

    The preset of the data source, where there is one, lies below all layers, so that the embedded set
    trains a small network on small images unless told otherwise.
    """
    from semifine.data import sources
    from semifine.methods.registry import absolute_name, method_class

    merged = {key: value for layer in layers for key, value in layer.items()}
    data = str(merged.get("data.source", "synthetic"))
    method = absolute_name(str(merged.get("method.name", "soc")))
    source_name, root = sources.resolve(data)
    merged = {**source_defaults(source_name), **merged}

    data_settings_class = sources.settings_class(source_name)
    chosen_method = method_class(method)
    method_settings_class = chosen_method.Settings
    groups: dict[str, dict[str, Any]] = {"": {}, "data": {}, "method": {}}
    for key, value in merged.items():
        group, _, name = key.rpartition(".")
        if key in ("data.source", "method.name"):
            continue
        if group not in groups:
            raise unknown_key(key, all_keys(data_settings_class, method_settings_class))
        groups[group][name] = value
    data_settings = build(data_settings_class, groups["data"], "data.")
    # Where it is not evaluated, the average is a part of the method.
    left_alone = set() if chosen_method.evaluates_ema else {"ema"}
    suggested = _suggestions(source_name, data, data_settings, groups[""], left_alone)
    train = build(TrainSettings, {**suggested.values, **groups[""]})
    return RunSettings(
        data=f"{source_name}:{root}" if root else source_name,  # absolute, to be found from any folder
        method=method,
        train=train,
        data_settings=data_settings,
        method_settings=build(method_settings_class, groups["method"], "method."),
        notes=(f"chosen from the data: {', '.join(suggested.reasons)}",) if suggested.reasons else (),
    )


def _suggestions(
    source_name: str, data: str, data_settings: Any, given: Mapping[str, Any], left_alone: set[str]
) -> Suggestions:
    """What suits somebody's own photos, for settings that nobody gave; other sources are known."""
    from semifine.config.autotune import SUGGESTED, Suggestions, suggest
    from semifine.data.sources import OWN_PHOTOS, load_catalog
    from semifine.data.splits import BURST

    if source_name not in OWN_PHOTOS or given.keys() | left_alone >= SUGGESTED:
        return Suggestions()
    if data_settings.group_by == BURST:  # which every file is read for; once is enough
        data_settings = dataclasses.replace(data_settings, group_by=None)
    try:
        catalog = load_catalog(data, data_settings)
        named = ("batch_size", "mu", "iterations")
        numbers = build(TrainSettings, {name: given[name] for name in named if name in given})
    except UserError:  # it will be said when the data is opened
        return Suggestions()
    return suggest(catalog, given.keys() | left_alone, numbers.batch_size, numbers.mu, numbers.iterations)


def all_keys(data_settings_class: type, method_settings_class: type) -> list[str]:
    """Every key that a run with this source and this method takes."""
    return [
        "data.source",
        "method.name",
        *field_names(TrainSettings),
        *("data." + name for name in field_names(data_settings_class)),
        *("method." + name for name in field_names(method_settings_class)),
    ]


def read_train_settings(path: Path) -> TrainSettings:
    """The training settings of a run alone: the data need not be there any more."""
    values = {key: value for key, value in read_begun_settings(path).items() if "." not in key}
    try:
        return build(TrainSettings, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_data_settings(path: Path) -> RunSettings:
    """The settings of a run with the default method in the place of its own, to use the run and its data.

    A method may be a file of somebody's own: to use a run it need not be there, and nothing in it is run.
    """
    values = {key: value for key, value in read_begun_settings(path).items() if not key.startswith("method.")}
    try:
        return resolve([values])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_run_settings(path: Path, changed: Mapping[str, Any] | None = None) -> RunSettings:
    """All settings of a run, from the file that it wrote; a value that cannot be is told with the file's name.

    ``changed`` takes the place of what is written there.
    """
    from semifine.methods.registry import absolute_name

    values = read_begun_settings(path)
    try:
        method = str(values["method.name"])
        if absolute_name(method) != method:  # no run writes so; a folder of a stranger's must not bring code along
            raise UserError(f"method.name must be the whole path of the method's file, not '{method}'.")
        return resolve([{**values, **(changed or {})}])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


# Settings with which a begun run may go on changed: where it runs, how it is watched, and what it does about broken
# images and losses (skip_unreadable, on_nonfinite), which change what it computes only where there are such.
CHANGEABLE = {
    "device",
    "devices",
    "store",
    "compile",
    "cuda_graphs",
    "cache",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep_sample_stats",
    "loggers",
    "skip_unreadable",
    "on_nonfinite",
}


class Difference(NamedTuple):
    """A setting that two runs do not share."""

    key: str
    before: Any
    now: Any


def first_difference(before: RunSettings, now: RunSettings) -> Difference | None:
    """The first setting, of those that a begun run must keep, in which the two differ."""
    old = flatten(before.as_dict())
    for key, value in flatten(now.as_dict()).items():
        if key not in CHANGEABLE and old.get(key) != value:
            return Difference(key, old.get(key), value)
    return None
