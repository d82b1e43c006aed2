"""A trial without validation images: trains on a part of the labels and measures on the others."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semifine.config import RunSettings
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.inference.calibration import MIN_IMAGES
from semifine.inference.model import TrainedModel
from semifine.runs.run import CHECKPOINT_OF, Run
from semifine.training.fit import fit
from semifine.training.interpolation import Comparison
from semifine.training.progress import Display
from semifine.training.trial import hold_out_labels
from tests.conftest import open_dataset, tiny_settings, tiny_teacher

pytestmark = pytest.mark.usefixtures("quick_probe")
QUIET = Display(quiet=True)


def settings_without_validation(**more: object) -> RunSettings:
    probe = {"weights": tiny_teacher(), "weights_head": "fresh", "probe": True}
    data = {"data__val_per_class": 0, "data__labeled_per_class": 16}
    return tiny_settings("soc", **probe, **data, train_stages=1, labeled_versions=2, unlabeled_versions=2, **more)


@pytest.fixture(scope="module")
def finished(quick_probe: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:  # noqa: ARG001
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, fit(settings_without_validation(), out, display=QUIET)


def test_a_quarter_of_each_class_is_held_out_and_labels_leave_training() -> None:
    dataset = open_dataset(settings_without_validation())
    held_out = hold_out_labels(dataset, seed=0)
    assert held_out is not None
    catalog = held_out.catalog
    counts = np.bincount(catalog.label[catalog.rows(Split.VAL)], minlength=6)
    assert counts.tolist() == [4] * 6
    assert len(catalog.rows(Split.LABELED)) == 6 * 12
    assert len(dataset.catalog.rows(Split.LABELED)) == 6 * 16, "the data set itself does not change"


def test_copies_stay_together() -> None:
    """A held-out image with a copy among the other labels is not held out."""
    dataset = open_dataset(settings_without_validation())
    before = hold_out_labels(dataset, seed=0)
    assert before is not None
    kept, held_out = (before.catalog.rows(split)[0] for split in (Split.LABELED, Split.VAL))
    dataset.store.digest[held_out] = dataset.store.digest[kept]
    after = hold_out_labels(dataset, seed=0)
    assert after is not None
    assert held_out not in after.catalog.rows(Split.VAL)
    assert len(after.catalog.rows(Split.VAL)) == len(before.catalog.rows(Split.VAL)) - 1


def test_too_few_labels_have_no_trial() -> None:
    settings = tiny_settings("soc", data__val_per_class=0, data__labeled_per_class=1)
    assert hold_out_labels(open_dataset(settings), seed=0) is None


def test_result_is_what_the_trial_chose(finished: tuple[Path, dict[str, Any]]) -> None:
    out, result = finished
    trial = json.loads((out / "trial" / "result.json").read_text())
    assert trial["comparison"]["images"] == 24
    assert Comparison.from_dict(result["comparison"]) == Comparison.from_dict(trial["comparison"])
    assert result["weight"] == Comparison.from_dict(trial["comparison"]).best
    chosen = {0.0: "probe", 1.0: "trained"}.get(result["weight"], "interpolated")
    assert result["chosen"] == chosen
    assert Run(out).find_checkpoint() == CHECKPOINT_OF[chosen]
    assert TrainedModel(out, device="cpu").evaluate()["top1"] == pytest.approx(result["top1"])


def test_trial_uses_the_cross_validation_of_its_run_again(finished: tuple[Path, dict[str, Any]]) -> None:
    out, _ = finished
    run, trial = (json.loads((folder / "probe.json").read_text()) for folder in (out, out / "trial"))
    for key in ("strength", "self_trained", "cross_validation"):
        assert trial["probe"][key] == run["probe"][key]
    suspects = [Run(folder).label_check for folder in (out, out / "trial")]
    assert suspects[0] is not None
    assert suspects[1] is not None
    assert sorted(suspects[0].paths) == sorted(suspects[1].paths)


@pytest.mark.parametrize(("weight", "chosen"), [(0.0, "probe"), (0.5, "interpolated"), (1.0, "trained")])
def test_weight_decides_network_and_calibration(
    weight: float, chosen: str, finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe is calibrated by cross-validation, other networks on the images that the trial held out."""
    monkeypatch.setattr(Comparison, "best", property(lambda _: weight))
    shutil.copytree(finished[0], tmp_path / "run", symlinks=True)
    for run in (tmp_path / "run", tmp_path / "run" / "trial"):
        (run / "result.json").unlink()
        (run / "calibration.json").unlink()
    result = fit(settings_without_validation(), tmp_path / "run", resume=True, display=QUIET)
    assert (result["weight"], result["chosen"]) == (weight, chosen)
    model = TrainedModel(tmp_path / "run", device="cpu")
    assert model.checkpoint == CHECKPOINT_OF[chosen]
    assert model.calibration.images == (96 if chosen == "probe" else 24)
    if chosen != "probe":
        assert model.calibration == TrainedModel(tmp_path / "run" / "trial", device="cpu").calibration


def test_frozen_stages_keep_their_weights_and_the_others_change(finished: tuple[Path, dict[str, Any]]) -> None:
    out, _ = finished
    trained = load_file(out / "checkpoints" / "last" / "model.safetensors")
    pretrained = load_file(tiny_teacher())
    frozen = [name for name in trained if name.startswith(("backbone.conv1", "backbone.layer1", "backbone.layer3"))]
    last = [name for name in trained if name.startswith("backbone.layer4") and name.endswith("weight")]
    assert all(torch.equal(trained[name], pretrained[name]) for name in frozen)
    assert not all(torch.equal(trained[name], pretrained[name]) for name in last)


def test_trial_sees_no_held_out_label(tmp_path: Path) -> None:
    """Other labels of the held-out images change the comparison, but not the weights of the trial."""
    settings = settings_without_validation()
    dataset = open_dataset(settings)
    held_out = hold_out_labels(dataset, settings.train.seed)
    assert held_out is not None
    rows = held_out.catalog.rows(Split.VAL)
    label, truth = dataset.catalog.label.copy(), dataset.catalog.truth.copy()
    # Swapping labels within pairs of classes keeps the sizes of the classes, and so the split.
    label[rows] = truth[rows] = label[rows] ^ 1
    poisoned = dataclasses.replace(held_out.catalog, label=label, truth=truth)
    weights, chosen = [], []
    for name, catalog in (("clean", held_out.catalog), ("poisoned", poisoned)):
        dataset.catalog = catalog
        probe = fit(settings, tmp_path / name, dataset=dataset, display=QUIET)["probe"]
        chosen.append((probe["strength"], probe["self_trained"]))
        weights.append(load_file(tmp_path / name / "checkpoints" / "last" / "model.safetensors"))
    assert chosen[0] == chosen[1], "the cross-validation, which uses all labels, must choose the same here"
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_no_trial_is_half_way(tmp_path: Path) -> None:
    result = fit(settings_without_validation(trial=False), tmp_path / "run", display=QUIET)
    assert result["comparison"] is None
    assert (result["weight"], result["chosen"]) == (0.5, "interpolated")
    assert not (tmp_path / "run" / "trial").exists()


@pytest.mark.parametrize(("labels_per_class", "expected"), [(8, 24), (10, 20), (20, 30)])
def test_enough_labels_for_a_calibration_are_held_out(labels_per_class: int, expected: int) -> None:
    dataset = Dataset.open("synthetic", {"genera": 3, "species": 2, "labeled_per_class": labels_per_class,
                                         "val_per_class": 0})  # fmt: skip
    held_out = hold_out_labels(dataset, seed=0)
    assert held_out is not None
    assert len(held_out.catalog.rows(Split.VAL)) == expected >= MIN_IMAGES
    left = np.bincount(held_out.catalog.label[held_out.catalog.rows(Split.LABELED)])
    assert left.min() >= labels_per_class // 2


def test_run_without_validation_images_has_thresholds(tmp_path: Path) -> None:
    """Eight labels in each of six classes: temperature, conformal sets and the energy threshold are cross-fitted."""
    more = {"weights": tiny_teacher(), "weights_head": "fresh", "probe": True, "trial": True, "iterations": 4,
            "data__labeled_per_class": 8, "data__val_per_class": 0, "data__unlabeled_per_class": 3}  # fmt: skip
    result = fit(tiny_settings("supervised", **more), tmp_path / "run", display=Display(quiet=True))
    model = TrainedModel(Run(tmp_path / "run"), device="cpu")
    assert result["images"]["val"] == 0
    assert model.calibration.images == (48 if result["chosen"] == "probe" else 24)
    flags = model.calibration.is_ood(np.array([-1e9, 1e9]), false_alarms=0.05)
    assert flags is not None
    assert flags.tolist() == [False, True]


def test_comparison_within_chance_is_no_progress() -> None:
    comparison = Comparison(24, (50.0, 50.0, 54.2, 54.2, 54.2), (1.0, 0.9, 0.8, 0.9, 1.0))
    text = comparison.describe()
    assert "50.0 % (31.4 to 68.6)" in text
    assert "+4.2 points, within the 95 % margin of chance" in text
