"""The trial holds out enough labels to calibrate the result, and its comparison is no verdict within chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.inference.calibration import MIN_IMAGES
from semifine.inference.model import TrainedModel
from semifine.runs.run import Run
from semifine.training.fit import fit
from semifine.training.interpolation import Comparison
from semifine.training.progress import Display
from semifine.training.trial import hold_out_labels
from tests.conftest import tiny_settings, tiny_teacher


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
