"""Reads settings from presets, YAML files and the command line, and merges them into the settings of one run."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from semifine.config.autotune import autotune, choose_network, ema_decay_for
from semifine.config.train_settings import RunSettings, TrainSettings, may_change_on_resume
from semifine.data import sources
from semifine.data.catalog import without_hold_out
from semifine.errors import UserError, short_reason
from semifine.fields import build, field_names, unknown_key
from semifine.files import read_text, write_atomically
from semifine.methods.registry import absolute_name, is_method_file, method_class

if TYPE_CHECKING:
    from semifine.data.dataset import Dataset

MAX_YAML_BYTES = 64 << 10
MAX_YAML_TEXT = 4096
"""Length of the longest path."""
PRESETS = Path(__file__).parent / "presets"
DEFAULTS = {"data.source": "synthetic", "method.name": "soc"}
RECIPE = "best"
"""Preset with the method that `benchmarks/recipe_search.py` chose on validation images."""
OF_THE_DATA = frozenset({"iterations", "horizon", "evaluate_every", "image_size", "ema"})
"""Training settings of a preset that suit the data set for which it was made; own photos get values of their own."""


class Preset(dict[str, Any]):
    """The values of a preset by flat key."""


def resolve(layers: Sequence[Mapping[str, Any]], dataset: Dataset | None = None) -> RunSettings:
    """Merges layers of flat keys into the settings of one run. Later layers override earlier ones.

    The preset of the data source, if there is one, is the lowest layer. For example, the synthetic data set uses a
    small network and small images by default.

    Args:
        layers: Values by key, such as ``lr``, ``data.source`` or ``method.alpha``.
        dataset: The opened data set. For the user's own photos, :func:`autotune` then chooses settings that no layer
            contains.

    Returns:
        The checked settings.

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
    data_settings_class = sources.get_source(source_name).settings_class
    chosen_method = method_class(method)
    groups = _split_groups(merged, all_keys(data_settings_class, chosen_method.Settings))
    train = build(TrainSettings, groups[""])
    if "ema" not in groups[""] and chosen_method.evaluates_ema:
        train = dataclasses.replace(train, ema=ema_decay_for(train.iterations))
    data_settings = build(data_settings_class, groups["data"], "data.")
    method_settings: Any = build(chosen_method.Settings, groups["method"], "method.")
    settings = RunSettings(
        data=f"{source_name}:{root}" if root else source_name,  # an absolute path, valid in any working directory
        method=method,
        train=train,
        data_settings=data_settings,
        method_settings=method_settings,
    )
    if dataset is None or not sources.is_own_photos(source_name):
        return settings
    return _tune(settings, {name: set(values) for name, values in groups.items()}, dataset)


def _tune(settings: RunSettings, given: Mapping[str, set[str]], dataset: Dataset) -> RunSettings:
    """Chooses settings for own photos that are not given.

    Args:
        settings: The settings so far.
        given: Names of the given settings by group: "" (training), "data" and "method".
        dataset: The photos. If a probe is fitted, held-out labels become training labels again, because the probe is
            cross-validated.
    """
    method, train = method_class(settings.method), settings.train
    # If the EMA network is not evaluated, its decay belongs to the method and must not be tuned.
    chosen = given[""] | (set() if method.evaluates_ema else {"ema"})
    # Logit adjustment (--method.adjust_labeled) balances the classes, too; both would do it twice.
    is_balanced = not method.labeled_views or "adjust_labeled" in given["method"]
    chosen |= {"balance"} if is_balanced else set()
    chosen |= set() if method.takes_steps else {"time", "train_stages"}
    notes: list[str] = []
    if method.trains_classifier:
        network = choose_network(dataset.catalog, chosen, train, _settings_of_run(train.weights))
        notes += network.notes
        train = dataclasses.replace(train, **network.values)
        chosen |= network.values.keys()
        if train.train_stages and given["method"].isdisjoint(levers := _recipe_levers(settings.method)):
            settings = dataclasses.replace(
                settings, method_settings=dataclasses.replace(settings.method_settings, **levers)
            )
    if train.probe and dataset.catalog.held_out and given["data"].isdisjoint({"val_share", "group_by"}):
        dataset.catalog = without_hold_out(dataset.catalog)
        settings = dataclasses.replace(
            settings, data_settings=dataclasses.replace(settings.data_settings, val_share=0.0)
        )
    tuned = autotune(dataset.catalog, chosen, train)
    notes += tuned.notes if method.takes_steps else []
    return dataclasses.replace(settings, train=dataclasses.replace(train, **tuned.values), notes=tuple(notes))


def _recipe_levers(method: str) -> dict[str, Any]:
    """Returns the method settings of the preset ``best``, with which own photos are trained if they suit the method."""
    recipe = read_preset(RECIPE)
    values = {key.removeprefix("method."): value for key, value in recipe.items() if key.startswith("method.")}
    return values if values.pop("name") == method else {}


def _settings_of_run(weights: str | None) -> TrainSettings | None:
    """Returns the training settings of the run folder ``weights``; None if it is none."""
    path = Path(weights) / "settings.yaml" if weights else None
    return read_train_settings(path) if path is not None and path.is_file() else None


def open_and_resolve(
    layers: Sequence[Mapping[str, Any]], open_dataset: Callable[[str, Mapping[str, Any]], Dataset] | None = None
) -> tuple[RunSettings, Dataset]:
    """Opens the data set and resolves the settings of one run; the catalog is read only if a setting depends on it.

    Args:
        layers: Flat keys; later layers override earlier ones.
        open_dataset: Opens a data source with the values of its settings; default: ``Dataset.open``.

    Example:
        >>> settings, dataset = open_and_resolve([{"data.source": "synthetic", "data.genera": 2}])
        >>> dataset.catalog.num_classes
        10
    """
    from semifine.data.dataset import Dataset  # slow: imports torch, which reading settings does not need

    merged = _merge(layers)
    values = {key.removeprefix("data."): value for key, value in merged.items() if key.startswith("data.")}
    del values["source"]
    dataset = (open_dataset or Dataset.open)(str(merged["data.source"]), values)
    return resolve(layers, dataset), dataset


def _merge(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged = DEFAULTS | {key: value for layer in layers for key, value in layer.items()}
    source_name, _ = sources.resolve(str(merged["data.source"]))
    if sources.is_own_photos(source_name):
        # If the EMA network is not evaluated, its decay belongs to the method.
        tunes_ema = method_class(absolute_name(str(merged["method.name"]))).evaluates_ema
        left_out = OF_THE_DATA if tunes_ema else OF_THE_DATA - {"ema"}
        pairs = [(key, value, isinstance(layer, Preset)) for layer in layers for key, value in layer.items()]
        merged = DEFAULTS | {key: value for key, value, is_preset in pairs if not (is_preset and key in left_out)}
    return {**source_defaults(source_name), **merged}


def _split_groups(merged: Mapping[str, Any], valid_keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Splits the keys into the groups "" (training), "data" and "method"; raises UserError for any other group."""
    groups: dict[str, dict[str, Any]] = {"": {}, "data": {}, "method": {}}
    for key, value in merged.items():
        group, _, name = key.rpartition(".")
        if key in DEFAULTS:
            continue
        if group not in groups:
            raise unknown_key(key, valid_keys)
        groups[group][name] = value
    return groups


def all_keys(data_settings_class: type, method_settings_class: type) -> list[str]:
    """Lists every valid key for a data source and a method."""
    return [
        *DEFAULTS,
        *field_names(TrainSettings),
        *("data." + name for name in field_names(data_settings_class)),
        *("method." + name for name in field_names(method_settings_class)),
    ]


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the keys of nested settings with dots. ``data: x`` and ``method: x`` set the source and the name.

    Example:
        >>> flatten({"method": {"alpha": 5}, "data": "synthetic", "lr": 0.1})
        {'method.alpha': 5, 'data.source': 'synthetic', 'lr': 0.1}
    """
    short = {"data": "data.source", "method": "method.name"}
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[short.get(key, key)] = value
    return flat


def read_settings_file(path: Path) -> dict[str, Any]:
    """Reads a YAML settings file into flat keys; raises UserError if it is not valid."""
    return flatten(read_yaml(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file of limited size with text, numbers, lists and objects; raises UserError for anything else.

    Example:
        >>> _ = Path("settings.yaml").write_text("method: {alpha: 5}")
        >>> read_yaml(Path("settings.yaml"))
        {'method': {'alpha': 5}}
    """
    try:
        loaded = yaml.safe_load(read_text(path, MAX_YAML_BYTES))
    except OSError as error:
        raise UserError(f"Cannot read the settings file {path}: {error.strerror or error}.") from error
    except RecursionError as error:
        raise UserError(f"The settings file {path} is not valid YAML: it is nested too deeply.") from error
    except Exception as error:  # PyYAML's constructors raise many kinds of errors for values that do not fit their tag
        raise UserError(f"The settings file {path} is not valid YAML: {short_reason(error)}.") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise UserError(f"The settings file {path} must contain 'key: value' lines.")
    if problem := _find_problem(loaded):
        raise UserError(f"The settings file {path} {problem}.")
    return loaded


def _find_problem(loaded: dict[str, Any]) -> str:
    """Describes a value that no setting can have; "" if there is none. Aliases can repeat a value endlessly."""
    waiting, count = [loaded], 1
    while waiting:
        value: Any = waiting.pop()
        items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(value) if isinstance(value, str) else len(items)
        if count > MAX_YAML_BYTES:
            return "becomes too long when its aliases are replaced by their values: remove them"
        waiting += items
        if isinstance(value, str) and (len(value) > MAX_YAML_TEXT or not _is_unicode(value)):
            return f"contains text that is no setting, {value[:40]!r}"
        if isinstance(value, int) and value.bit_length() > 64:
            return "contains a number of more than 64 bits"
        if value is not None and not isinstance(value, str | int | float | list | dict):
            return f"contains the {type(value).__name__} '{value!s:.40}': write text in quotes"
    return ""


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def preset_names() -> list[str]:
    """Names of the presets, as ``--preset`` accepts them.

    Example:
        >>> "soc-paper" in preset_names()
        True
    """
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> Preset:
    """Reads the flat keys of a preset, without its ``summary``."""
    if name not in preset_names():
        raise UserError(f"Unknown preset '{name}'. Valid ones: {', '.join(preset_names())}.")
    values = read_settings_file(PRESETS / f"{name}.yaml")
    return Preset((key, value) for key, value in values.items() if key != "summary")


def preset_summary(name: str) -> str:
    return str(read_settings_file(PRESETS / f"{name}.yaml").get("summary", ""))


def source_defaults(source_name: str) -> dict[str, Any]:
    """Reads the default settings for a data source; empty if the source has none."""
    path = PRESETS / "datasets" / f"{source_name}.yaml"
    return read_settings_file(path) if path.exists() else {}


def write_settings(settings: RunSettings, path: Path) -> None:
    """Writes every resolved value, so that the file alone reproduces the run."""
    write_atomically(path, yaml.safe_dump(settings.as_dict(), sort_keys=False, allow_unicode=True))


def read_run_values(path: Path) -> dict[str, Any]:
    """Reads the flat keys of the ``settings.yaml`` of a run, without checking the values."""
    values = read_settings_file(path)
    missing = [key for key in (*DEFAULTS, "iterations") if key not in values]
    if missing:
        raise UserError(f"{path} is damaged: the key '{missing[0]}' is missing; restore the whole file.")
    return values


def read_train_settings(path: Path) -> TrainSettings:
    """Reads the training settings of a run; its data and its method need not exist."""
    values = {key: value for key, value in read_run_values(path).items() if "." not in key}
    with naming(path):
        return build(TrainSettings, values)


def read_method_name(path: Path) -> str:
    """Reads the name or the file of the method from the ``settings.yaml`` of a run; does not execute the file."""
    return str(read_run_values(path)["method.name"])


def read_run_settings(
    path: Path, changed: Mapping[str, Any] | None = None, named_method: str | None = None
) -> RunSettings:
    """Reads all settings of a run.

    Args:
        path: The ``settings.yaml`` of the run.
        changed: Values that override the values in the file.
        named_method: The method that a person has named; see :func:`with_named_method`.

    Raises:
        UserError: If a value is invalid; the message names the file.
    """
    values = read_run_values(path)
    with naming(path):
        return resolve([with_named_method({**values, **(changed or {})}, named_method)])


def with_named_method(values: Mapping[str, Any], named: str | None) -> dict[str, Any]:
    """Returns the values of a settings file, in which the method file is the one that a person has named.

    A method file is code. A settings file or a run folder may come from someone else, so it never decides which code
    runs: the path in it is replaced by the path on the command line.

    Args:
        values: Flat keys.
        named: The value of ``--method``, or None.

    Raises:
        UserError: If the method is a file and no file is named.

    Example:
        >>> with_named_method({"method.name": "/theirs/mine.py", "lr": 0.1}, "/reviewed/mine.py")
        {'method.name': '/reviewed/mine.py', 'lr': 0.1}
    """
    method = str(values.get("method.name"))
    if not is_method_file(method):
        return dict(values)
    if named is None or not is_method_file(named):
        raise UserError(
            f"the method {method} is a file with code, which runs only if the command line names it: read the file, "
            f"then add --method {shlex.quote(method)}."
        )
    return {**values, "method.name": absolute_name(named)}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of the settings file to errors about its values."""
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
    """Returns the first setting that differs between two runs and must not change on resume.

    Example:
        >>> first_difference(resolve([{"lr": 0.1, "log_every": 10}]), resolve([{"lr": 0.2, "log_every": 20}]))
        Difference(key='lr', before=0.1, now=0.2)
    """
    old = flatten(before.as_dict())
    for key, value in flatten(now.as_dict()).items():
        if not may_change_on_resume(key) and old.get(key) != value:
            return Difference(key, old.get(key), value)
    return None
