"""Recipes of several runs: MoCo and then another method, a teacher and its student, rounds of a curriculum.

A stage is one training run in a folder of its own. Stages of the same name and conditions are the same run, so that
recipes in one folder share them: MoCo is trained once for all the methods that start from it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semifine.errors import UserError
from semifine.experiments.recipes import Conditions, compose, recipe_names
from semifine.files import atomic_file, damage_as_user_error
from semifine.runs.folder import RunFolder

ROUNDS = 5
"""Rounds of the curriculum after the first model; each takes a fifth more of the unlabeled images."""

LABELS = "labels.csv"


@dataclass(frozen=True)
class Selection:
    """The most confident predictions of another stage, as labels."""

    stage: str
    share: float


@dataclass(frozen=True)
class Stage:
    """One run; ``weights`` and ``teacher`` name the stages that it starts from and learns from."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    teacher: str | None = None
    labels: Selection | None = None

    @property
    def needs(self) -> list[str]:
        """The stages that must be finished before."""
        labeled_by = self.labels.stage if self.labels else None
        return [name for name in (self.weights, self.teacher, labeled_by) if name]


def all_recipes() -> list[str]:
    """Every name that ``plan`` takes."""
    alone = recipe_names()
    return alone + [f"moco+{name}" for name in alone if name not in ("moco", "oracle", "supervised")]


def plan(
    recipe: str, conditions: Conditions, overrides: Mapping[str, Any] | None = None, name: str | None = None
) -> list[Stage]:
    """The stages of a recipe in order; the last one is the result, under ``name`` with the overrides."""
    if recipe not in all_recipes():
        raise UserError(f"Unknown recipe '{recipe}'. Valid ones: {', '.join(all_recipes())}.")
    *before, last = _plan(recipe, conditions)
    settings = {**last.settings, **(overrides or {})}
    return [*before, Stage(name or last.name, settings, last.weights, last.teacher, last.labels)]


def _plan(recipe: str, conditions: Conditions) -> list[Stage]:
    first, _, second = recipe.partition("+")
    if recipe == "moco":
        return [_pretraining(conditions), _after_moco("supervised", conditions)]
    if recipe == "self_training":
        return [_alone("supervised", conditions), _alone("self_training", conditions, teacher="supervised")]
    if recipe == "curriculum":
        return [_alone("supervised", conditions), *_rounds(conditions, "supervised", None)]
    if not second:
        return [_alone(first, conditions)]
    start = _pretraining(conditions)
    fine_tuned = _after_moco("supervised", conditions)
    if second == "self_training":
        return [start, fine_tuned, _after_moco("self_training", conditions, teacher=fine_tuned.name)]
    if second == "curriculum":
        return [start, fine_tuned, *_rounds(conditions, fine_tuned.name, start.name)]
    return [start, _after_moco(second, conditions)]


def _pretraining(conditions: Conditions) -> Stage:
    return _alone("moco", conditions)


def _alone(recipe: str, conditions: Conditions, teacher: str | None = None) -> Stage:
    return Stage(recipe, {**compose(recipe, conditions), **_start(conditions)}, teacher=teacher)


def _after_moco(recipe: str, conditions: Conditions, teacher: str | None = None) -> Stage:
    return Stage(f"moco+{recipe}", compose(recipe, conditions, after_moco=True), weights="moco", teacher=teacher)


def _rounds(conditions: Conditions, first_model: str, start: str | None) -> list[Stage]:
    """Each round labels by the model before it, and begins anew from the same start."""
    settings = compose("curriculum", conditions, after_moco=start is not None)
    settings |= {} if start else _start(conditions)
    prefix = f"{start}+" if start else ""
    stages: list[Stage] = []
    for number in range(1, ROUNDS + 1):
        labeled_by = stages[-1].name if stages else first_model
        labels = Selection(labeled_by, number / ROUNDS)
        stages.append(Stage(f"{prefix}curriculum-{number}", settings, weights=start, labels=labels))
    return stages


def _start(conditions: Conditions) -> dict[str, Any]:
    """Where a network begins that no earlier stage has trained."""
    if conditions.init == "imagenet" and not conditions.weights:
        return {"pretrained": True}
    return {"weights": conditions.weights, "weights_head": "fresh"} if conditions.weights else {}


def settings_in(stage: Stage, folder: Path) -> dict[str, Any]:
    """The stage's settings with the folders of the stages that it needs, which lie beside its own."""
    settings = dict(stage.settings)
    if stage.weights:
        settings |= {"weights": str(folder / stage.weights), "weights_head": "fresh"}
    if stage.teacher:
        settings["method.teacher"] = str(folder / stage.teacher)
    if stage.labels:
        file = folder / f"{stage.name}-{LABELS}"
        write_confident_labels(folder / stage.labels.stage, stage.labels.share, file)
        settings["labels"] = str(file)
    return settings


def write_confident_labels(run: Path, share: float, file: Path) -> None:
    """The most confident of a run's predictions on unlabeled images; equal confidences in the order of the images."""
    import numpy as np
    import pyarrow.parquet as pq

    folder = RunFolder.open(run)
    with damage_as_user_error(folder.samples):
        table = pq.read_table(folder.samples, columns=["path", "prediction", "confidence"])
    names = folder.read_class_names()
    kept = np.argsort(-table["confidence"].to_numpy(), kind="stable")[: round(table.num_rows * share)]
    paths, predictions = table["path"].to_pylist(), table["prediction"].to_numpy()
    with atomic_file(file) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label"])
        writer.writerows((paths[row], names[predictions[row]]) for row in kept)
