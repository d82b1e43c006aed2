"""Temperature, calibration error, conformal sets and flags agree with plain versions and known values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import semifine
from semifine.inference.calibration import (
    Calibration,
    calibrate,
    calibration_error,
    confidence_error,
    energy_score,
    error_by_chance,
    fit_temperature,
    softmax,
)
from tests.conftest import FEW_IMAGES

CLASSES = 12


def draw(images: int, seed: int, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are ``sharpness`` times too sharp, and labels drawn from the true probabilities."""
    random = np.random.default_rng(seed)
    logits = 2.5 * random.normal(size=(images, CLASSES))
    label = np.array([random.choice(CLASSES, p=p) for p in softmax(logits)])
    return sharpness * logits, label


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_the_temperature_undoes_a_known_sharpening(sharpness: float) -> None:
    logits, label = draw(4000, 0, sharpness)
    found = fit_temperature(logits, label)
    assert found == pytest.approx(sharpness, rel=0.08)

    def loss(temperature: float) -> float:
        return float(-np.log(softmax(logits, temperature)[np.arange(len(label)), label]).mean())

    assert all(loss(found) <= loss(found * factor) for factor in (0.9, 0.98, 1.02, 1.1))


def test_calibration_error_equals_a_slow_one() -> None:
    logits, label = draw(500, 1, 2.0)
    probs = softmax(logits)
    confidence, correct = probs.max(1), probs.argmax(1) == label
    slow = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            slow += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert calibration_error(probs, label) == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("images", [200, 2000])
def test_the_error_by_chance_agrees_with_simulated_labels(images: int) -> None:
    random = np.random.default_rng(images)
    confidence = random.beta(2, 1.5, images)
    drawn = [confidence_error(confidence, random.random(images) < confidence) for _ in range(300)]
    assert error_by_chance(confidence) == pytest.approx(np.mean(drawn), rel=0.05)
    text = calibrate(*draw(images, 4)).describe()
    assert "% after (perfectly calibrated confidences would show about" in text


def test_scaling_corrects_an_overconfident_model() -> None:
    calibration = calibrate(*draw(2000, 2, 3.0))
    assert calibration.ece_before > 0.15
    assert calibration.ece_after < 0.05
    fresh, label = draw(2000, 3, 3.0)
    assert calibration_error(calibration.probabilities(fresh), label) < 0.05


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_conformal_sets_have_the_stated_coverage_on_new_images(coverage: float) -> None:
    covered = []
    for seed in range(10):
        calibration = calibrate(*draw(300, 10 + seed, 2.0))
        logits, label = draw(500, 100 + seed, 2.0)
        chosen = calibration.conformal_set(calibration.probabilities(logits), coverage)
        assert chosen is not None
        covered.append(chosen[np.arange(len(label)), label].mean())
    assert np.mean(covered) == pytest.approx(coverage, abs=0.02)


def test_a_coverage_too_high_for_few_images_gives_all_classes() -> None:
    calibration = calibrate(*draw(25, 4))
    chosen = calibration.conformal_set(softmax(draw(5, 5)[0]), 0.99)
    assert chosen is not None
    assert chosen.all()


def test_flags_have_the_stated_rate_of_false_alarms() -> None:
    calibration = calibrate(*draw(1000, 6))
    ordinary, _ = draw(2000, 7)
    flags = calibration.is_ood(energy_score(ordinary), 0.1)
    assert flags.mean() == pytest.approx(0.1, abs=0.03)
    assert calibration.is_ood(energy_score(0.1 * ordinary), 0.1).mean() > 0.9, "flat logits have a high energy"


def test_too_few_validation_images_give_no_calibration() -> None:
    calibration = calibrate(*draw(10, 8))
    assert calibration == Calibration()
    assert calibration.conformal_set(np.eye(3), 0.9) is None
    assert calibration.is_ood(np.zeros(3), 0.1) is None
    assert "not calibrated" in calibration.describe()


def test_a_calibration_can_be_written_and_read() -> None:
    calibration = calibrate(*draw(40, 9))
    assert Calibration.from_dict(calibration.as_dict()) == calibration


def test_uncertain_images_get_larger_sets_and_none_is_empty() -> None:
    calibration = calibrate(*draw(1000, 11))
    logits, _ = draw(500, 12)
    probs = calibration.probabilities(logits)
    chosen = calibration.conformal_set(probs, 0.9)
    assert chosen is not None
    assert chosen[np.arange(500), probs.argmax(1)].all()
    certain, uncertain = probs.max(1) > 0.9, probs.max(1) < 0.4
    assert chosen[certain].sum(1).mean() < 2 < chosen[uncertain].sum(1).mean()
    assert (np.sort(np.where(chosen, probs, 2), axis=1)[:, 0] >= np.where(chosen, 0, probs).max(1)).all()


def test_a_model_without_errors_on_few_images_keeps_a_moderate_temperature() -> None:
    logits, _ = draw(25, 7)
    calibration = calibrate(logits, logits.argmax(axis=1))
    assert 0.1 < calibration.temperature < 1
    fresh, _ = draw(200, 8)
    assert calibration.probabilities(fresh).max(axis=1).mean() < 0.99


@pytest.mark.parametrize("temperature", [0.0, -3.0, float("nan"), float("inf")])
def test_invalid_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Calibration(temperature)


DATA = {**FEW_IMAGES, "data.val_per_class": 6}
TRAINING = {"backbone": "test_resnet", "image_size": 32, "batch_size": 4, "mu": 1, "iterations": 2, "loggers": "none"}


def fit_in_python(out: Path) -> None:
    data = {key.removeprefix("data."): value for key, value in DATA.items()}
    semifine.fit({"source": "synthetic", **data}, "fixmatch", out=out, quiet=True, device="cpu", **TRAINING)


def test_stored_images_and_files_give_the_same_calibration(tmp_path: Path) -> None:
    """Training calibrates on the images in the store, a later use on the decoded files."""
    fit_in_python(tmp_path / "run")
    stored = semifine.load(tmp_path / "run", device="cpu").calibration
    (tmp_path / "run" / "calibration.json").unlink()
    model = semifine.load(tmp_path / "run", device="cpu")
    assert not model.run.is_dataset_open
    assert model.calibration.temperature == pytest.approx(stored.temperature, rel=1e-4)
    np.testing.assert_allclose(model.calibration.energy_score, stored.energy_score, atol=1e-4)
