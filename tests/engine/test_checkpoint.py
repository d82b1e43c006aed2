from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from semifine.engine.checkpoint import load_training_state, load_weights, save_best, save_checkpoint
from semifine.engine.lock import holder, is_locked, locked
from semifine.errors import UserError
from semifine.run_folder import RunFolder, write_atomically


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, step, {"w": torch.full((2,), float(step))}, {"step": step, "rng": torch.get_rng_state()})


def test_last_points_at_the_newest_and_old_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert load_training_state(tmp_path / "last")["step"] == 3
    assert load_weights(tmp_path / "last")["w"].tolist() == [3.0, 3.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step-00000002", "step-00000003"]


def test_the_best_weights_take_the_place_of_those_before_them(tmp_path: Path) -> None:
    (tmp_path / "best_val").mkdir()  # a folder, as it was before there were checksums
    for step in (20, 10):  # a run that was taken up again may find its best earlier
        save_best(tmp_path, step, {"w": torch.full((2,), float(step))})
        assert load_weights(tmp_path / "best_val")["w"].tolist() == [step, step]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000010", "best_val"]


def test_death_while_writing_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    for broken in ("torch.save", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_: (_ for _ in ()).throw(OSError("no space left")))
            with pytest.raises((OSError, UserError), match="no space"):
                save(tmp_path, 2)
        assert load_training_state(tmp_path / "last")["step"] == 1
    save(tmp_path, 2)
    assert load_training_state(tmp_path / "last")["step"] == 2


def test_a_step_that_was_written_but_not_pointed_at_is_written_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "half").touch()
    save(tmp_path, 2)
    assert load_training_state(tmp_path / "last")["step"] == 2


def test_a_missing_checkpoint_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        load_weights(tmp_path)


def test_metrics_after_a_checkpoint_are_dropped_and_a_cut_line_is_not_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step})
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3]
    folder.keep_metrics_until(2)
    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_atomic_write_keeps_the_old_content_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):  # noqa: PT011
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
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
        assert holder(tmp_path) == os.getpid(), "the one that was refused left no trace"
        (tmp_path / ".lock").write_text("123 elsewhere\n")
        assert holder(tmp_path) is None, "a process of another machine has no number here"
    assert not is_locked(tmp_path)
    assert holder(tmp_path) is None
