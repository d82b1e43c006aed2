"""Recipes of several runs: their order, what they share, and what they hand on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semifine.data.catalog import Split
from semifine.engine.dataset import open_dataset
from semifine.engine.display import Display
from semifine.errors import UserError
from semifine.experiments.recipes import Conditions
from semifine.experiments.stages import ROUNDS, all_recipes, plan, settings_in, write_confident_labels
from tests.conftest import tiny_settings

SCRATCH = Conditions("synthetic", "scratch", profile="small", budget="tiny")
IMAGENET = Conditions("synthetic", "imagenet", profile="lite0", budget="tiny")


def names(recipe: str) -> list[str]:
    return [stage.name for stage in plan(recipe, SCRATCH)]


def test_stages_come_in_the_order_of_their_needs() -> None:
    for recipe in all_recipes():
        seen: set[str] = set()
        for stage in plan(recipe, SCRATCH):
            assert set(stage.needs) <= seen, (recipe, stage.name)
            seen.add(stage.name)


def test_moco_is_fine_tuned_or_goes_on_with_another_method() -> None:
    assert names("moco") == ["moco", "moco+supervised"]
    assert names("moco+soc") == ["moco", "moco+soc"]
    assert plan("moco+soc", SCRATCH)[-1].weights == "moco"


def test_a_student_starts_as_the_regime_says_and_learns_from_the_supervised_network() -> None:
    *_, student = plan("self_training", IMAGENET)
    assert (student.teacher, student.weights) == ("supervised", None)
    assert student.settings["pretrained"] is True
    *_, student = plan("moco+self_training", IMAGENET)
    assert (student.teacher, student.weights) == ("moco+supervised", "moco")


def test_curriculum_rounds_take_growing_shares_and_begin_anew() -> None:
    first, *rounds = plan("curriculum", IMAGENET)
    assert first.name == "supervised"
    assert [stage.labels.share for stage in rounds if stage.labels] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert [stage.labels.stage for stage in rounds if stage.labels] == ["supervised", *names("curriculum")[1:-1]]
    assert len(rounds) == ROUNDS
    assert all(stage.settings["pretrained"] is True and stage.weights is None for stage in rounds)


def test_a_file_of_weights_is_the_start_of_the_first_stage_only(tmp_path: Path) -> None:
    conditions = Conditions("synthetic", "inat", profile="paper", weights="/weights.pth")
    moco, soc = plan("moco+soc", conditions)
    assert moco.settings["weights"] == "/weights.pth"
    assert settings_in(soc, tmp_path)["weights"] == str(tmp_path / "moco")


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(UserError, match=r"Unknown recipe 'moco\+oracle'"):
        plan("moco+oracle", SCRATCH)


def write_predictions(run: Path, confidence: list[float], paths: list[str]) -> None:
    run.mkdir()
    (run / "settings.yaml").write_text("{}")
    (run / "classes.json").write_text(json.dumps({"names": ["a", "b"]}))
    prediction = [number % 2 for number in range(len(paths))]
    table = pa.table({"path": paths, "prediction": prediction, "confidence": confidence})
    pq.write_table(table, run / "samples.parquet")


def test_the_most_confident_predictions_become_labels(tmp_path: Path) -> None:
    write_predictions(tmp_path / "run", [0.3, 0.9, 0.9, 0.1, 0.5], ["p0", "p1", "p2", "p3", "p4"])
    for share, expected in ((0.4, ["p1", "p2"]), (0.6, ["p1", "p2", "p4"]), (1.0, ["p1", "p2", "p4", "p0", "p3"])):
        write_confident_labels(tmp_path / "run", share, tmp_path / "labels.csv")
        with (tmp_path / "labels.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert [line["path"] for line in lines] == expected
        assert {line["path"]: line["label"] for line in lines}["p1"] == "b"


def test_labels_join_the_labelled_images_and_the_unlabelled_ones_stay(tmp_path: Path) -> None:
    plain = open_dataset(tiny_settings(), Display(quiet=True))
    unlabelled = plain.catalog.rows(Split.UNLABELLED)
    chosen = unlabelled[[5, 0]]
    name = plain.catalog.class_names[3]
    lines = "".join(f"{plain.catalog.paths[row]},{name}\n" for row in chosen)
    (tmp_path / "labels.csv").write_text("path,label\n" + lines)
    more = open_dataset(tiny_settings(labels=str(tmp_path / "labels.csv")), Display(quiet=True))
    np.testing.assert_array_equal(more.catalog.rows(Split.UNLABELLED), unlabelled)
    added = more.catalog.rows(Split.LABELLED)[-2:]
    assert more.catalog.label[added].tolist() == [3, 3]
    for row, original in zip(added, chosen, strict=True):
        assert (more.store.image(int(row)) == plain.store.image(int(original))).all()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,label\nnowhere.jpg,x\n", "no unlabelled image"),
        ("file,class\na,b\n", "need the columns path and label"),
    ],
)
def test_wrong_labels_are_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=problem):
        open_dataset(tiny_settings(labels=str(tmp_path / "labels.csv")), Display(quiet=True))
    with pytest.raises(UserError, match="Cannot read the labels"):
        open_dataset(tiny_settings(labels=str(tmp_path / "missing.csv")), Display(quiet=True))
