"""Power failures at any moment: the output of every command is whole or absent, and nothing reported is lost.

The first tests replay recorded system calls to every state that a disk may keep (``power_loss.py``). The last ones copy
a mounted ext4 file system after each step, and mount the copy; they are skipped without permission to mount.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.data.label_log import LABEL, Event, LabelLog, read_events
from semifine.data.sources import folder as photo_folder
from semifine.errors import UserError
from semifine.files import PARTIAL, write_atomically
from semifine.inference.camtrap import FILES
from semifine.runs.checkpoint import load_training_state, load_weights, newest_checkpoint
from semifine.runs.folder import RunFolder
from semifine.studio.exchange_files import export_labels
from semifine.training.fit import fit
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import SHARED_FOLDER, tiny_settings
from tests.faults.bad_files import encode_image, finished_run
from tests.faults.power_loss import Recorder, State, assert_whole, is_hidden

APPENDED = ("log.jsonl", "metrics.jsonl")


def test_the_model_loses_what_was_not_synced(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        (tmp_path / "1.txt").write_text("abcd")
    contents = [state.tree.get("1.txt") for state in recorder.states()]
    assert contents == [None, b"", b"ab", b"abcd", bytes(4)]


def write_in_place(path: Path) -> None:
    path.write_text("whole")


def write_without_sync(path: Path) -> None:
    path.with_name(".partial").write_text("whole")
    path.with_name(".partial").rename(path)


@pytest.mark.parametrize("write", [write_in_place, write_without_sync])
def test_the_model_finds_files_that_are_written_in_place_or_renamed_without_sync(write: Any, tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        write(tmp_path / "1.txt")
    state = next(state for state in recorder.states() if state.tree.get("1.txt") == b"")
    with pytest.raises(AssertionError, match=r"1\.txt is incomplete"):
        assert_whole(recorder, state)


def test_the_model_keeps_an_atomic_file_from_the_moment_it_is_reported(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        write_atomically(tmp_path / "1.txt", "whole")
        recorder.promise("written")
    states = list(recorder.states())
    assert {state.tree.get("1.txt") for state in states} == {None, b"whole"}
    assert {state.tree.get("1.txt") for state in states if state.done} == {b"whole"}


def assert_finished(state: State, recorder: Recorder, *, appended: tuple[str, ...] = ()) -> None:
    """Checks that a state contains all files of the finished command."""
    for path in sorted(recorder.folder.rglob("*")):
        name = str(path.relative_to(recorder.folder))
        if path.is_file() and not is_hidden(name) and not path.is_symlink() and not name.endswith(appended):
            assert state.tree.get(name) == path.read_bytes(), f"{name} is lost after call {state.after}"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """A recorded training, which promises each checkpoint and its result."""
    folder = tmp_path_factory.mktemp("training")
    save = Trainer.save

    def save_and_promise(trainer: Trainer) -> None:
        save(trainer)
        recorder.promise(f"checkpoint {trainer.step}")

    with pytest.MonkeyPatch.context() as patch, Recorder(folder) as recorder:
        patch.setattr(Trainer, "save", save_and_promise)
        fit(tiny_settings(), folder / "run", display=Display(quiet=True))
        recorder.promise("finished")
    return recorder


def test_a_run_has_every_saved_checkpoint_with_its_metrics(training: Recorder, tmp_path: Path) -> None:
    checked = set()
    for state in training.states():
        assert_whole(training, state, appended=APPENDED)
        if "run/result.json" in state.tree or "finished" in state.done:
            assert_finished(state, training, appended=APPENDED)
        view = (state.done, state.view("run/checkpoints"), state.view("run/metrics"))
        if view in checked:
            continue
        checked.add(view)
        saved = max((int(name.split()[1]) for name in state.done if name.startswith("checkpoint")), default=0)
        run = RunFolder(state.write(tmp_path / "state") / "run")
        newest, _ = newest_checkpoint(run.checkpoints)
        assert newest is not None or not saved
        if newest is not None:
            training_state = load_training_state(newest)
            assert training_state["step"] >= saved
            assert load_weights(newest)
            assert run.truncate_metrics(training_state["step"], training_state["metrics"]) == 0
    assert len(checked) > 50


def test_a_run_continues_bit_for_bit_after_the_worst_failures(training: Recorder, tmp_path: Path) -> None:
    """Resumes from the first state after each checkpoint, in which everything that was not synced is lost."""
    whole = load_file(training.folder / "run" / "checkpoints" / "last" / "model.safetensors")
    for promised in (("checkpoint 4",), ("checkpoint 4", "checkpoint 8")):
        state = next(state for state in training.states() if state.done == promised)
        out = state.write(tmp_path / str(len(promised))) / "run"
        fit(tiny_settings(), out, resume=True, display=Display(quiet=True))
        torch.testing.assert_close(load_file(out / "checkpoints/last/model.safetensors"), whole, rtol=0, atol=0)
        steps = [record["step"] for record in RunFolder(out).read_metrics()]
        assert steps == [record["step"] for record in RunFolder(training.folder / "run").read_metrics()]


@cache
def photos() -> Path:
    """A folder of six photos, one of them damaged."""
    folder = SHARED_FOLDER / "six photos"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(encode_image((40, 30), (50 * number, 99, 0), "JPEG"))
    (folder / "5.jpg").write_bytes(b"no image")
    return folder


def predict_command(folder: Path, suffix: str) -> list[str]:
    command = ["predict", str(finished_run()), str(photos()), "--out", str(folder / f"p{suffix}"), "--quiet"]
    return [*command, "--batch-size", "2", "--workers", "1", "--device", "cpu"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_prediction_table_is_complete_or_can_be_resumed(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    predict_command(folder, suffix)
    with Recorder(folder) as recorder:
        assert main([*predict_command(folder, suffix), "--camtrap-dp", str(folder / "package")]) == 0
        recorder.promise("finished")
    table = f"p{suffix}"
    journals = set()
    for state in recorder.states():
        assert_whole(recorder, state, appended=(".unfinished",))
        if "finished" in state.done:
            assert_finished(state, recorder)
        if table in state.tree:
            assert all(f"package/{name}" in state.tree for name in FILES)
        else:
            journals.add(state.tree.get(f"{table}.unfinished"))
    assert len(journals) > 4
    for content in journals:
        unfinished = {} if content is None else {f"{table}.unfinished": content}
        again = State(unfinished, (), 0).write(tmp_path / "again")
        assert main([*predict_command(again, suffix), "--resume"]) == 0
        assert (again / table).read_bytes() == (folder / table).read_bytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt2"])
def test_an_exported_model_is_whole_or_absent(suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    finished_run()
    with Recorder(tmp_path) as recorder:
        assert main(["export", str(finished_run()), "--out", str(tmp_path / f"model{suffix}")]) == 0
        recorder.promise("finished")
    for state in recorder.states():
        assert_whole(recorder, state)
        if state.done:
            assert_finished(state, recorder)


def test_a_report_is_whole_or_absent(tmp_path: Path) -> None:
    finished_run()
    with Recorder(tmp_path) as recorder:
        assert main(["report", str(finished_run()), "--out", str(tmp_path / "reports" / "report.html")]) == 0
        recorder.promise("finished")
    for state in recorder.states():
        assert_whole(recorder, state)
        if state.done:
            assert_finished(state, recorder)


def number_of_photos(folder: Path) -> int | None:
    """Reads a folder of photos; returns None if it is refused as incomplete."""
    if (folder / PARTIAL).is_dir():
        with pytest.raises(UserError, match="is incomplete"):
            photo_folder.load(folder, photo_folder.Settings())
        return None
    return len(photo_folder.load(folder, photo_folder.Settings()))


@pytest.mark.parametrize("was_there", [False, True])
def test_a_written_folder_is_absent_refused_or_complete(was_there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    (folder / "photos" if was_there else folder).mkdir(parents=True)
    command = ["prepare", "synthetic", "--data.genera", "2", "--data.species", "2", "--data.unlabeled-per-class", "1"]
    command += ["--data.labeled-per-class", "1", "--data.val-per-class", "1", "--data.test-per-class", "1"]
    with Recorder(folder) as recorder:
        assert main([*command, "--write-folder", str(folder / "photos")]) == 0
        recorder.promise("finished")
    number_read, checked = set(), set()
    for state in recorder.states():
        assert_whole(recorder, state)
        if state.done:
            assert_finished(state, recorder)
        if state.view("photos") in checked:
            continue
        checked.add(state.view("photos"))
        out = state.write(tmp_path / "state") / "photos"
        if out.exists() and any(out.iterdir()):
            number_read.add(number_of_photos(out))
    assert number_read == ({None, 16} if was_there else {16})


def test_exported_labels_are_whole_or_absent(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    log.append([Event("Ada", f"{number}.jpg", LABEL, "robin") for number in range(3)])
    log.close()
    (tmp_path / "out").mkdir()
    with Recorder(tmp_path / "out") as recorder:
        export_labels(tmp_path, tmp_path / "labels.db", tmp_path / "out" / "labels.csv")
        recorder.promise("finished")
    for state in recorder.states():
        assert_whole(recorder, state)
        if state.done:
            assert_finished(state, recorder)


class Ext4:
    """A mounted ext4 file system in a file, and copies of it as after a power failure."""

    def __init__(self, folder: Path) -> None:
        self._image, self.root, self._copy = folder / "image", folder / "disk", folder / "copy"
        self._mounted: list[Path] = []
        for path in (self.root, self._copy):
            path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(48 << 20)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self._mount(self._image, self.root)

    def _mount(self, image: Path, folder: Path) -> None:
        mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"a file cannot be mounted here: {mounted.stderr.strip()}")
        self._mounted.append(folder)

    def after_power_failure(self) -> Path:
        """Mounts a copy of what has reached the disk."""
        if self._copy in self._mounted:
            self._unmount(self._copy)
        image = self._image.with_name("image of copy")
        shutil.copyfile(self._image, image)
        self._mount(image, self._copy)
        return self._copy

    def _unmount(self, folder: Path) -> None:
        subprocess.run(["umount", "--lazy", folder], check=True)
        self._mounted.remove(folder)

    def close(self) -> None:
        for folder in list(self._mounted):
            self._unmount(folder)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Ext4]:
    disk = Ext4(tmp_path)
    yield disk
    disk.close()


def test_ext4_loses_a_file_that_was_not_synced(ext4: Ext4) -> None:
    (ext4.root / "a.txt").write_text("not synced")
    write_atomically(ext4.root / "b.txt", "synced")
    copy = ext4.after_power_failure()
    assert not (copy / "a.txt").exists() or not (copy / "a.txt").read_text()
    assert (copy / "b.txt").read_text() == "synced"


def test_no_acknowledged_label_is_lost_on_ext4(ext4: Ext4) -> None:
    log = LabelLog(ext4.root / "new folder" / "labels.db")
    for number in range(4):
        log.append([Event("Ada", f"{number}.jpg", LABEL, "robin")])
        events = read_events(ext4.after_power_failure() / "new folder" / "labels.db")
        assert [event.path for event in events] == [f"{index}.jpg" for index in range(number + 1)]
    log.close()


def test_finished_outputs_survive_on_ext4(ext4: Ext4) -> None:
    def assert_survives(*names: str) -> None:
        copy = ext4.after_power_failure()
        for name in names:
            assert (copy / name).read_bytes() == (ext4.root / name).read_bytes(), name

    assert main([*predict_command(ext4.root, ".csv"), "--camtrap-dp", str(ext4.root / "package")]) == 0
    assert_survives("p.csv", "package/media.csv", "package/datapackage.json")
    assert main(["export", str(finished_run()), "--out", str(ext4.root / "model.safetensors")]) == 0
    assert_survives("model.safetensors")
    assert main(["report", str(finished_run()), "--out", str(ext4.root / "reports" / "report.html")]) == 0
    assert_survives("reports/report.html")
    settings = tiny_settings("supervised", iterations=2)
    fit(settings, ext4.root / "run", display=Display(quiet=True))
    assert_survives("run/result.json", "run/metrics.jsonl", "run/checkpoints/last/model.safetensors")
