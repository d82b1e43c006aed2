"""Scores of predictions, compared with slow versions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from semifine.inference.calibration import Calibration, calibrate, calibration_error, softmax
from semifine.inference.scores import compute_scores


def test_scores_equal_slow_ones() -> None:
    random = np.random.default_rng(0)
    label = random.permutation(np.repeat([0, 1, 2, 4, 5, 6], [60, 20, 20, 5, 5, 10]))  # no image of class 3
    logits = (random.normal(size=(120, 7)) + 2 * np.eye(7)[label]).astype(np.float32)
    calibration = calibrate(logits[:50], label[:50])
    scores = compute_scores(logits, label, calibration)

    ranking = [np.argsort(-row).tolist() for row in logits]
    first = [ranks[0] == true for ranks, true in zip(ranking, label.tolist(), strict=True)]
    five = [true in ranks[:5] for ranks, true in zip(ranking, label.tolist(), strict=True)]
    assert (scores.images, scores.classes) == (120, 6)
    assert scores.top1.mean == pytest.approx(100 * sum(first) / 120)
    assert scores.top5.mean == pytest.approx(100 * sum(five) / 120)
    for interval, correct in ((scores.top1, first), (scores.top5, five)):
        exact = stats.binomtest(sum(correct), 120).proportion_ci(method="wilson")
        assert (interval.low, interval.high) == pytest.approx((100 * exact.low, 100 * exact.high))
    by_class = [np.mean([hit for hit, true in zip(first, label, strict=True) if true == k]) for k in set(label)]
    assert scores.mean_class_accuracy == pytest.approx(100 * np.mean(by_class))
    assert scores.mean_class_accuracy != pytest.approx(scores.top1.mean)

    probs = softmax(logits, calibration.temperature)
    assert scores.calibration_error == pytest.approx(100 * calibration_error(probs, label))
    sets = calibration.conformal_set(probs, 0.9)
    assert sets is not None
    assert scores.conformal_coverage == pytest.approx(
        100 * np.mean([row[k] for row, k in zip(sets, label, strict=True)])
    )
    assert scores.conformal_set_size == pytest.approx(np.mean([row.sum() for row in sets]))
    assert scores.as_dict()["top1_interval"] == [scores.top1.low, scores.top1.high]


def test_without_calibration_there_are_no_conformal_sets() -> None:
    scores = compute_scores(np.eye(3, dtype=np.float32), np.arange(3), Calibration())
    assert (scores.conformal_coverage, scores.conformal_set_size) == (None, None)
    assert scores.top1.low == pytest.approx(43.85, abs=0.01), "three photos prove little"
