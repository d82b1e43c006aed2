"""Where a run starts: which file, which head, and what the run folder keeps of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from semifine.config import resolve
from semifine.errors import UserError
from semifine.training.fit import fit
from semifine.training.init_weights import load_initial_weights
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.models.layouts import BACKBONE, named, small_classifier

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the weights of seed 0."""
    from semifine.runs.checkpoint import save_checkpoint

    folder = tmp_path / "run"
    save_checkpoint(folder / "checkpoints", 5, small_classifier(0).state_dict(), {})
    (folder / "classes.json").write_text(json.dumps({"names": NAMES, "groups": None}))
    return folder


def start(weights: Path, names: list[str] = NAMES, **more: object) -> tuple[bool, bool]:
    """Whether backbone and head became those of seed 0."""
    source, target = small_classifier(0), small_classifier(1)
    load_initial_weights(target, resolve([{"weights": str(weights), "backbone": BACKBONE, **more}]).train, names)
    return (
        torch.equal(target.backbone.conv1[0].weight, source.backbone.conv1[0].weight),
        torch.equal(target.head.weight, source.head.weight),
    )


@pytest.mark.parametrize("inside", ["", "checkpoints/last", "checkpoints/last/model.safetensors"])
def test_a_run_of_the_same_classes_brings_its_head(inside: str, run: Path) -> None:
    assert start(run / inside) == (True, True)
    assert start(run / inside, weights_head="keep") == (True, True)
    assert start(run / inside, weights_head="fresh") == (True, False)


def test_a_run_of_other_classes_brings_its_head_only_when_asked(run: Path) -> None:
    others = ["c", "a", "b", "d", "e", "f"]
    assert start(run, others) == (True, False)
    assert start(run, others, weights_head="keep") == (True, True)


def test_a_file_from_elsewhere_brings_its_head_only_when_asked(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "checkpoints/last/model.safetensors", tmp_path)
    torch.save(named(small_classifier(0), head=6), tmp_path / "model.pth")
    for name in ("model.safetensors", "model.pth"):
        assert start(tmp_path / name) == (True, False), "six classes are not yet the same classes"
        assert start(tmp_path / name, weights_head="keep") == (True, True)


def test_folders_and_settings_without_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no weights"):
        start(tmp_path)
    with pytest.raises(UserError, match="no weights file"):
        start(tmp_path / "none.pt")
    keep = resolve([{"weights_head": "keep"}]).train
    with pytest.raises(UserError, match="needs a weights file: set --weights"):
        load_initial_weights(small_classifier(1), keep, NAMES)
    assert load_initial_weights(small_classifier(1), resolve([{}]).train, NAMES) is None


def test_a_training_starts_from_another_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = {"backbone": BACKBONE, "iterations": 2, "save_every": 1, "evaluate_every": 2}
    quiet = Display(quiet=True)
    fit(tiny_settings("supervised", **common), tmp_path / "first", display=quiet)
    assert not (tmp_path / "first" / "weights.json").exists(), "it started fresh"

    settings = tiny_settings("soc", weights="first", lr=0.0, ema=0.0, **common)
    fit(settings, tmp_path / "second", display=quiet)
    report = json.loads((tmp_path / "second" / "weights.json").read_text())
    assert report["head"] == "kept"
    assert report["counts"] == {"matched": len(report["matched"]), "missing": 0, "wrong_shape": 0, "unexpected": 0}
    assert report["source"] == str(tmp_path / "first/checkpoints/last/model.safetensors")

    # A run goes on although the file that it began with is gone, and from another folder.
    (tmp_path / "second" / "result.json").unlink()
    shutil.rmtree(tmp_path / "first")
    monkeypatch.chdir("/")
    fit(settings, tmp_path / "second", resume=True, display=quiet)
    assert json.loads((tmp_path / "second" / "weights.json").read_text()) == report
