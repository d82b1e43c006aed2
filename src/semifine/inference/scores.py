"""Scores of predictions with known classes: accuracies with intervals, calibration error, conformal sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.inference.calibration import Calibration, Logits, calibration_error, error_by_chance
from semifine.inference.evaluate import accuracy
from semifine.runs.analysis import Interval, wilson_interval

COVERAGE = 0.9
"""Requested coverage of the conformal sets."""


@dataclass(frozen=True)
class Scores:
    """Scores of N images; all shares in percent.

    Args:
        images: N.
        classes: Number of classes with at least one image.
        top1: Top-1 accuracy with its 95 % Wilson interval.
        top5: Top-5 accuracy with its 95 % Wilson interval.
        mean_class_accuracy: Mean over the classes of the top-1 accuracy.
        calibration_error: Expected calibration error of the probabilities that predictions show.
        calibration_error_by_chance: The error that perfectly calibrated probabilities would show on N images.
        conformal_coverage: Images whose 90 % conformal set contains the true class; None without calibration.
        conformal_set_size: Mean number of classes in the conformal sets; None without calibration.
    """

    images: int
    classes: int
    top1: Interval
    top5: Interval
    mean_class_accuracy: float
    calibration_error: float
    calibration_error_by_chance: float
    conformal_coverage: float | None
    conformal_set_size: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``semifine evaluate --json`` prints them."""
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Interval):
                values |= {name: value.mean, f"{name}_interval": [value.low, value.high]}
            else:
                values[name] = value
        return values


def compute_scores(logits: Logits, label: NDArray[np.int64], calibration: Calibration) -> Scores:
    """Returns the scores of logits ``(N, K)`` for true classes ``(N,)``.

    Example:
        >>> logits = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]], np.float32)
        >>> scores = compute_scores(logits, np.array([0, 0, 1, 1]), Calibration())
        >>> scores.top1.mean, scores.mean_class_accuracy, scores.conformal_coverage
        (75.0, 75.0, None)
    """
    percent = accuracy(torch.softmax(torch.from_numpy(logits), dim=1), torch.from_numpy(label))
    probs = calibration.probabilities(logits)
    images_of_class = np.bincount(label)
    correct_of_class = np.bincount(label, logits.argmax(axis=1) == label)
    present = images_of_class > 0
    conformal_set = calibration.conformal_set(probs, COVERAGE)
    coverage = set_size = None
    if conformal_set is not None:
        coverage = 100 * float(conformal_set[np.arange(len(label)), label].mean())
        set_size = float(conformal_set.sum(axis=1).mean())
    return Scores(
        images=len(label),
        classes=int(present.sum()),
        top1=wilson_interval(percent["top1"], len(label)),
        top5=wilson_interval(percent["top5"], len(label)),
        mean_class_accuracy=100 * float((correct_of_class[present] / images_of_class[present]).mean()),
        calibration_error=100 * calibration_error(probs, label),
        calibration_error_by_chance=100 * error_by_chance(probs.max(axis=1)),
        conformal_coverage=coverage,
        conformal_set_size=set_size,
    )
