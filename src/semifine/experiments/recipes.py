"""Published settings of each method, adapted to a data set, a network and a budget."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from semifine.config.autotune import ema_decay_for
from semifine.config.loading import PRESETS
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.sources import build_settings, load_catalog, resolve
from semifine.errors import UserError

FOLDER = PRESETS.parent / "experiments"

BUDGETS = {"full": None, "small": 3000, "tiny": 400}
"""Number of SoC's steps by budget. The steps of all methods are scaled by the same factor."""

INITS = ("scratch", "imagenet", "inat")

SMALLEST_BATCH = 4


@dataclass(frozen=True)
class Conditions:
    """The conditions that all runs in a column of a table share.

    Example:
        >>> conditions = Conditions("synthetic", profile="small", budget="tiny")
        >>> compose("soc", conditions)["iterations"]
        400
    """

    data: str
    init: str = "scratch"
    unlabeled: str = "in"
    seed: int = 0
    profile: str = "paper"
    budget: str = "full"
    weights: str | None = None
    """File of a pretrained network. Only ``init="inat"`` needs it, because no package contains these weights."""
    moco_weights: str | None = None
    """File of a network pretrained with MoCo, which replaces the stage ``moco``."""
    supervised_weights: str | None = None
    """File of a supervised network with its classifier, which replaces the teacher of self-training."""
    data_settings: tuple[tuple[str, str], ...] = ()
    """Settings of the data source by name, such as ``("labels_per_class", "5")``."""

    @property
    def family(self) -> str:
        """Key of the published settings: ``scratch``, or ``experts`` for pretrained networks."""
        return "scratch" if self.init == "scratch" else "experts"


def compose(recipe: str, conditions: Conditions, after_moco: bool = False) -> dict[str, Any]:
    """Returns the flat settings of one training run, without its starting weights.

    Args:
        recipe: One of :func:`recipe_names`.
        conditions: Data set, profile, budget and seed.
        after_moco: Whether the run starts from a network pretrained with MoCo.
    """
    published = _published(recipe, conditions.family, after_moco)
    is_two_views = read_shipped("recipes.yaml")["recipes"][recipe]["family"] == "two_views"
    profile = read_profile(conditions.profile)
    if "iterations" in profile["settings"]:
        published = {key: value for key, value in published.items() if key not in ("passes", "horizon")}
    settings = _fit_to_profile({**published, **profile["settings"]}, profile)
    if profile.get("equal_steps") and is_two_views:
        settings = {key: value for key, value in settings.items() if key not in ("passes", "horizon")}
        settings["iterations"] = _published("soc", conditions.family, after_moco=False)["iterations"]
    settings = _scale_average(_scale_steps(_count_steps(settings, conditions), budget_factor(conditions)))
    if settings["method.name"] == "moco":
        settings["method.groups"] = _largest_divisor(settings["batch_size"] * settings["mu"], settings["method.groups"])
    return {**settings, **_data_settings(conditions), "seed": conditions.seed}


def budget_factor(conditions: Conditions) -> float:
    """Returns the factor that scales all numbers of steps."""
    if conditions.budget == "full":
        return 1.0
    steps = BUDGETS.get(conditions.budget) or _parse_steps(conditions.budget)
    published = _published("soc", conditions.family, after_moco=False) | read_profile(conditions.profile)["settings"]
    return float(steps) / float(published["iterations"])


def default_profile(data: str) -> str:
    """Returns the profile of a data set: the published network for the paper's data sets, a smaller one otherwise."""
    source = data.partition(":")[0]
    cifar = {"cifar10": "cifar", "cifar100": "cifar"}
    return {**cifar, "semi_aves": "paper", "semi_fungi": "paper", "semi_inat": "paper", "synthetic": "small"}.get(
        source, "lite0"
    )


@functools.cache
def read_shipped(name: str) -> dict[str, Any]:
    """Returns the content of a file in ``config/experiments``, such as ``recipes.yaml``."""
    return dict(yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))


def recipe_names() -> list[str]:
    """Returns the recipes of a single run."""
    return list(read_shipped("recipes.yaml")["recipes"])


def profile_names() -> list[str]:
    """Returns the names of the profiles, see ``config/experiments/profiles.yaml``."""
    return list(read_shipped("profiles.yaml"))


def read_profile(name: str) -> dict[str, Any]:
    """Returns a profile: network, image size, and changes of the published settings."""
    profiles = read_shipped("profiles.yaml")
    if name not in profiles:
        raise UserError(f"Unknown profile '{name}'. Valid ones: {', '.join(profiles)}.")
    return dict(profiles[name])


def _published(recipe: str, family: str, after_moco: bool) -> dict[str, Any]:
    published = read_shipped("recipes.yaml")
    entry = published["recipes"][recipe]
    start = entry[family]
    if after_moco:
        start = entry.get(f"moco_{family}", start)
    return {**published["families"][entry["family"]], **entry["settings"], **start}


def _fit_to_profile(settings: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    fitted = dict(settings)
    for key, factor in profile.get("factors", {}).items():
        if key in fitted:
            is_integer = isinstance(fitted[key], int)
            fitted[key] = max(SMALLEST_BATCH, round(fitted[key] * factor)) if is_integer else fitted[key] * factor
    for key, largest in profile.get("at_most", {}).items():
        if key in fitted:
            fitted[key] = min(fitted[key], largest)
    return fitted


def _count_steps(settings: dict[str, Any], conditions: Conditions) -> dict[str, Any]:
    """Replaces passes over the unlabeled images by steps. Incomplete batches are dropped."""
    if "passes" not in settings:
        return settings
    counted = {key: value for key, value in settings.items() if key != "passes"}
    images = count_unlabeled(conditions)
    steps_per_pass = max(1, images // (settings["batch_size"] * settings["mu"]))
    return {**counted, "iterations": settings["passes"] * steps_per_pass}


def _scale_steps(settings: dict[str, Any], factor: float) -> dict[str, Any]:
    if factor < 1:  # the published interval would leave one or two evaluations
        settings = {key: value for key, value in settings.items() if key != "evaluate_every"}
    steps = ("iterations", "horizon")
    return {key: max(1, round(value * factor)) if key in steps else value for key, value in settings.items()}


def _scale_average(settings: dict[str, Any]) -> dict[str, Any]:
    """Limits the averaged weights of any method to a tenth of the run. Runs of the published length do not change."""
    if not settings.get("ema"):
        return settings
    return {**settings, "ema": min(settings["ema"], ema_decay_for(settings["iterations"]))}


def count_unlabeled(conditions: Conditions) -> int:
    """Returns the number of unlabeled images."""
    return len(read_catalog(conditions).rows(Split.UNLABELED))


def read_catalog(conditions: Conditions) -> Catalog:
    """Returns the catalog of the data set. Repeated calls return the same catalog."""
    return open_dataset(conditions.data, _data_choices(conditions)).catalog


def open_dataset(data: str, values: Any) -> Dataset:
    """Opens a data set like ``Dataset.open``, but reads its catalog once for all runs of this process."""
    name, root = resolve(data)
    settings = build_settings(data, values) if isinstance(values, Mapping) else values
    return Dataset(lambda: _read_catalog(f"{name}:{root}" if root else name, settings))


_read_catalog = functools.cache(load_catalog)


def _data_choices(conditions: Conditions) -> dict[str, str]:
    """Returns the settings of the data source by name."""
    unlabeled = {"unlabeled": "inout"} if conditions.unlabeled == "inout" else {}
    return {**dict(conditions.data_settings), **unlabeled}


def _data_settings(conditions: Conditions) -> dict[str, Any]:
    # The preset of the synthetic data set has a supervised warm-up, which is not part of any recipe.
    settings: dict[str, Any] = {"data.source": conditions.data, "supervised_warmup": 0.0}
    return {**settings, **{f"data.{name}": value for name, value in _data_choices(conditions).items()}}


def _largest_divisor(number: int, wanted: int) -> int:
    """Returns the largest number of batch-norm groups, up to ``wanted``, that divides the batch size."""
    return max(divisor for divisor in range(1, wanted + 1) if number % divisor == 0)


def _parse_steps(budget: str) -> int:
    try:
        steps = int(budget)
    except ValueError:
        steps = 0
    if steps < 1:
        raise UserError(f"budget must be one of {', '.join(BUDGETS)}, or SoC's number of steps, not '{budget}'.")
    return steps


def check_weights_file(conditions: Conditions) -> None:
    """Raises ``UserError`` if the conditions need a weights file that is missing."""
    if conditions.init == "inat" and not conditions.weights:
        raise UserError("--init inat needs the weights of a network trained on iNaturalist: give --inat-weights FILE.")
    for option, file in (
        ("--inat-weights", conditions.weights),
        ("--moco-weights", conditions.moco_weights),
        ("--supervised-weights", conditions.supervised_weights),
    ):
        if file and not Path(file).is_file():
            raise UserError(f"The weights file {file} does not exist; check {option}.")
