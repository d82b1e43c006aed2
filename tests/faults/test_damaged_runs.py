"""Damaged checkpoints, non-finite losses, full disks, exhausted memory."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.errors import UserError
from semifine.inference.model import load
from semifine.methods.fixmatch import FixMatch
from semifine.runs import checkpoint as checkpoint_module
from semifine.runs.checkpoint import newest_checkpoint
from semifine.runs.folder import RunFolder
from semifine.training.fabric import create_fabric
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


class Notes(Display):
    """Records the log lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def run(out: Path, *, resume: bool = False, display: Display | None = None, **more: Any) -> dict[str, Any]:
    return fit(tiny_settings(**more), out, resume=resume, display=display or Display(quiet=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return out


@pytest.fixture
def unfinished(whole: Path, tmp_path: Path) -> Path:
    """A copy of the complete run without its result."""
    out = Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))
    (out / "result.json").unlink()
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def logged_numbers(out: Path) -> list[dict[str, Any]]:
    """Returns the logged records without times."""
    times = {"images_per_second", "step_seconds", "data_wait"}
    records = RunFolder(out).read_metrics()
    return [{name: value for name, value in record.items() if name not in times} for record in records]


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "bit flipped":
        content[len(content) // 2] ^= 4
    elif how == "truncated":
        content = content[:-10]
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["bit flipped", "truncated", "missing"])
@pytest.mark.parametrize("file", ["model.safetensors", "training.pt", "checksums.json"])
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(
    file: str, how: str, whole: Path, unfinished: Path
) -> None:
    damage(unfinished / "checkpoints" / "last" / file, how)
    notes = Notes()
    run(unfinished, resume=True, display=notes)
    assert any("is damaged" in text and "step-00000012" in text for text in notes.lines)
    torch.testing.assert_close(weights(unfinished), weights(whole), rtol=0, atol=0)
    assert logged_numbers(unfinished) == logged_numbers(whole), "step 8 is between two log lines"


def test_the_loss_scale_of_fp16_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a mock, because a loss scale needs a GPU."""
    kind = type(create_fabric(tiny_settings().train).strategy.precision)
    taken: list[dict[str, float]] = []
    monkeypatch.setattr(kind, "state_dict", lambda _: {"scale": 8.0})
    monkeypatch.setattr(kind, "load_state_dict", lambda _, state: taken.append(state))
    out = tmp_path / "run"
    run(out)
    assert not taken, "there was nothing to restore"
    (out / "result.json").unlink()
    run(out, resume=True)
    assert taken == [{"scale": 8.0}]


def test_without_an_intact_checkpoint_a_run_starts_from_the_beginning(whole: Path, unfinished: Path) -> None:
    for checkpoint in (unfinished / "checkpoints").glob("step-*"):
        damage(checkpoint / "training.pt", "truncated")
    found, notes = newest_checkpoint(unfinished / "checkpoints")
    assert found is None
    assert len(notes) == 2
    run(unfinished, resume=True)
    torch.testing.assert_close(weights(unfinished), weights(whole), rtol=0, atol=0)


def test_damaged_weights_are_not_evaluated(unfinished: Path) -> None:
    damage(unfinished / "checkpoints" / "last" / "model.safetensors", "bit flipped")
    with pytest.raises(UserError, match=r"model.safetensors is damaged \(model.safetensors has changed\)"):
        load(unfinished)


@pytest.mark.parametrize("how", ["bit flipped", "truncated"])
def test_damaged_weights_of_the_best_evaluation_are_not_used(how: str, unfinished: Path, tmp_path: Path) -> None:
    assert load(unfinished, "best_val").network.num_classes
    damage(unfinished / "checkpoints" / "best_val" / "model.safetensors", how)
    with pytest.raises(
        UserError, match=r"best_val/model.safetensors is damaged .*has changed.*use --checkpoint last instead"
    ):
        load(unfinished, "best_val")
    with pytest.raises(UserError, match=r"model.safetensors is damaged"):
        run(tmp_path / "next", weights=str(unfinished / "checkpoints" / "best_val"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lr: fast", "lr must be a number, not 'fast'"),
        ("crop_scale: [2, 1]", "crop_scale must satisfy 0 < low <= high <= 1"),
        ("itrations: 12", "Unknown setting 'itrations'"),
    ],
)
def test_an_invalid_setting_is_an_error_naming_the_file(
    line: str, message: str, unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = unfinished / "settings.yaml"
    file.write_text(f"{file.read_text()}{line}\n")  # the last of two lines with the same key is used
    with pytest.raises(UserError, match=re.escape(f"{file}: {message}")):
        run(unfinished, resume=True)
    assert main(["train", "--out", str(unfinished), "--resume", "--lr", "0.1"]) == 2
    error = capsys.readouterr().err
    assert f"{file}: {message}" in error
    assert error.count("\n") == 1


@pytest.fixture
def _bad_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the sixth step is NaN."""
    forward = FixMatch.forward

    def broken(self: FixMatch, networks: Any, batch: Any, progress: Any) -> Any:
        result = forward(self, networks, batch, progress)
        if progress.step == 5:
            object.__setattr__(result, "loss", result.loss * float("nan"))
        return result

    monkeypatch.setattr(FixMatch, "forward", broken)


@pytest.mark.usefixtures("_bad_loss")
def test_a_nonfinite_loss_stops_before_a_checkpoint_is_saved(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"The loss of step 5 is not a finite number; its batch of 12 images begins with"
    ):
        run(tmp_path / "run", method="fixmatch")
    found, _ = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.name == "step-00000004"
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())


@pytest.mark.usefixtures("_bad_loss")
def test_a_batch_with_a_nonfinite_loss_can_be_skipped(tmp_path: Path) -> None:
    notes = Notes()
    result = run(tmp_path / "run", method="fixmatch", on_nonfinite="skip", display=notes)
    assert result["top1"] is not None
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())
    assert any("1 step so far" in text and "the first was step 5" in text for text in notes.lines)


def test_skipping_changes_nothing_if_all_losses_are_finite(tmp_path: Path) -> None:
    run(tmp_path / "stop", method="fixmatch")
    run(tmp_path / "skip", method="fixmatch", on_nonfinite="skip")
    torch.testing.assert_close(weights(tmp_path / "skip"), weights(tmp_path / "stop"), rtol=0, atol=0)


def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_resumes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint_module.save_weights
    calls = 0

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        nonlocal calls
        is_checkpoint = "step" in path.parent.name
        calls += is_checkpoint
        if is_checkpoint and calls == 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(tensors, path)

    monkeypatch.setattr(checkpoint_module, "save_weights", full)
    with pytest.raises(UserError, match=r"could not be written .*No space left on device.*continue with --resume"):
        run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*step*")] == ["step-00000004"]
    run(tmp_path / "run", resume=True)
    torch.testing.assert_close(weights(tmp_path / "run"), weights(whole), rtol=0, atol=0)


def test_exhausted_memory_names_the_settings_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(FixMatch, "forward", exhausted)
    with pytest.raises(UserError, match="lower --batch-size, --mu or --image-size"):
        run(tmp_path / "run", method="fixmatch")


@pytest.mark.parametrize("how", ["truncated", "missing link"])
def test_a_finished_run_without_its_last_checkpoint_is_repaired(
    whole: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))
    if how == "truncated":
        damage(out / "checkpoints" / "last" / "model.safetensors", how)
    else:
        (out / "checkpoints" / "last").unlink()
    assert main(["evaluate", str(out), "--device", "cpu"]) == 2
    assert "--resume" in capsys.readouterr().err
    run(out, resume=True)
    assert all((weights(out)[name] == tensor).all() for name, tensor in weights(whole).items())
    assert main(["evaluate", str(out), "--device", "cpu"]) == 0


@pytest.mark.parametrize(("name", "content"), [("classes.json", "{}"), ("settings.yaml", "")])
def test_an_empty_file_is_an_error_naming_it(
    whole: Path, tmp_path: Path, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))
    (out / name).write_text(content)
    for command in (["report", str(out)], ["evaluate", str(out), "--device", "cpu"]):
        assert main(command) == 2
        assert f"{out / name} is damaged" in capsys.readouterr().err.replace("The settings file ", "")
