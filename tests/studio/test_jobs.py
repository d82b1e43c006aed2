"""Trainings that the page starts, and the label log of a run."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semifine.cli.main import main
from semifine.config import read_settings_file, resolve, write_settings
from semifine.data.label_log import Event, LabelLog
from semifine.errors import UserError
from semifine.runs.folder import RunFolder
from semifine.studio.jobs import (
    TrainingManager,
    TrainingOptions,
    _stopped_message,
    next_folder,
    read_progress,
    training_command,
)
from semifine.studio.queue import default_log
from semifine.studio.snapshot import ModelSnapshot


def finish(manager: TrainingManager) -> dict[str, object]:
    while manager.status()["state"] == "running":
        time.sleep(0.1)
    return manager.status()


def test_new_runs_are_beside_the_old_one(tmp_path: Path) -> None:
    assert next_folder(tmp_path / "birds") == tmp_path / "birds-studio-1"
    (tmp_path / "birds-studio-1").mkdir()
    (tmp_path / "birds-studio-2.log").touch()
    assert next_folder(tmp_path / "birds") == next_folder(tmp_path / "birds-studio-1") == tmp_path / "birds-studio-3"


@pytest.mark.parametrize(("from_weights", "share"), [(True, 0.0), (False, 0.6)])
def test_training_from_weights_has_no_supervised_warmup(tmp_path: Path, from_weights: bool, share: float) -> None:
    settings = resolve([{"supervised_warmup": 0.6}])
    write_settings(settings, RunFolder(tmp_path).settings)
    command = training_command(tmp_path, tmp_path / "new", tmp_path / "labels.db", TrainingOptions(from_weights))
    layers = [read_settings_file(RunFolder(tmp_path).settings)]
    if "--supervised-warmup" in command:
        layers.append({"supervised_warmup": command[command.index("--supervised-warmup") + 1]})
    assert resolve(layers).train.supervised_warmup == share


def test_metrics_are_cached_until_the_file_changes(
    studio_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = RunFolder(studio_run), RunFolder(tmp_path)
    for step in (10, 20):
        with new.metrics.open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps({"kind": "train", "step": step}) + "\n")
        first = read_progress(old, new, finished=False)
        assert first["step"] == step
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "read_metrics", lambda _: pytest.fail("read again"))
            assert read_progress(old, new, finished=False) == first


def test_metrics_are_logged_often(tmp_path: Path) -> None:
    command = training_command(tmp_path, tmp_path / "new", tmp_path / "labels.db", TrainingOptions())
    assert int(command[command.index("--log-every") + 1]) <= 10


def test_a_failed_training_has_a_message(studio_run: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.db").write_text("path,label\nnowhere.jpg,Dodo\n")
    manager = TrainingManager(studio_run, tmp_path / "wrong.db")
    assert manager.status()["state"] == "none"
    manager.start(studio_run, TrainingOptions())
    with pytest.raises(UserError, match="already running"):
        manager.start(studio_run, TrainingOptions())
    status = finish(manager)
    assert status["state"] == "failed"
    assert "nowhere.jpg" in str(status["message"])
    assert manager.finished_run is None


def test_a_new_run_keeps_its_label_log(
    studio_run: Path, snapshot: ModelSnapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert default_log(studio_run) == studio_run.with_name("birds.studio.db")
    log = LabelLog(tmp_path / "mine.db")
    path, name = str(snapshot.catalog.paths[int(snapshot.rows[0])]), snapshot.class_names[1]
    log.append([Event("Ada", path, "label", name)])
    manager = TrainingManager(studio_run, log.file)
    new = manager.start(studio_run, TrainingOptions(iterations=3))
    assert finish(manager)["state"] == "finished"
    assert json.loads((new / "result.json").read_text())["images"]["labeled"] == 19
    assert json.loads((new / "weights.json").read_text())["matched"], "it started from the weights of the old run"
    assert default_log(new) == log.file

    assert main(["studio", str(new), "--export", str(tmp_path / "labels.csv")]) == 0
    assert (tmp_path / "labels.csv").read_text() == f"path,label\n{path},{name}\n"
    assert main(["studio", str(new), "--export", str(tmp_path / "labels.csv")]) == 2
    assert "exists already" in capsys.readouterr().err


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_restarted_studio_finds_its_running_training(
    studio_run: Path, snapshot: ModelSnapshot, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(studio_run, tmp_path / "my birds", symlinks=True))
    sibling = Path(shutil.copytree(studio_run, tmp_path / "my birds-studio-7", symlinks=True))
    log = LabelLog(tmp_path / "my birds.studio.db")
    log.append([Event("Ada", str(snapshot.catalog.paths[int(snapshot.rows[0])]), "label", snapshot.class_names[1])])
    first = TrainingManager(run, log.file)
    later = TrainingManager(run, log.file)  # the studio after a restart
    assert later.status()["state"] == "none"
    new = first.start(run, TrainingOptions(iterations=100_000))
    try:
        wait_for(lambda: later.status().get("step"))
        status = later.status()
        assert (status["state"], status["run"], status["iterations"]) == ("running", new.name, 100_000)
        assert status["before"] == first.status()["before"]
        with pytest.raises(UserError, match=f"already running in {new}"):
            later.start(run, TrainingOptions())
        assert TrainingManager(sibling, log.file).status()["run"] == new.name, "a successor of the run finds it as well"

        later.close()
        assert later.status()["state"] == "running", "only the studio that started it stops it"
        later.stop()
    finally:
        first.stop()
    for manager in (first, later):
        assert manager.status()["state"] == "stopped"
        assert shlex.split(manager.status()["message"])[-5:] == ["semifine", "train", "--out", str(new), "--resume"]
    assert later.finished_run is None
    assert TrainingManager(run, log.file).status()["state"] == "none"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "not a run folder"),
        (["RUN", "--port", "99999"], "Port 99999"),
        (["RUN", "--db", "RUN/settings.yaml"], "not a label log"),
        (["RUN", "--export", "new.csv"], "no labels yet"),
    ],
)
def test_user_errors_are_one_sentence(
    studio_run: Path, tmp_path: Path, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"RUN": str(studio_run), "RUN/settings.yaml": str(studio_run / "settings.yaml")}
    values["new.csv"] = str(tmp_path / "new.csv")
    command = [values.get(argument, argument) for argument in arguments]
    assert main(["studio", *command, "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert part in error
    assert "Traceback" not in error


def test_a_missing_web_server_names_the_extra(
    studio_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("semifine.cli.studio.find_spec", lambda _: None)
    assert main(["studio", str(studio_run), "--no-browser"]) == 2
    assert "semifine[studio]" in capsys.readouterr().err


def test_a_training_stopped_before_its_first_step(tmp_path: Path) -> None:
    assert _stopped_message(tmp_path / "run-studio-1") == "Stopped before the first step."
