"""Temperature, calibration error, conformal sets and flags against plain versions and known truths."""

from __future__ import annotations

import numpy as np
import pytest

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
def test_what_chance_adds_to_the_error_equals_that_of_drawn_labels(images: int) -> None:
    random = np.random.default_rng(images)
    confidence = random.beta(2, 1.5, images)
    drawn = [confidence_error(confidence, random.random(images) < confidence) for _ in range(300)]
    assert error_by_chance(confidence) == pytest.approx(np.mean(drawn), rel=0.05)
    said = calibrate(*draw(images, 4)).describe()
    assert "% after (perfectly calibrated confidences would show about" in said


def test_a_calibration_of_an_earlier_version_is_understood() -> None:
    kept = calibrate(*draw(100, 5)).as_dict()
    del kept["ece_by_chance"]
    assert Calibration.from_dict(kept).describe().endswith("% after")


def test_scaling_mends_an_overconfident_model() -> None:
    calibration = calibrate(*draw(2000, 2, 3.0))
    assert calibration.ece_before > 0.15
    assert calibration.ece_after < 0.05
    fresh, label = draw(2000, 3, 3.0)
    assert calibration_error(calibration.probabilities(fresh), label) < 0.05


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_conformal_sets_cover_fresh_images_as_often_as_stated(coverage: float) -> None:
    covered = []
    for seed in range(10):
        calibration = calibrate(*draw(300, 10 + seed, 2.0))
        logits, label = draw(500, 100 + seed, 2.0)
        chosen = calibration.conformal_set(calibration.probabilities(logits), coverage)
        assert chosen is not None
        covered.append(chosen[np.arange(len(label)), label].mean())
    assert np.mean(covered) == pytest.approx(coverage, abs=0.02)


def test_a_coverage_that_so_few_images_cannot_promise_gives_all_classes() -> None:
    calibration = calibrate(*draw(25, 4))
    chosen = calibration.conformal_set(softmax(draw(5, 5)[0]), 0.99)
    assert chosen is not None
    assert chosen.all()


def test_flags_raise_no_more_false_alarms_than_stated() -> None:
    calibration = calibrate(*draw(1000, 6))
    ordinary, _ = draw(2000, 7)
    flags = calibration.is_ood(energy_score(ordinary), 0.1)
    assert flags.mean() == pytest.approx(0.1, abs=0.03)
    assert calibration.is_ood(energy_score(0.1 * ordinary), 0.1).mean() > 0.9, "flat logits have a high energy"


def test_too_few_validation_images_promise_nothing() -> None:
    calibration = calibrate(*draw(10, 8))
    assert calibration == Calibration()
    assert calibration.conformal_set(np.eye(3), 0.9) is None
    assert calibration.is_ood(np.zeros(3), 0.1) is None
    assert "not calibrated" in calibration.describe()


def test_it_survives_being_written_down() -> None:
    calibration = calibrate(*draw(40, 9))
    assert Calibration.from_dict(calibration.as_dict()) == calibration


def test_unsure_images_get_larger_sets_and_none_is_empty() -> None:
    calibration = calibrate(*draw(1000, 11))
    logits, _ = draw(500, 12)
    probs = calibration.probabilities(logits)
    chosen = calibration.conformal_set(probs, 0.9)
    assert chosen is not None
    assert chosen[np.arange(500), probs.argmax(1)].all()
    sure, unsure = probs.max(1) > 0.9, probs.max(1) < 0.4
    assert chosen[sure].sum(1).mean() < 2 < chosen[unsure].sum(1).mean()
    assert (np.sort(np.where(chosen, probs, 2), axis=1)[:, 0] >= np.where(chosen, 0, probs).max(1)).all()


def test_a_model_that_errs_on_none_of_few_images_is_not_taken_for_infallible() -> None:
    logits, _ = draw(25, 7)
    calibration = calibrate(logits, logits.argmax(axis=1))
    assert 0.1 < calibration.temperature < 1
    fresh, _ = draw(200, 8)
    assert calibration.probabilities(fresh).max(axis=1).mean() < 0.99


@pytest.mark.parametrize("temperature", [0.0, -3.0, float("nan"), float("inf")])
def test_there_is_no_such_temperature(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Calibration(temperature)
