from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from semifine.errors import UserError
from semifine.files import write_atomically
from semifine.runs import checkpoint
from semifine.runs.checkpoint import (
    load_training_state,
    load_weights,
    newest_checkpoint,
    remove_best_after,
    save_best,
    save_checkpoint,
)
from semifine.runs.folder import RunFolder, is_locked, lock_holder, locked
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, step, {"w": torch.full((2,), float(step))}, {"step": step, "rng": torch.get_rng_state()})


def test_last_points_at_the_newest_checkpoint_and_old_ones_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert load_training_state(tmp_path / "last")["step"] == 3
    assert load_weights(tmp_path / "last")["w"].tolist() == [3.0, 3.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step-00000002", "step-00000003"]


def test_new_best_weights_replace_former_ones(tmp_path: Path) -> None:
    (tmp_path / "best_val").mkdir()  # a copy of a run that followed links
    for step in (10, 20, 30):
        save_best(tmp_path, step, {"w": torch.full((2,), float(step))})
        assert load_weights(tmp_path / "best_val")["w"].tolist() == [step, step]
        save_checkpoint(tmp_path, step, {"w": torch.zeros(2)}, {"step": step})
    bests = sorted(path.name for path in tmp_path.glob("best*"))
    assert bests == ["best-00000020", "best-00000030", "best_val"], "a run may resume from step 20"


def test_best_weights_of_later_steps_are_removed_on_resume(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_best(tmp_path, step, {"w": torch.full((2,), float(step))})
    remove_best_after(tmp_path, 20)
    assert load_weights(tmp_path / "best_val")["w"].tolist() == [20, 20]
    remove_best_after(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000010", "best-00000020", "best_val"]
    remove_best_after(tmp_path, 5)
    assert not list(tmp_path.iterdir())


def test_weights_can_be_loaded_without_the_training_state(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {"w": torch.ones(2)}, {"step": 5})
    (tmp_path / "last" / "training.pt").unlink()
    assert load_weights(tmp_path / "last")["w"].tolist() == [1, 1]
    newest, notes = newest_checkpoint(tmp_path)
    assert newest is None
    assert "training.pt is missing" in notes[0]


def test_a_failure_while_writing_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    for broken in ("torch.save", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_: (_ for _ in ()).throw(OSError("no space left")))
            with pytest.raises((OSError, UserError), match="no space"):
                save(tmp_path, 2)
        assert load_training_state(tmp_path / "last")["step"] == 1
    save(tmp_path, 2)
    assert load_training_state(tmp_path / "last")["step"] == 2


def test_a_step_without_a_link_is_written_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "half").touch()
    save(tmp_path, 2)
    assert load_training_state(tmp_path / "last")["step"] == 2


def damage(checkpoint: Path) -> None:
    (checkpoint / "training.pt").write_bytes(b"half")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_damaged_later_checkpoints_are_removed(tmp_path: Path) -> None:
    for step in (20, 40):
        save(tmp_path, step)
        damage(tmp_path / "last")
    save(tmp_path, 5)
    assert load_training_state(tmp_path / "last")["step"] == 5
    assert names(tmp_path) == ["last", "step-00000005"]


def test_folders_with_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("step-mine", "best-mine", "step-1e3", "step-"):
        (tmp_path / name).mkdir()
    for step in (4, 8, 12):
        save(tmp_path, step)
    save_best(tmp_path, 12, {"weight": torch.zeros(1)})
    remove_best_after(tmp_path, 4)
    assert {"step-mine", "best-mine", "step-1e3", "step-"} < set(names(tmp_path))
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-00000012", [])


@pytest.mark.parametrize("name", ["model.safetensors", "training.pt", "checksums.json"])
@pytest.mark.parametrize("replace", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_pipes_and_devices_are_not_read(name: str, replace: Callable[[Path], None], tmp_path: Path) -> None:
    """Reading them would never end."""
    for step in (4, 8):
        save(tmp_path, step)
    (tmp_path / "step-00000008" / name).unlink()
    replace(tmp_path / "step-00000008" / name)
    newest, (note,) = newest_checkpoint(tmp_path)
    assert newest == tmp_path / "step-00000004"
    assert f"damaged ({name} is no regular file)" in note


def test_intact_later_checkpoints_are_kept(tmp_path: Path) -> None:
    """The user pointed ``last`` at an older checkpoint."""
    for step in (20, 40):
        save(tmp_path, step)
    (tmp_path / "last").unlink()
    (tmp_path / "last").symlink_to("step-00000020")
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-00000020", [])
    save(tmp_path, 30)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-00000030", [])
    assert names(tmp_path) == ["last", "step-00000020", "step-00000030", "step-00000040"]


def test_an_interrupted_replacement_of_a_damaged_checkpoint_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (20, 40):
        save(tmp_path, step)
    damage(tmp_path / "last")
    replace = os.replace

    def die(source: Path, target: Path) -> None:
        if target.name == "step-00000040":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 40)
    found, notes = newest_checkpoint(tmp_path)
    assert found == tmp_path / "step-00000020"
    assert notes == [f"The link {tmp_path / 'last'} is broken: the newest checkpoint in the folder is used."]
    save(tmp_path, 40)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-00000040", [])
    assert names(tmp_path) == ["last", "step-00000020", "step-00000040"], "no temporary files remain"


def test_without_the_link_the_newest_checkpoint_is_used(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    for step in (20, 40):
        save(tmp_path, step)
    (tmp_path / "last").unlink()
    found, notes = newest_checkpoint(tmp_path)
    assert found == tmp_path / "step-00000040"
    assert notes == [f"The link {tmp_path / 'last'} is missing: the newest checkpoint in the folder is used."]


def test_a_copy_with_folders_instead_of_links_works(tmp_path: Path) -> None:
    for step in (20, 40):
        save(tmp_path / "run", step)
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=False))
    assert newest_checkpoint(copy) == (copy / "last", [])
    damage(copy / "last")
    assert newest_checkpoint(copy)[0] == copy / "step-00000040"
    save(copy, 60)
    assert newest_checkpoint(copy) == (copy / "step-00000060", [])


def test_a_missing_checkpoint_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        load_weights(tmp_path)


def write_header(path: Path, tensor: dict[str, object], data: bytes = bytes(8)) -> None:
    """Writes a safetensors file with one tensor, whose header may be wrong."""
    header = json.dumps({"w": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize(
    ("dtype", "shape", "offsets"),
    [
        ("F8_E8M0", [8], [0, 8]),
        ("F4", [16], [0, 8]),
        ("F32", [2**61], [0, 8]),
        ("F32", [2**40, 2**40], [0, 8]),
        ("F32", [2], [0, 2**60]),
        ("F32", [-2], [0, 8]),
        ("X", [2], [0, 8]),
    ],
)
def test_a_wrong_header_without_checksums(dtype: str, shape: list[int], offsets: list[int], tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", {"dtype": dtype, "shape": shape, "data_offsets": offsets})
    try:
        load_weights(tmp_path)
    except UserError as error:
        assert str(error).startswith(f"The checkpoint {tmp_path / 'model.safetensors'} is damaged (")  # noqa: PT017


@pytest.mark.parametrize("error", [KeyError("F9"), TypeError("x"), OverflowError("y" * 1000), AttributeError("z")])
def test_any_error_of_the_reader_names_the_weights(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise error

    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(checkpoint, "load_file", fail)
    with pytest.raises(UserError, match=r"model.safetensors is damaged \(") as caught:
        load_weights(tmp_path)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("state", [3, [1, 2], None])
def test_a_training_state_that_is_no_object(state: object, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "training.pt")
    with pytest.raises(UserError, match=r"training.pt is not a training state of semifine"):
        load_training_state(tmp_path)


def test_later_metrics_are_removed_and_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step})
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3]
    folder.truncate_metrics(2)
    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_of_the_metrics_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"st\x00p": 2\n{"step": 3}\n')
    before = folder.metrics.read_text()
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: line 2 is not a record \(.*remove this line"):
        folder.truncate_metrics(3)
    assert folder.metrics.read_text() == before


def test_atomic_write_keeps_the_old_content_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):  # noqa: PT011
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="Another training"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_lock_names_its_holder(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        with pytest.raises(UserError), locked(tmp_path):
            pass
        assert is_locked(tmp_path)
        assert lock_holder(tmp_path) == os.getpid(), "the one that was refused left no trace"
        (tmp_path / ".lock").write_text("123 elsewhere\n")
        assert lock_holder(tmp_path) is None, "a process of another machine has no number here"
    assert not is_locked(tmp_path)
    assert lock_holder(tmp_path) is None


def append_records(run: RunFolder, *steps: int) -> None:
    for step in steps:
        run.append_metrics({"kind": "train", "step": step})


def test_saved_records_are_synced_and_lost_ones_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, synced = RunFolder(tmp_path), []
    monkeypatch.setattr("semifine.runs.folder.sync_to_disk", lambda path: synced.append(path))
    assert run.sync_metrics() == 0
    append_records(run, 1, 2, 3)
    assert run.sync_metrics() == 3
    assert synced == [run.metrics, tmp_path]
    assert run.truncate_metrics(3, saved=3) == 0
    assert run.truncate_metrics(3, saved=5) == 2


def test_lines_after_the_checkpoint_may_be_damaged_by_a_power_failure(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    append_records(run, 1, 2)
    saved = run.sync_metrics()
    with run.metrics.open("ab") as file:
        file.write(bytes(30) + b'\n{"kind": "train", "step": 4}\n')
    assert run.truncate_metrics(2, saved) == 0
    assert [record["step"] for record in run.read_metrics()] == [1, 2]


def test_a_resume_reports_metrics_that_the_checkpoint_had(tmp_path: Path) -> None:
    settings = tiny_settings("supervised", iterations=6)
    fit(settings, tmp_path / "run", display=Display(quiet=True))
    run = RunFolder(tmp_path / "run")
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:-2]))
    run.result.unlink()
    fit(settings, tmp_path / "run", resume=True, display=Display(quiet=True))
    (message,) = [line["text"] for line in map(json.loads, run.log.read_text().splitlines()) if "lost" in line["text"]]
    assert f"{run.metrics} has lost 2 of the {len(lines)} records before step 6" in message
