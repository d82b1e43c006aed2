"""An existing run is used for a stage only if its settings match."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from semifine.config import resolve, write_settings
from semifine.data.sources import all_sources
from semifine.errors import UserError
from semifine.experiments.recipes import Conditions
from semifine.experiments.scheduler import Job, State, check_same_settings, mark_finished
from semifine.experiments.stages import LABELS, Stage, plan_stages
from tests.conftest import ROOT

SMALL = Conditions("synthetic", profile="small", budget="tiny")


def write_run(stage: Stage, column: Path, **changed: Any) -> Path:
    """Writes the settings of a finished stage, with some of them changed."""
    folder = column / stage.name
    folder.mkdir(parents=True, exist_ok=True)
    named = {"weights": stage.weights, "method.teacher": stage.teacher}
    places = {key: str(column / name) for key, name in named.items() if name}
    heads = {"weights_head": "fresh"} if stage.weights else {}
    voters = {"method.voters": [str(column / name) for name in stage.voters]} if stage.voters else {}
    write_settings(resolve([{**stage.settings, **places, **heads, **voters, **changed}]), folder / "settings.yaml")
    return folder / "settings.yaml"


def edit(file: Path, **values: Any) -> None:
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **values}))


def test_run_with_other_runtime_settings_matches(tmp_path: Path) -> None:
    (stage,) = plan_stages("soc", SMALL)
    write_run(stage, tmp_path, device="cpu", compile="off", evaluate_every=7)
    job = Job(stage, tmp_path)
    mark_finished([job])
    assert job.state is State.WAITING, "it has no result yet"
    job.folder.result.write_text("{}")
    mark_finished([job])
    assert job.state is State.DONE


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(SMALL, budget="80"), "iterations = 400, but this command needs 80"),
        (replace(SMALL, seed=3), "seed = 0, but this command needs 3"),
        (replace(SMALL, profile="lite0"), "batch_size = 16, but this command needs 32"),
    ],
)
def test_run_of_other_conditions_is_an_error(other: Conditions, message: str, tmp_path: Path) -> None:
    (stage,) = plan_stages("soc", SMALL)
    file = write_run(stage, tmp_path)
    before = file.read_bytes()
    (changed,) = plan_stages("soc", other)
    with pytest.raises(UserError, match=message) as error:
        mark_finished([Job(changed, tmp_path)])
    assert str(error.value).startswith(f"{tmp_path / 'soc'} contains a run with ")
    assert "choose another --out" in str(error.value)
    assert file.read_bytes() == before


def test_error_names_the_changed_method_setting(tmp_path: Path) -> None:
    (stage,) = plan_stages("soc", SMALL)
    write_run(stage, tmp_path)
    (changed,) = plan_stages("soc", SMALL, {"method.alpha": 2.0})
    with pytest.raises(UserError, match=r"method\.alpha = 5\.0, but this command needs 2\.0"):
        check_same_settings(changed, tmp_path)


def test_published_data_sets_may_move_and_own_photos_may_not(tmp_path: Path) -> None:
    for source, problem in (
        ("semi_cub", None),
        ("folder", r"data\.source = folder:PATH, but this command needs folder:"),
    ):
        for name in ("a", "b"):
            (tmp_path / "data" / "labeled" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "data" / "labeled" / name / f"{name}.png")
        (stage,) = plan_stages("soc", replace(SMALL, data=f"{source}:{tmp_path / 'data'}"))
        file = write_run(stage, tmp_path / source)
        check_same_settings(stage, tmp_path / source)
        edit(file, data={**yaml.safe_load(file.read_text())["data"], "source": f"{source}:PATH"})
        if problem is None:
            check_same_settings(stage, tmp_path / source)
        else:
            with pytest.raises(UserError, match=problem):
                check_same_settings(stage, tmp_path / source)


def test_photos_of_many_finished_runs_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / "labeled" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "labeled" / name / f"{name}.png")
    source, opened = all_sources()["folder"], []

    def load(*args: Any) -> Any:
        opened.append(args)
        return source.load(*args)

    monkeypatch.setitem(all_sources(), "folder", replace(source, load=load))
    jobs = []
    for recipe in ("supervised", "fixmatch", "soc"):
        (stage,) = plan_stages(recipe, replace(SMALL, data=f"folder:{tmp_path / 'photos'}"))
        write_run(stage, tmp_path)
        jobs.append(Job(stage, tmp_path))
    mark_finished(jobs)
    mark_finished(jobs)
    assert len(opened) == 1


def test_output_folder_may_move(tmp_path: Path) -> None:
    for recipe in ("moco+soc", "self_training", "curriculum"):
        for stage in plan_stages(recipe, SMALL):
            labels = {"labels": str(tmp_path / "old" / f"{stage.name}-{LABELS}")} if stage.labels else {}
            write_run(stage, tmp_path / "old", **labels)
    (tmp_path / "old").rename(tmp_path / "new")
    for recipe in ("moco+soc", "self_training", "curriculum"):
        for stage in plan_stages(recipe, SMALL):
            check_same_settings(stage, tmp_path / "new")


def test_other_weights_file_is_an_error(tmp_path: Path) -> None:
    inat = Conditions("synthetic", "inat", profile="paper", weights="/here/inat_resnet50.pth")
    (stage,) = plan_stages("soc", inat)
    write_run(stage, tmp_path)
    check_same_settings(plan_stages("soc", replace(inat, weights="/there/inat_resnet50.pth"))[0], tmp_path)
    with pytest.raises(UserError, match=r"weights = /here/inat_resnet50.pth, but this command needs /here/other.pth"):
        check_same_settings(plan_stages("soc", replace(inat, weights="/here/other.pth"))[0], tmp_path)


def test_voters_may_move_with_their_folder(tmp_path: Path) -> None:
    *_, last = plan_stages("vote", SMALL)
    write_run(last, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    check_same_settings(last, tmp_path / "after")
    with pytest.raises(UserError, match=r"method\.voters"):
        check_same_settings(replace(last, voters=last.voters[:2]), tmp_path / "after")


def test_result_without_settings_is_an_error(tmp_path: Path) -> None:
    (stage,) = plan_stages("soc", SMALL)
    job = Job(stage, tmp_path)
    job.folder.path.mkdir()
    job.folder.result.write_text("{}")
    with pytest.raises(UserError, match="Cannot read the settings file"):
        mark_finished([job])


def test_committed_table_matches_the_recipes(tmp_path: Path) -> None:
    """Excludes MoCo, whose number of steps depends on images that are not part of the repository.

    The table is older than the rule that short runs average a tenth of their steps, so its runs have the published one.
    """
    table = ROOT / "benchmarks" / "results" / "semi-cub-table1"
    conditions = Conditions(f"semi_cub:{tmp_path}", "imagenet", profile="lite0", budget="3000")
    recipes = ("oracle", "pseudo_label", "curriculum", "fixmatch", "flexmatch", "self_training", "soc")
    checked = 0

    def with_published_average(stage: Stage) -> Stage:
        return replace(stage, settings={**stage.settings, "ema": 0.999 if stage.settings["ema"] else 0.0})

    for column in sorted(table.glob("imagenet-in/seed-*")):
        seed = int(column.name.removeprefix("seed-"))
        stages = {
            stage.name: with_published_average(stage)
            for recipe in recipes
            for stage in plan_stages(recipe, replace(conditions, seed=seed))
        }
        for run in column.iterdir():
            if run.name in stages:
                check_same_settings(stages[run.name], column)
                checked += 1
    assert checked >= 35
