"""Recipes of several runs: order, shared stages, starting weights and labels."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from semifine.config import read_settings_file, resolve
from semifine.data.catalog import Split
from semifine.errors import UserError
from semifine.experiments.recipes import Conditions
from semifine.experiments.stages import ROUNDS, Stage, all_recipes, plan_stages, stage_settings, write_confident_labels
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.init_weights import find_weights
from semifine.training.progress import Display
from semifine.training.sample_stats import read_votes
from tests.conftest import open_dataset, tiny_settings, write_voter

QUIET = Display(quiet=True)
TINY_INOUT = {"data__unlabeled": "inout", "iterations": 3, "ema": 0.0}

SCRATCH = Conditions("synthetic", "scratch", profile="small", budget="tiny")
IMAGENET = Conditions("synthetic", "imagenet", profile="lite0", budget="tiny")


def names(recipe: str) -> list[str]:
    return [stage.name for stage in plan_stages(recipe, SCRATCH)]


def test_stages_come_in_the_order_of_their_needs() -> None:
    for recipe in all_recipes():
        seen: set[str] = set()
        for stage in plan_stages(recipe, SCRATCH):
            assert set(stage.needs) <= seen, (recipe, stage.name)
            seen.add(stage.name)


def test_moco_is_followed_by_supervised_or_another_method() -> None:
    assert names("moco") == ["moco", "moco+supervised"]
    assert names("moco+soc") == ["moco", "moco+soc"]
    assert plan_stages("moco+soc", SCRATCH)[-1].weights == "moco"


def test_student_has_the_starting_weights_and_the_supervised_teacher() -> None:
    *_, student = plan_stages("self_training", IMAGENET)
    assert (student.teacher, student.weights) == ("supervised", None)
    assert student.settings["pretrained"] is True
    *_, student = plan_stages("moco+self_training", IMAGENET)
    assert (student.teacher, student.weights) == ("moco+supervised", "moco")


def test_curriculum_rounds_use_growing_shares_and_the_initial_weights() -> None:
    first, *rounds = plan_stages("curriculum", IMAGENET)
    assert first.name == "supervised"
    assert [stage.labels.share for stage in rounds if stage.labels] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert [stage.labels.stage for stage in rounds if stage.labels] == ["supervised", *names("curriculum")[1:-1]]
    assert len(rounds) == ROUNDS
    assert all(stage.settings["pretrained"] is True and stage.weights is None for stage in rounds)


def test_curriculum_of_the_official_code_is_the_last_round_without_new_labels() -> None:
    (only,) = plan_stages("curriculum-official-code", IMAGENET)
    assert (only.labels, only.weights, only.teacher) == (None, None, None)
    assert only.settings == plan_stages("curriculum", IMAGENET)[-1].settings
    assert [stage.name for stage in plan_stages("moco+curriculum-official-code", IMAGENET)][:-1] == ["moco"]


def test_voters_are_supervised_networks_with_different_seeds(tmp_path: Path) -> None:
    *voters, last = plan_stages("vote", replace(IMAGENET, seed=2))
    assert [stage.name for stage in voters] == ["supervised", "supervised-voter-2", "supervised-voter-3"]
    assert [stage.settings["seed"] for stage in voters] == [2, 1002, 2002]
    assert {stage.settings["method.name"] for stage in voters} == {"supervised"}
    assert last.needs == [stage.name for stage in voters]
    assert last.settings["pretrained"] is True
    settings = resolve([stage_settings(last, tmp_path)]).method_settings
    assert settings.voters == tuple(str(tmp_path / stage.name) for stage in voters)
    start, *voters, last = plan_stages("moco+vote", SCRATCH)
    assert {stage.weights for stage in (*voters, last)} == {start.name}


def test_votes_are_the_predictions_of_the_voters(tmp_path: Path) -> None:
    catalog = open_dataset(tiny_settings()).catalog
    paths = [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)]
    write_voter(tmp_path / "all", catalog.class_names, paths[::-1], [index % 6 for index in range(len(paths))])
    write_voter(tmp_path / "two", catalog.class_names, [paths[3], "other.jpg", paths[1]], [5, 4, 2])
    votes = read_votes([str(tmp_path / "all"), str(tmp_path / "two")], catalog)
    assert votes is not None
    assert votes[:, 0].tolist() == [index % 6 for index in range(len(paths))][::-1]
    assert votes[:5, 1].tolist() == [-1, 2, -1, 5, -1]
    assert read_votes([], catalog) is None


@pytest.mark.parametrize(
    ("names", "path", "problem"), [(["a", "b"], None, "other classes"), (None, "other.jpg", "no predictions of these")]
)
def test_voters_for_other_data_are_errors(
    names: list[str] | None, path: str | None, problem: str, tmp_path: Path
) -> None:
    catalog = open_dataset(tiny_settings()).catalog
    paths = [path or str(catalog.paths[catalog.rows(Split.UNLABELED)[0]])]
    write_voter(tmp_path / "voter", names or catalog.class_names, paths, [0])
    with pytest.raises(UserError, match=problem):
        read_votes([str(tmp_path / "voter")], catalog)


def test_a_network_learns_from_votes_of_trained_networks(tmp_path: Path) -> None:
    *voters, last = plan_stages("vote", SCRATCH)
    for stage in voters:
        run_stage(stage, tmp_path, tmp_path / stage.name, seed=stage.settings["seed"])
    handed_on = stage_settings(last, tmp_path)["method.voters"]
    result = fit(tiny_settings("vote", **TINY_INOUT, method__voters=handed_on), tmp_path / "vote", display=QUIET)
    assert result["method"] == "vote"


def test_weights_file_applies_to_the_first_stage_only(tmp_path: Path) -> None:
    conditions = Conditions("synthetic", "inat", profile="paper", weights="/weights.pth")
    moco, soc = plan_stages("moco+soc", conditions)
    assert moco.settings["weights"] == "/weights.pth"
    assert stage_settings(soc, tmp_path)["weights"] == str(tmp_path / "moco")


def test_a_file_replaces_moco() -> None:
    conditions = replace(SCRATCH, moco_weights="/moco.pth")
    trained = plan_stages("moco+soc", SCRATCH)[-1]
    (soc,) = plan_stages("moco+soc", conditions)
    assert (soc.name, soc.needs) == ("moco+soc", [])
    assert soc.settings == {**trained.settings, "weights": "/moco.pth", "weights_head": "fresh"}
    for recipe in all_recipes():
        stages = plan_stages(recipe, conditions)
        from_moco = [stage for stage in stages if stage.name.startswith("moco")]
        assert "moco" not in {stage.name for stage in stages}
        assert all(stage.settings["weights"] == "/moco.pth" and stage.weights is None for stage in from_moco)
        resolve([stages[-1].settings | ({"method.teacher": "t"} if stages[-1].teacher else {})])


def test_a_file_replaces_the_supervised_teacher(tmp_path: Path) -> None:
    (student,) = plan_stages("self_training", replace(IMAGENET, supervised_weights="/supervised.pth"))
    assert stage_settings(student, tmp_path)["method.teacher"] == "/supervised.pth"
    assert student.settings["pretrained"] is True, "the student starts from the initial weights"


def test_unknown_recipe_is_an_error() -> None:
    with pytest.raises(UserError, match=r"Unknown recipe 'moco\+oracle'"):
        plan_stages("moco+oracle", SCRATCH)


def write_predictions(run: Path, confidence: list[float], paths: list[str]) -> None:
    run.mkdir()
    (run / "settings.yaml").write_text("{}")
    (run / "classes.json").write_text(json.dumps({"names": ["a", "b"]}))
    prediction = [number % 2 for number in range(len(paths))]
    table = pa.table({"path": paths, "prediction": prediction, "confidence": confidence})
    pq.write_table(table, run / "samples.parquet")


def chosen(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_most_confident_predictions_become_labels(tmp_path: Path) -> None:
    write_predictions(tmp_path / "run", [0.3, 0.9, 0.9, 0.1, 0.5], ["p0", "p1", "p2", "p3", "p4"])
    for share, expected in ((0.4, ["p1", "p2"]), (0.6, ["p1", "p2", "p4"]), (1.0, ["p1", "p2", "p4", "p0", "p3"])):
        write_confident_labels(tmp_path / "run", share, tmp_path / "labels.csv")
        lines = chosen(tmp_path / "labels.csv")
        assert [line["path"] for line in lines] == expected
        assert {line["path"]: line["label"] for line in lines}["p1"] == "b"


def test_sizes_per_round(tmp_path: Path) -> None:
    write_predictions(tmp_path / "supervised", list(np.linspace(0.9, 0.1, 13)), [f"p{number}" for number in range(13)])
    sizes = []
    for stage in plan_stages("curriculum", SCRATCH)[1:]:
        share = stage.labels.share if stage.labels else 0
        write_confident_labels(tmp_path / "supervised", share, tmp_path / "labels.csv")
        sizes.append(len(chosen(tmp_path / "labels.csv")))
    assert sizes == [round(13 * number / 5) for number in range(1, 6)]


def test_selection_is_deterministic(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    confidence = random.integers(1, 5, 200) / 5  # many ties
    write_predictions(tmp_path / "run", confidence.tolist(), [f"p{number}" for number in range(200)])
    for name in ("first.csv", "second.csv"):
        write_confident_labels(tmp_path / "run", 0.4, tmp_path / name)
    assert (tmp_path / "first.csv").read_bytes() == (tmp_path / "second.csv").read_bytes()
    expected = sorted(range(200), key=lambda number: (-confidence[number], number))[:80]
    assert [line["path"] for line in chosen(tmp_path / "first.csv")] == [f"p{number}" for number in expected]


def run_stage(stage: Stage, folder: Path, out: Path, **more: object) -> None:
    """Trains a stage for a few steps with labels and weights of the previous stages."""
    settings = stage_settings(stage, folder)
    handed_on = {key: settings[key] for key in ("labels", "weights", "weights_head") if key in settings}
    fit(tiny_settings("supervised", **TINY_INOUT, **handed_on, **more), out, display=QUIET)


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all stages finished."""
    folder = tmp_path_factory.mktemp("curriculum")
    for stage in plan_stages("curriculum", SCRATCH):
        run_stage(stage, folder, folder / stage.name)
    return folder


def parameters(run: Path) -> dict[str, torch.Tensor]:
    """Returns the parameters of a run without batch-norm statistics."""
    tensors = load_file(find_weights(run))
    return {name: value for name, value in tensors.items() if "running_" not in name and "num_batches" not in name}


def rounds_in(folder: Path) -> list[Path]:
    return [folder / stage.name for stage in plan_stages("curriculum", SCRATCH)[1:]]


def test_weights_at_round_start_equal_those_of_the_first_model(curriculum: Path, tmp_path: Path) -> None:
    for stage in plan_stages("curriculum", SCRATCH):
        run_stage(stage, curriculum, tmp_path / stage.name, lr=0.0)  # ends with the weights that it started from
    first, *rounds = (parameters(tmp_path / stage.name) for stage in plan_stages("curriculum", SCRATCH))
    for start in rounds:
        torch.testing.assert_close(start, first, rtol=0, atol=0)
    assert all(stage.weights == "moco" for stage in plan_stages("moco+curriculum", SCRATCH)[1:])


def test_labeled_data_is_present_in_every_round(curriculum: Path) -> None:
    images = RunFolder(curriculum / "supervised").read_result()["images"]
    for number, run in enumerate(rounds_in(curriculum), start=1):
        now = RunFolder(run).read_result()["images"]
        assert now["labeled"] == images["labeled"] + round(images["unlabeled"] * number / ROUNDS)
        assert now["unlabeled"] == images["unlabeled"], "they stay, so that all are scored for the next round"
        settings = resolve([read_settings_file(RunFolder(run).settings)])
        catalog = open_dataset(settings).catalog
        without = open_dataset(tiny_settings("supervised", **TINY_INOUT)).catalog
        first = catalog.rows(Split.LABELED)[: images["labeled"]]
        assert [catalog.paths[row] for row in first] == [without.paths[row] for row in without.rows(Split.LABELED)]


def test_images_of_other_classes_may_be_selected_and_their_share_is_logged(curriculum: Path) -> None:
    catalog = open_dataset(tiny_settings("supervised", **TINY_INOUT)).catalog
    unlabeled = catalog.rows(Split.UNLABELED)
    outside = {str(catalog.paths[row]) for row in unlabeled if catalog.truth[row] >= catalog.num_classes}
    for run in rounds_in(curriculum):
        paths = [line["path"] for line in chosen(curriculum / f"{run.name}-labels.csv")]
        share = sum(path in outside for path in paths) / len(paths)
        line = f"{share:.1%} of them for images of classes outside the label set"
        assert line in RunFolder(run).log.read_text(encoding="utf-8")
    assert share == pytest.approx(len(outside) / len(unlabeled)), "the last round takes all"


def test_share_0_equals_supervised(curriculum: Path, tmp_path: Path) -> None:
    write_confident_labels(curriculum / "supervised", 0, tmp_path / "labels.csv")
    assert chosen(tmp_path / "labels.csv") == []
    for name, labels in (("without", None), ("none", str(tmp_path / "labels.csv"))):
        fit(tiny_settings("supervised", labels=labels, **TINY_INOUT), tmp_path / name, display=QUIET)
    torch.testing.assert_close(parameters(tmp_path / "none"), parameters(tmp_path / "without"), rtol=0, atol=0)


def test_labels_join_the_labeled_images_and_the_unlabeled_ones_stay(tmp_path: Path) -> None:
    plain = open_dataset(tiny_settings())
    unlabeled = plain.catalog.rows(Split.UNLABELED)
    chosen = unlabeled[[5, 0]]
    name = plain.catalog.class_names[3]
    lines = "".join(f"{plain.catalog.paths[row]},{name}\n" for row in chosen)
    (tmp_path / "labels.csv").write_text("path,label\n" + lines)
    more = open_dataset(tiny_settings(labels=str(tmp_path / "labels.csv")))
    np.testing.assert_array_equal(more.catalog.rows(Split.UNLABELED), unlabeled)
    added = more.catalog.rows(Split.LABELED)[-2:]
    assert more.catalog.label[added].tolist() == [3, 3]
    for row, original in zip(added, chosen, strict=True):
        assert (more.store.image(int(row)) == plain.store.image(int(original))).all()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,label\nnowhere.jpg,x\n", "not an unlabeled image"),
        ("file,class\na,b\n", "a CSV file with the columns path and label"),
    ],
)
def test_wrong_labels_are_errors(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=problem):
        open_dataset(tiny_settings(labels=str(tmp_path / "labels.csv")))
    with pytest.raises(UserError, match="Cannot read the labels"):
        open_dataset(tiny_settings(labels=str(tmp_path / "missing.csv")))
