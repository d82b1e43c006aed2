"""Recipes of several runs: MoCo before another method, a teacher before its student, rounds of a curriculum, votes.

A stage is one training run and has its own folder. Stages with the same name and conditions are the same run, so that
recipes in one folder share them. For example, MoCo is trained once for all methods that start from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semifine.data.csv_table import write_csv
from semifine.errors import UserError
from semifine.experiments.recipes import Conditions, compose, recipe_names
from semifine.files import atomic_file, damage_as_user_error
from semifine.runs.folder import RunFolder

ROUNDS = 5
"""Rounds of the curriculum after the first model. Each round uses an additional fifth of the unlabeled images."""

VOTERS = 3
"""Networks that vote on the labels of unlabeled images."""
VOTER_SEEDS = 1000
"""Difference between the seeds of consecutive voters."""

LABELS = "labels.csv"

FIGURES = {"cifar10-transitions": "soc"}
"""Recipes whose result is a figure, and the recipe of their run."""


@dataclass(frozen=True)
class Selection:
    """The most confident predictions of another stage, used as labels."""

    stage: str
    share: float


@dataclass(frozen=True)
class Stage:
    """One training run of a recipe."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    """Name of the stage with the starting weights."""
    teacher: str | None = None
    """Name of the stage with the teacher network."""
    labels: Selection | None = None
    voters: tuple[str, ...] = ()
    """Names of the stages whose predictions are votes on the labels of unlabeled images."""

    @property
    def needs(self) -> list[str]:
        """Names of the stages that must finish first."""
        labeled_by = self.labels.stage if self.labels else None
        return [name for name in (self.weights, self.teacher, labeled_by, *self.voters) if name]


def all_recipes() -> list[str]:
    """Returns the names of all recipes, including recipes of several stages."""
    single = recipe_names()
    return single + [f"moco+{name}" for name in single if name not in ("moco", "oracle", "supervised")]


def plan_stages(
    recipe: str, conditions: Conditions, overrides: Mapping[str, Any] | None = None, name: str | None = None
) -> list[Stage]:
    """Returns the stages of a recipe in order.

    Args:
        recipe: One of :func:`all_recipes`.
        conditions: Data set, starting weights, profile, budget and seed.
        overrides: Settings of the last stage, which is the result of the recipe.
        name: Name of the last stage; by default the name of the method.

    Example:
        >>> conditions = Conditions("synthetic", profile="small", budget="tiny")
        >>> [stage.name for stage in plan_stages("self_training", conditions)]
        ['supervised', 'self_training']
    """
    if recipe in FIGURES:
        recipe, name = FIGURES[recipe], name or recipe
    if recipe not in all_recipes():
        raise UserError(f"Unknown recipe '{recipe}'. Valid ones: {', '.join([*all_recipes(), *FIGURES])}.")
    *before, last = _plan(recipe, conditions)
    settings = {**last.settings, **(overrides or {})}
    return [*before, replace(last, name=name or last.name, settings=settings)]


def _plan(recipe: str, conditions: Conditions) -> list[Stage]:
    first, _, second = recipe.partition("+")
    if recipe == "moco":
        return [*_pretraining(conditions), _after_moco("supervised", conditions)]
    if recipe == "self_training" and conditions.supervised_weights:
        student = _stage("self_training", conditions)
        return [replace(student, settings={**student.settings, "method.teacher": conditions.supervised_weights})]
    if recipe == "self_training":
        return [_stage("supervised", conditions), _stage("self_training", conditions, teacher="supervised")]
    if recipe == "curriculum":
        return [_stage("supervised", conditions), *_rounds(conditions, "supervised", None)]
    if recipe == "vote":
        return _vote(_stage("supervised", conditions), _stage("vote", conditions))
    if not second:
        return [_stage(first, conditions)]
    start = _pretraining(conditions)
    fine_tuned = _after_moco("supervised", conditions)
    if second == "self_training":
        return [*start, fine_tuned, _after_moco("self_training", conditions, teacher=fine_tuned.name)]
    if second == "curriculum":
        return [*start, fine_tuned, *_rounds(conditions, fine_tuned.name, "moco")]
    if second == "vote":
        return [*start, *_vote(fine_tuned, _after_moco("vote", conditions))]
    return [*start, _after_moco(second, conditions)]


def _vote(voter: Stage, last: Stage) -> list[Stage]:
    """Returns the voters, which differ in their seeds, and the network that learns from their votes."""
    voters = [voter]
    for number in range(2, VOTERS + 1):
        seed = voter.settings["seed"] + (number - 1) * VOTER_SEEDS
        voters.append(replace(voter, name=f"{voter.name}-voter-{number}", settings={**voter.settings, "seed": seed}))
    return [*voters, replace(last, voters=tuple(stage.name for stage in voters))]


def _pretraining(conditions: Conditions) -> list[Stage]:
    """Returns the stage MoCo, or nothing if a file has its network."""
    return [] if conditions.moco_weights else [_stage("moco", conditions)]


def _stage(recipe: str, conditions: Conditions, teacher: str | None = None) -> Stage:
    return Stage(recipe, {**compose(recipe, conditions), **_start(conditions)}, teacher=teacher)


def _after_moco(recipe: str, conditions: Conditions, teacher: str | None = None) -> Stage:
    settings = {**compose(recipe, conditions, after_moco=True), **_moco_file(conditions)}
    return Stage(f"moco+{recipe}", settings, weights=_moco_stage(conditions), teacher=teacher)


def _moco_stage(conditions: Conditions) -> str | None:
    return None if conditions.moco_weights else "moco"


def _moco_file(conditions: Conditions) -> dict[str, Any]:
    return {"weights": conditions.moco_weights, "weights_head": "fresh"} if conditions.moco_weights else {}


def _rounds(conditions: Conditions, first_model: str, start: str | None) -> list[Stage]:
    """Returns the rounds. Each round uses labels of the previous model and starts from the initial weights."""
    settings = compose("curriculum", conditions, after_moco=start is not None)
    settings |= _moco_file(conditions) if start else _start(conditions)
    prefix = f"{start}+" if start else ""
    stages: list[Stage] = []
    for number in range(1, ROUNDS + 1):
        labeled_by = stages[-1].name if stages else first_model
        labels = Selection(labeled_by, number / ROUNDS)
        stages.append(Stage(f"{prefix}curriculum-{number}", settings, start and _moco_stage(conditions), labels=labels))
    return stages


def _start(conditions: Conditions) -> dict[str, Any]:
    """Returns the settings of the starting weights for a stage that does not continue another stage."""
    if conditions.init == "imagenet" and not conditions.weights:
        return {"pretrained": True}
    return {"weights": conditions.weights, "weights_head": "fresh"} if conditions.weights else {}


def stage_settings(stage: Stage, folder: Path) -> dict[str, Any]:
    """Returns the settings of a stage with the paths of the stages that it needs, and writes its labels.

    Args:
        stage: The stage.
        folder: Parent folder of all stages.
    """
    settings = dict(stage.settings)
    if stage.weights:
        settings |= {"weights": str(folder / stage.weights), "weights_head": "fresh"}
    if stage.teacher:
        settings["method.teacher"] = str(folder / stage.teacher)
    if stage.voters:
        settings["method.voters"] = [str(folder / voter) for voter in stage.voters]
    if stage.labels:
        file = folder / f"{stage.name}-{LABELS}"
        write_confident_labels(folder / stage.labels.stage, stage.labels.share, file)
        settings["labels"] = str(file)
    return settings


def write_confident_labels(run: Path, share: float, file: Path) -> None:
    """Writes the most confident predictions of a run on unlabeled images as a CSV file with labels.

    Args:
        run: Folder of a finished run.
        share: Fraction of the unlabeled images. Images of equal confidence keep their order.
        file: The CSV file.
    """
    # Slow, and planning stages does not need them.
    import numpy as np
    import pyarrow.parquet as pq

    folder = RunFolder.open(run)
    with damage_as_user_error(folder.samples):
        table = pq.read_table(folder.samples, columns=["path", "prediction", "confidence"])
    names = folder.read_class_names()
    kept = np.argsort(-table["confidence"].to_numpy(), kind="stable")[: round(table.num_rows * share)]
    paths, predictions = table["path"].to_pylist(), table["prediction"].to_numpy()
    with atomic_file(file) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        rows = ((paths[row], names[predictions[row]]) for row in kept)
        write_csv(stream, [("path", "label"), *rows], line_end="\r\n")
