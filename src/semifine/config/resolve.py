"""Merges layers of settings (presets, files, command line) into the settings of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semifine.config.autotune import AUTOTUNED, Suggestions, autotune
from semifine.config.train_settings import RunSettings, TrainSettings, may_change_on_resume
from semifine.config.yaml_files import flatten, read_run_values, source_defaults
from semifine.data import sources
from semifine.errors import UserError
from semifine.fields import build, field_names, unknown_key
from semifine.methods.registry import absolute_name, method_class

if TYPE_CHECKING:
    from semifine.data.dataset import Dataset


def resolve(layers: Sequence[Mapping[str, Any]], dataset: Dataset | None = None) -> RunSettings:
    """The settings of one run from layers of flat keys; later layers win.

    The preset of the data source, if it has one, lies below all layers. So the synthetic data set trains a small
    network on small images by default.

    Args:
        layers: Values by key, such as ``lr``, ``data.source`` or ``method.alpha``.
        dataset: The opened data. If it is somebody's own photos, settings that no layer gives are chosen to suit it.

    Raises:
        UserError: If a key is unknown or a value is invalid.

    Example:
        >>> settings = resolve([{"iterations": 100, "lr": 0.1}, {"iterations": "200", "method.alpha": 4}])
        >>> settings.train.iterations, settings.train.lr, settings.method_settings.alpha
        (200, 0.1, 4.0)
    """
    merged = _merge(layers)
    data, method = str(merged["data.source"]), absolute_name(str(merged["method.name"]))
    source_name, root = sources.resolve(data)
    data_settings_class = sources.source_named(source_name).settings_class
    chosen_method = method_class(method)
    groups = _split_groups(merged, all_keys(data_settings_class, chosen_method.Settings))
    train = build(TrainSettings, groups[""])
    suggested = Suggestions()
    if dataset is not None and sources.is_own_photos(source_name):
        # If the average is not what is evaluated, it is a part of the method.
        given = groups[""].keys() | (set() if chosen_method.evaluates_ema else {"ema"})
        if not given >= AUTOTUNED:
            suggested = autotune(dataset.catalog, given, train)
            train = dataclasses.replace(train, **suggested.values)  # type: ignore[arg-type]
    return RunSettings(
        data=f"{source_name}:{root}" if root else source_name,  # absolute, to be found from any folder
        method=method,
        train=train,
        data_settings=build(data_settings_class, groups["data"], "data."),
        method_settings=build(chosen_method.Settings, groups["method"], "method."),
        notes=(f"chosen from the data: {', '.join(suggested.reasons)}",) if suggested.reasons else (),
    )


def open_and_resolve(layers: Sequence[Mapping[str, Any]]) -> tuple[RunSettings, Dataset]:
    """The settings of one run and its data, opened once. The catalog is read only if a setting depends on it.

    Example:
        >>> settings, dataset = open_and_resolve([{"data.source": "synthetic", "data.genera": 2}])
        >>> dataset.catalog.num_classes
        10
    """
    from semifine.data.dataset import Dataset  # slow: torch, which reading settings alone does not need

    merged = _merge(layers)
    values = {key.removeprefix("data."): value for key, value in merged.items() if key.startswith("data.")}
    del values["source"]
    dataset = Dataset.open(str(merged["data.source"]), values)
    return resolve(layers, dataset), dataset


def _merge(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged = {"data.source": "synthetic", "method.name": "soc"}
    merged |= {key: value for layer in layers for key, value in layer.items()}
    source_name, _ = sources.resolve(str(merged["data.source"]))
    return {**source_defaults(source_name), **merged}


def _split_groups(merged: Mapping[str, Any], known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of training, data and method by their names; raises UserError for another group."""
    groups: dict[str, dict[str, Any]] = {"": {}, "data": {}, "method": {}}
    for key, value in merged.items():
        group, _, name = key.rpartition(".")
        if key in ("data.source", "method.name"):
            continue
        if group not in groups:
            raise unknown_key(key, known)
        groups[group][name] = value
    return groups


def all_keys(data_settings_class: type, method_settings_class: type) -> list[str]:
    """Every key of a run with this source and this method."""
    return [
        "data.source",
        "method.name",
        *field_names(TrainSettings),
        *("data." + name for name in field_names(data_settings_class)),
        *("method." + name for name in field_names(method_settings_class)),
    ]


def read_train_settings(path: Path) -> TrainSettings:
    """The training settings of a run. Its data need not exist any more."""
    values = {key: value for key, value in read_run_values(path).items() if "." not in key}
    with _naming(path):
        return build(TrainSettings, values)


def read_data_settings(path: Path) -> RunSettings:
    """The settings of a run, but with the default method: enough to use the run and its data.

    The method may be a user's own file. To use a run, that file need not exist, and no code in it runs.
    """
    values = {key: value for key, value in read_run_values(path).items() if not key.startswith("method.")}
    with _naming(path):
        return resolve([values])


def read_run_settings(path: Path, changed: Mapping[str, Any] | None = None) -> RunSettings:
    """All settings of a run, from the ``settings.yaml`` that it wrote.

    Args:
        path: The settings file.
        changed: Values that replace the written ones.

    Raises:
        UserError: If a value is invalid; the message names the file.
    """
    values = read_run_values(path)
    with _naming(path):
        method = str(values["method.name"])
        if absolute_name(method) != method:  # runs write whole paths; a copied run folder must not bring code along
            raise UserError(f"method.name must be the whole path of the method's file, not '{method}'.")
        return resolve([{**values, **(changed or {})}])


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the settings file in errors about its values."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


class Difference(NamedTuple):
    """A setting that differs between two runs."""

    key: str
    before: Any
    now: Any


def first_difference(before: RunSettings, now: RunSettings) -> Difference | None:
    """The first setting in which two runs differ, among those that must stay the same on resume.

    Example:
        >>> first_difference(resolve([{"lr": 0.1, "log_every": 10}]), resolve([{"lr": 0.2, "log_every": 20}]))
        Difference(key='lr', before=0.1, now=0.2)
    """
    old = flatten(before.as_dict())
    for key, value in flatten(now.as_dict()).items():
        if not may_change_on_resume(key) and old.get(key) != value:
            return Difference(key, old.get(key), value)
    return None
