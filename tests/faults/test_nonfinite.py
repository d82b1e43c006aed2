"""Losses that are not finite, caused by NaN images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.errors import UserError
from semifine.methods.base import Batch
from semifine.training.fit import fit
from semifine.training.loader import BatchLoader
from semifine.training.step import clone_tensors, restore_unless
from tests.conftest import tiny_settings, trained_methods
from tests.faults.test_damaged_runs import Notes

STEPS = 12
NOT_RESTORED = {"step", "seconds", "random", "nonfinite"}
"""Parts of the training state that a skipped step changes: its position and the number of skipped steps."""


def insert_nan(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Replaces the images of these steps, counted from 0, by NaN."""
    original: Callable[[BatchLoader, int], Batch] = BatchLoader.batch

    def broken(loader: BatchLoader, step: int) -> Batch:
        batch = original(loader, step)
        for view in (*batch.labeled.values(), *batch.unlabeled.values()):
            view.mul_(float("nan") if step in steps else 1.0)
        return batch

    monkeypatch.setattr(BatchLoader, "batch", broken)


def run(out: Path, name: str, notes: Notes | None = None, *, resume: bool = False, **more: Any) -> None:
    average = {"ema": 0.9}  # so that all methods have a weight average
    settings = tiny_settings(name, iterations=STEPS, **{**average, "on_nonfinite": "skip", **more})
    fit(settings, out, resume=resume, display=notes or Notes())


def skip_messages(notes: Notes) -> list[str]:
    return [text for text in notes.lines if "skipped; the first was step" in text]


@pytest.mark.parametrize("name", trained_methods())
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="cpu"),
        pytest.param({"device": "cuda", "precision": "fp32", "cuda_graphs": "on"}, id="graphs", marks=pytest.mark.gpu),
    ],
)
def test_a_skipped_batch_changes_no_state(
    options: dict[str, str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_nan(monkeypatch, 0, 4, STEPS - 1)
    notes = Notes()
    run(tmp_path, name, notes, save_every=1, log_every=STEPS, evaluate_every=STEPS - 1, **options)
    before, after = (tmp_path / "checkpoints" / f"step-{step:08d}" for step in (STEPS - 1, STEPS))
    states = [torch.load(folder / "training.pt", weights_only=True) for folder in (before, after)]
    for state in states:
        del state["metrics"]  # the number of records so far
        del state["meters"]  # reset when the metrics of the last step were logged
        del state["optimizer"]["param_groups"]  # the learning rate
    kept, changed = ({key: state[key] for key in state.keys() - NOT_RESTORED} for state in states)
    torch.testing.assert_close(changed, kept, rtol=0, atol=0)
    weights = load_file(after / "model.safetensors")
    torch.testing.assert_close(weights, load_file(before / "model.safetensors"), rtol=0, atol=0)
    assert all(value.isfinite().all() for value in weights.values())
    assert skip_messages(notes)[-1].startswith("3 steps so far")
    numbers = next(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "loss" in line)
    assert 0 < numbers["loss"] < 100, "the mean of the other steps"


def test_skipped_steps_are_logged_and_counted_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_nan(monkeypatch, 1, 7)
    first = Notes()
    run(tmp_path, "fixmatch", first, log_every=1, save_every=2)
    assert skip_messages(first) == [
        "1 step so far had a loss that is not finite and was skipped; the first was step 1.",
        "2 steps so far had a loss that is not finite and were skipped; the first was step 1.",
    ]
    for name in ("result.json", "checkpoints/last"):
        (tmp_path / name).unlink()
    (tmp_path / "checkpoints" / "last").symlink_to("step-00000010")
    monkeypatch.undo()
    insert_nan(monkeypatch, 10)
    second = Notes()
    run(tmp_path, "fixmatch", second, resume=True)
    assert skip_messages(second)[-1].startswith("3 steps so far")


def test_a_network_with_nan_weights_is_not_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_nan(monkeypatch, 1)
    with pytest.raises(UserError, match=r"step 1 is not a finite number.*--resume --on-nonfinite skip"):
        run(tmp_path, "fixmatch", on_nonfinite="stop", log_every=STEPS, evaluate_every=2, save_every=STEPS)
    assert not (tmp_path / "checkpoints").exists()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    run(tmp_path, "fixmatch", resume=True, log_every=STEPS, evaluate_every=2, save_every=STEPS)


def test_earlier_skipped_steps_do_not_stop_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_nan(monkeypatch, 1)
    run(tmp_path, "fixmatch")
    for name in ("result.json", "checkpoints/last"):
        (tmp_path / name).unlink()
    (tmp_path / "checkpoints" / "last").symlink_to("step-00000008")
    run(tmp_path, "fixmatch", resume=True, on_nonfinite="stop")


def test_state_created_by_a_skipped_first_step_becomes_zero() -> None:
    before = clone_tensors({"weight": torch.ones(2)})
    state = {"weight": torch.full((2,), torch.nan), "momentum": torch.full((2,), torch.nan)}
    restore_unless(torch.tensor(True), state, before)
    assert state["weight"].isnan().all()
    restore_unless(torch.tensor(False), state, before)
    assert state["weight"].tolist() == [1, 1]
    assert state["momentum"].tolist() == [0, 0]
