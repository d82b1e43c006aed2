"""The published settings of each method, fitted to a data set, a network and a budget."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from semifine.config.loading import PRESETS
from semifine.data.catalog import Catalog, Split
from semifine.data.sources import build_settings, load_catalog
from semifine.errors import UserError

FOLDER = PRESETS.parent / "experiments"

BUDGETS = {"full": None, "small": 3000, "tiny": 400}
"""Steps of SoC under each budget; the other methods keep their proportion to it."""

INITS = ("scratch", "imagenet", "inat")

SMALLEST_BATCH = 4


@dataclass(frozen=True)
class Conditions:
    """What all runs of one column of a table share."""

    data: str
    init: str = "scratch"
    unlabeled: str = "in"
    seed: int = 0
    profile: str = "paper"
    budget: str = "full"
    weights: str | None = None
    """The file of a pre-trained network, where the init is one that no package carries."""
    data_settings: tuple[tuple[str, str], ...] = ()
    """What was chosen about the data, such as ("labels_per_class", "5")."""

    @property
    def family(self) -> str:
        """Which of the published settings apply."""
        return "scratch" if self.init == "scratch" else "experts"


def compose(recipe: str, conditions: Conditions, after_moco: bool = False) -> dict[str, Any]:
    """The flat settings of one training run; the start is left to the stage that it is part of."""
    published = _published(recipe, conditions.family, after_moco)
    is_two_views = read_shipped("recipes.yaml")["recipes"][recipe]["family"] == "two_views"
    profile = read_profile(conditions.profile)
    settings = _fit_to_profile({**published, **profile["settings"]}, profile)
    if profile.get("equal_steps") and is_two_views:
        settings = {key: value for key, value in settings.items() if key not in ("passes", "horizon")}
        settings["iterations"] = _published("soc", conditions.family, after_moco=False)["iterations"]
    settings = _scale_steps(_count_steps(settings, conditions), budget_factor(conditions))
    if settings["method.name"] == "moco":
        settings["method.groups"] = _largest_divisor(settings["batch_size"] * settings["mu"], settings["method.groups"])
    return {**settings, **_data_settings(conditions), "seed": conditions.seed}


def budget_factor(conditions: Conditions) -> float:
    """By what all numbers of steps are multiplied."""
    steps = BUDGETS.get(conditions.budget, "a number")
    if steps is None:
        return 1.0
    if steps == "a number":
        steps = _positive(conditions.budget)
    return float(steps) / float(_published("soc", conditions.family, after_moco=False)["iterations"])


def default_profile(data: str) -> str:
    """What suits a data set: the published network for the published ones, smaller ones elsewhere."""
    source = data.partition(":")[0]
    return {"semi_aves": "paper", "semi_fungi": "paper", "semi_inat": "paper", "synthetic": "small"}.get(
        source, "lite0"
    )


@functools.cache
def read_shipped(name: str) -> dict[str, Any]:
    """A file of experiments that comes with semifine, such as ``recipes.yaml``."""
    return dict(yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))


def recipe_names() -> list[str]:
    return list(read_shipped("recipes.yaml")["recipes"])


def profile_names() -> list[str]:
    return list(read_shipped("profiles.yaml"))


def read_profile(name: str) -> dict[str, Any]:
    profiles = read_shipped("profiles.yaml")
    if name not in profiles:
        raise UserError(f"Unknown profile '{name}'. Valid ones: {', '.join(profiles)}.")
    return dict(profiles[name])


def _published(recipe: str, family: str, after_moco: bool) -> dict[str, Any]:
    book = read_shipped("recipes.yaml")
    entry = book["recipes"][recipe]
    start = entry[family]
    if after_moco:
        start = entry.get(f"moco_{family}", start)
    return {**book["families"][entry["family"]], **entry["settings"], **start}


def _fit_to_profile(settings: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    fitted = dict(settings)
    for key, factor in profile.get("factors", {}).items():
        if key in fitted:
            whole = isinstance(fitted[key], int)
            fitted[key] = max(SMALLEST_BATCH, round(fitted[key] * factor)) if whole else fitted[key] * factor
    for key, largest in profile.get("at_most", {}).items():
        if key in fitted:
            fitted[key] = min(fitted[key], largest)
    return fitted


def _count_steps(settings: dict[str, Any], conditions: Conditions) -> dict[str, Any]:
    """Where a recipe is stated in passes over the unlabeled images, its steps; the rest of a pass is dropped."""
    if "passes" not in settings:
        return settings
    counted = {key: value for key, value in settings.items() if key != "passes"}
    images = count_unlabeled(conditions)
    steps_of_a_pass = max(1, images // (settings["batch_size"] * settings["mu"]))
    return {**counted, "iterations": settings["passes"] * steps_of_a_pass}


def _scale_steps(settings: dict[str, Any], factor: float) -> dict[str, Any]:
    if factor < 1:  # at the published interval a short run would be evaluated once or twice
        settings = {key: value for key, value in settings.items() if key != "evaluate_every"}
    steps = ("iterations", "horizon")
    return {key: max(1, round(value * factor)) if key in steps else value for key, value in settings.items()}


def count_unlabeled(conditions: Conditions) -> int:
    """How many images one pass over the unlabeled ones sees."""
    return len(read_catalog(conditions).rows(Split.UNLABELED))


def read_catalog(conditions: Conditions) -> Catalog:
    """The images that the runs learn from."""
    return _read_catalog(conditions.data, tuple(_chosen_of_data(conditions).items()))


@functools.cache
def _read_catalog(data: str, chosen: tuple[tuple[str, str], ...]) -> Catalog:
    return load_catalog(data, build_settings(data, dict(chosen)))


def _chosen_of_data(conditions: Conditions) -> dict[str, str]:
    """The settings of the data source by their names."""
    unlabeled = {"unlabeled": "inout"} if conditions.unlabeled == "inout" else {}
    return {**dict(conditions.data_settings), **unlabeled}


def _data_settings(conditions: Conditions) -> dict[str, Any]:
    # The embedded set suggests to a quick try that unlabeled images join late, which is no part of a recipe.
    settings: dict[str, Any] = {"data.source": conditions.data, "supervised_warmup": 0.0}
    return {**settings, **{f"data.{name}": value for name, value in _chosen_of_data(conditions).items()}}


def _largest_divisor(number: int, wanted: int) -> int:
    """The largest number of batch-norm groups, not above the wanted one, that a batch can be dealt into."""
    return max(divisor for divisor in range(1, wanted + 1) if number % divisor == 0)


def _positive(budget: str) -> int:
    try:
        steps = int(budget)
    except ValueError:
        steps = 0
    if steps < 1:
        raise UserError(f"budget must be one of {', '.join(BUDGETS)}, or SoC's number of steps, not '{budget}'.")
    return steps


def check_weights_file(conditions: Conditions) -> None:
    """A start that no package carries needs a file."""
    if conditions.init == "inat" and not conditions.weights:
        raise UserError(
            "The start 'inat' needs the file of a network trained on iNaturalist: give --inat-weights FILE."
        )
    if conditions.weights and not Path(conditions.weights).is_file():
        raise UserError(f"There is no weights file {conditions.weights}.")
