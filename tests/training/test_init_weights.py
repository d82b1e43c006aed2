"""Initial weights: which file and head are used, and what ``weights.json`` records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from semifine.config import resolve, write_settings
from semifine.errors import UserError
from semifine.models.classifier import create_classifier
from semifine.runs.checkpoint import save_checkpoint, save_probe
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.init_weights import create_network, find_weights, load_initial_weights
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.models.layouts import BACKBONE, named, small_classifier

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the weights of seed 0."""
    folder = tmp_path / "run"
    save_checkpoint(folder / "checkpoints", 5, small_classifier(0).state_dict(), {})
    (folder / "classes.json").write_text(json.dumps({"names": NAMES, "groups": None}))
    return folder


def start(weights: Path, names: list[str] = NAMES, **more: object) -> tuple[bool, bool]:
    """Returns whether backbone and head equal those of seed 0."""
    source, target = small_classifier(0), small_classifier(1)
    load_initial_weights(target, resolve([{"weights": str(weights), "backbone": BACKBONE, **more}]).train, names)
    return (
        torch.equal(target.backbone.conv1[0].weight, source.backbone.conv1[0].weight),
        torch.equal(target.head.weight, source.head.weight),
    )


@pytest.mark.parametrize("inside", ["", "checkpoints/last", "checkpoints/last/model.safetensors"])
def test_weights_of_a_run_on_the_same_classes_keep_the_head(inside: str, run: Path) -> None:
    assert start(run / inside) == (True, True)
    assert start(run / inside, weights_head="keep") == (True, True)
    assert start(run / inside, weights_head="fresh") == (True, False)


def test_rows_of_known_classes_are_kept(run: Path) -> None:
    names = ["new", "c", "a", "newer"]
    torch.manual_seed(1)
    source, target = small_classifier(0), create_classifier(BACKBONE, 4, 32)
    before = {name: value.clone() for name, value in target.head.state_dict().items()}
    settings = resolve([{"weights": str(run), "backbone": BACKBONE}]).train
    report = load_initial_weights(target, settings, names)
    assert report is not None
    for key, value in target.head.state_dict().items():
        theirs = source.head.state_dict()[key]
        assert torch.equal(value, torch.stack([before[key][0], theirs[2], theirs[0], before[key][3]]))
    assert str(report).endswith("with its classifier for the classes that it knows, and 2 new: new, newer")
    assert (report.as_dict()["head"], report.as_dict()["new_classes"]) == ("partly kept", ["new", "newer"])


def test_other_classes_and_other_orders(run: Path) -> None:
    assert start(run, ["u", "v", "w", "x", "y", "z"]) == (True, False)
    others = ["c", "a", "b", "d", "e", "f"]
    source, target = small_classifier(0), small_classifier(1)
    settings = resolve([{"weights": str(run), "backbone": BACKBONE}]).train
    report = load_initial_weights(target, settings, others)
    assert torch.equal(target.head.weight, source.head.weight[[2, 0, 1, 3, 4, 5]])
    assert report is not None
    assert (report.as_dict()["head"], report.new_classes) == ("kept", ())
    assert start(run, others, weights_head="keep") == (True, True), "in the order of the file"


def test_weights_of_a_run_are_its_result(run: Path) -> None:
    save_probe(run / "checkpoints", small_classifier(2).state_dict())
    write_settings(tiny_settings(), run / "settings.yaml")
    assert find_weights(run).parent.name == "last", "the run is not finished"
    (run / "result.json").write_text(json.dumps(result_of("probe")))
    assert find_weights(run).parent.name == "probe"
    (run / "result.json").write_text(json.dumps(result_of("trained")))
    assert find_weights(run).parent.name == "last"


def result_of(chosen: str) -> dict[str, object]:
    return {"method": "soc", "data": "synthetic", "seed": 0, "top1": None, "chosen": chosen}


def test_foreign_weights_keep_the_head_on_request(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "checkpoints/last/model.safetensors", tmp_path)
    torch.save(named(small_classifier(0), head=6), tmp_path / "model.pth")
    for name in ("model.safetensors", "model.pth"):
        assert start(tmp_path / name) == (True, False), "the number of classes is equal, their names differ"
        assert start(tmp_path / name, weights_head="keep") == (True, True)


def test_missing_weights_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no weights"):
        start(tmp_path)
    with pytest.raises(UserError, match="does not exist: check the path"):
        start(tmp_path / "none.pt")
    keep = resolve([{"weights_head": "keep"}]).train
    with pytest.raises(UserError, match="needs a weights file: set --weights"):
        load_initial_weights(small_classifier(1), keep, NAMES)
    assert load_initial_weights(small_classifier(1), resolve([{}]).train, NAMES) is None


def test_training_starts_from_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = {"backbone": BACKBONE, "iterations": 2, "save_every": 1, "evaluate_every": 2}
    quiet = Display(quiet=True)
    fit(tiny_settings("supervised", **common), tmp_path / "first", display=quiet)
    assert not (tmp_path / "first" / "weights.json").exists(), "random initialization"

    settings = tiny_settings("soc", weights="first", lr=0.0, ema=0.0, **common)
    fit(settings, tmp_path / "second", display=quiet)
    report = json.loads((tmp_path / "second" / "weights.json").read_text())
    assert report["head"] == "kept"
    assert report["counts"] == {"matched": len(report["matched"]), "missing": 0, "wrong_shape": 0, "unexpected": 0}
    assert report["source"] == str(tmp_path / "first/checkpoints/last/model.safetensors")

    # A run resumes in another folder and without the weights file it started from.
    (tmp_path / "second" / "result.json").unlink()
    shutil.rmtree(tmp_path / "first")
    monkeypatch.chdir("/")
    fit(settings, tmp_path / "second", resume=True, display=quiet)
    assert json.loads((tmp_path / "second" / "weights.json").read_text()) == report


@pytest.mark.parametrize(("zero_init_last", "expected"), [(True, 8), (False, 0)])
def test_last_norm_of_a_block_starts_at_zero_unless_the_settings_say_no(
    zero_init_last: bool, expected: int, tmp_path: Path
) -> None:
    settings = tiny_settings("supervised", backbone="resnet18", zero_init_last=zero_init_last)
    network, _ = create_network(settings, RunFolder(tmp_path), NAMES)
    zeros = [
        name for name, value in network.state_dict().items() if "bn" in name and "weight" in name and not value.any()
    ]
    assert len(zeros) == expected
