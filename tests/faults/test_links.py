"""A run folder from someone else contains links to files of the user. Nothing is written through them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from semifine.cli.main import main
from semifine.config import write_settings
from semifine.errors import UserError
from semifine.inference.tables import Journal
from semifine.runs.checkpoint import save_checkpoint
from semifine.runs.folder import RunFolder, locked
from semifine.studio.jobs import TrainingManager, TrainingOptions
from semifine.training.fit import fit
from semifine.training.progress import Display, RunLog
from tests.conftest import tiny_settings
from tests.faults.bad_files import encode_image

REFUSED = "is a link or no regular file, and is not written to: remove it"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("name", [".lock", "log.jsonl", "metrics.jsonl"])
def test_a_run_does_not_write_through_links(name: str, tmp_path: Path, victim: Path) -> None:
    out = tmp_path / "run"
    settings = tiny_settings("supervised", iterations=2)
    fit(settings, out, display=Display(quiet=True))
    (out / "result.json").unlink()
    for path in (out / "checkpoints").glob("step-*"):
        (path / "training.pt").unlink()
    (out / name).unlink()
    (out / name).symlink_to(victim)
    if name == "metrics.jsonl":  # replaced as a whole at the start of a run
        fit(settings, out, resume=True, display=Display(quiet=True))
        assert not (out / name).is_symlink()
    else:
        with pytest.raises(UserError, match=f"{name} {REFUSED}"):
            fit(settings, out, resume=True, display=Display(quiet=True))
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["checkpoints", "samples", "trial"])
def test_a_run_does_not_write_to_linked_folders(name: str, tmp_path: Path) -> None:
    """A run from someone else could otherwise replace the checkpoints of another run."""
    settings = tiny_settings("supervised", iterations=2)
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    fit(settings, mine, display=Display(quiet=True))
    shutil.copytree(mine, theirs, symlinks=True)
    (theirs / "result.json").unlink()
    shutil.rmtree(theirs / name, ignore_errors=True)
    (theirs / name).symlink_to(mine / "checkpoints")
    before = sorted((path, path.lstat().st_mtime_ns) for path in mine.rglob("*"))
    with pytest.raises(UserError, match=f"{name} is a link, and a training writes to no other folder"):
        fit(settings, theirs, resume=True, display=Display(quiet=True))
    assert sorted((path, path.lstat().st_mtime_ns) for path in mine.rglob("*")) == before


def test_lock_log_and_metrics_are_not_appended_to_a_link(tmp_path: Path, victim: Path) -> None:
    for name in (".lock", "log.jsonl", "metrics.jsonl"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(UserError, match=REFUSED):
        RunFolder(tmp_path).append_metrics({"step": 1})
    with pytest.raises(UserError, match=REFUSED):
        RunLog(tmp_path / "log.jsonl", 0).write("message", "text")
    with pytest.raises(UserError, match=REFUSED), locked(tmp_path):
        pass
    assert victim.read_text() == "precious"


def test_the_journal_of_predictions_is_not_appended_to_a_link(tmp_path: Path, victim: Path) -> None:
    victim.write_text("")
    (tmp_path / "p.csv.unfinished").symlink_to(victim)
    with pytest.raises(UserError, match=REFUSED):
        Journal(tmp_path / "p.csv").begin({"model": "x"}, resume=True)
    assert victim.read_text() == ""


def test_the_cache_lock_is_not_opened_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(encode_image((20, 20), (ord(name), 9, 9), "JPEG"))
    command = ["prepare", str(tmp_path / "photos"), "--image-size", "16", "--cache", str(tmp_path)]
    assert main(command) == 0
    (lock,) = tmp_path.glob("*.lock")
    lock.rename(tmp_path / "former")
    lock.symlink_to(tmp_path / "new")
    shutil.rmtree(lock.with_suffix(""))
    assert main(command) == 2
    assert REFUSED in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_output_of_a_studio_training_does_not_overwrite_the_target_of_a_link(tmp_path: Path) -> None:
    """The target does not exist yet, so the name of the link looks free."""
    (tmp_path / "birds-studio-1.log").symlink_to(tmp_path / "new")
    (tmp_path / "birds").mkdir()
    write_settings(tiny_settings(), tmp_path / "birds" / "settings.yaml")
    manager = TrainingManager(tmp_path / "birds", tmp_path / "birds.studio.db")
    with pytest.raises(UserError, match=REFUSED):
        manager.start(tmp_path / "birds", TrainingOptions())
    assert not (tmp_path / "new").exists()


def test_a_link_in_the_place_of_a_partial_checkpoint_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_text("precious")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / ".step-00000004.partial").symlink_to(elsewhere)
    save_checkpoint(folder, 4, {}, {"step": 4})
    assert (elsewhere / "model.safetensors").read_text() == "precious"
    assert not (folder / "step-00000004").is_symlink()
