"""Calibration on held-out images: temperature scaling, conformal sets and out-of-distribution flags.

The images come from the validation split, from the labels that a trial held out, or from the cross-validation of a
probe.

Needs NumPy only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.floating[Any]]
Logits = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]

CANDIDATE_MASS = 0.9
"""Total probability of the candidates if the method learned no clusters."""


@dataclass(frozen=True, eq=False)
class ClassClusters:
    """The clusterings of the classes that SoC learned, from the coarsest to the finest.

    Args:
        assignment: Cluster of each class in each of the R clusterings ``(R, K)``.
        confidence: Lowest confidence of each clustering in ascending order ``(R,)``.

    Example:
        >>> clusters = ClassClusters(np.array([[0, 0, 1], [0, 1, 2]]), np.array([0.0, 0.8]))
        >>> clusters.candidates(np.array([[0.6, 0.3, 0.1], [0.9, 0.1, 0.0]])).astype(int)
        array([[1, 1, 0],
               [1, 0, 0]])
    """

    assignment: NDArray[np.integer[Any]]
    confidence: NDArray[np.float64]

    def candidates(self, probs: Probabilities) -> Mask:
        """Returns the classes in the cluster of each prediction ``(N, K)``; a higher confidence has fewer classes."""
        confidence = probs.max(axis=1).astype(np.float64)
        clustering = np.searchsorted(self.confidence, confidence, side="right") - 1
        clusters = self.assignment[np.maximum(clustering, 0)]
        predicted = np.take_along_axis(clusters, probs.argmax(axis=1)[:, None], axis=1)
        mask: Mask = clusters == predicted
        return mask


def most_probable(probs: Probabilities, mass: float = CANDIDATE_MASS) -> Mask:
    """Returns the smallest sets of classes with a total probability of at least ``mass`` ``(N, K)``.

    Example:
        >>> most_probable(np.array([[0.1, 0.7, 0.2]]), mass=0.8)
        array([[False,  True,  True]])
    """
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1).astype(np.float64)
    before = np.cumsum(ordered, axis=1) - ordered
    mask: Mask = np.zeros(probs.shape, np.bool_)
    np.put_along_axis(mask, order, before < mass, axis=1)
    return mask


def candidates(probs: Probabilities, clusters: ClassClusters | None) -> Mask:
    """Returns the candidate classes ``(N, K)``: the cluster of the prediction, or the most probable classes."""
    return most_probable(probs) if clusters is None else clusters.candidates(probs)


MIN_IMAGES = 20
"""A temperature fitted on fewer images would be noise."""
NUM_BINS = 15
NUM_FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """Temperature and scores of the validation images.

    Without validation images, the temperature is 1, and there are no conformal sets and no out-of-distribution flags.
    """

    temperature: float = 1.0
    images: int = 0
    """Number of validation images."""
    ece_before: float | None = None
    """Expected calibration error of the uncalibrated probabilities, 0 to 1."""
    ece_after: float | None = None
    """Expected calibration error at the fitted temperature, cross-fitted."""
    ece_by_chance: float | None = None
    """Expected calibration error that perfectly calibrated confidences show on as few images."""
    nonconformity: tuple[float, ...] = ()
    """Nonconformity score of the true class of each validation image, in ascending order."""
    energy_score: tuple[float, ...] = ()
    """Energy score of each validation image, in ascending order."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"the temperature is {self.temperature}")

    @property
    def is_fitted(self) -> bool:
        return self.images > 0

    def probabilities(self, logits: Logits) -> Scores:
        """Returns probabilities at the fitted temperature ``(N, K)``."""
        return softmax(logits, self.temperature)

    def conformal_set(self, probs: Probabilities, coverage: float) -> Mask | None:
        """Returns sets of classes that contain the true class with probability ``coverage``.

        The coverage holds on average over images from the distribution of the validation images. The most probable
        class is always in the set.

        Args:
            probs: Calibrated probabilities ``(N, K)``.
            coverage: Probability that a set contains the true class.

        Returns:
            A mask ``(N, K)``, or None without validation images.
        """
        if not self.is_fitted:
            return None
        mask: Mask = nonconformity(probs) <= _quantile(self.nonconformity, coverage)
        return mask

    def is_ood(self, energy_score: Scores, false_alarms: float) -> Mask | None:
        """Flags images with a higher energy score than all but a fraction ``false_alarms`` of the validation images.

        Returns:
            Flags ``(N,)``, or None without validation images.
        """
        return energy_score > _quantile(self.energy_score, 1 - false_alarms) if self.is_fitted else None

    def describe(self) -> str:
        """Describes the calibration in one sentence."""
        if self.ece_before is None or self.ece_after is None or self.ece_by_chance is None:
            return (
                f"not calibrated: the data of the run has fewer than {MIN_IMAGES} held-out images, so confidences "
                "are the network's own, and there are no conformal sets"
            )
        return (
            f"calibrated on {self.images} held-out images: temperature {self.temperature:.2f}, expected calibration "
            f"error {100 * self.ece_before:.1f} % before, {100 * self.ece_after:.1f} % after (perfectly calibrated "
            f"confidences would show about {100 * self.ece_by_chance:.1f} % on so few images)"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        as_tuples = {name: tuple(map(float, values[name])) for name in ("nonconformity", "energy_score")}
        scores = {name: None if value is None else float(value) for name, value in values.items() if "ece_" in name}
        found = cls(**{**values, "temperature": float(values["temperature"]), **scores, **as_tuples})
        if {found.images, len(found.nonconformity)} != {len(found.energy_score)}:
            raise ValueError("the number of images differs from the number of scores")
        return found


def calibrate(logits: Logits, label: NDArray[np.int64]) -> Calibration:
    """Fits the calibration on validation images.

    Args:
        logits: Logits of the validation images ``(N, K)``.
        label: True classes ``(N,)``.

    Example:
        >>> logits = np.random.default_rng(0).normal(size=(50, 3))
        >>> calibrate(logits, logits.argmax(1)).images
        50
    """
    if len(label) < MIN_IMAGES:
        return Calibration()
    temperature = fit_temperature(logits, label)
    probs = softmax(logits, temperature)
    return Calibration(
        temperature=temperature,
        images=len(label),
        ece_before=calibration_error(softmax(logits), label),
        ece_after=_cross_fitted_error(logits, label),
        ece_by_chance=error_by_chance(probs.max(axis=1)),
        nonconformity=_sorted(nonconformity(probs)[np.arange(len(label)), label]),
        energy_score=_sorted(energy_score(logits)),
    )


def softmax(logits: Logits, temperature: float = 1.0) -> Scores:
    """Returns probabilities ``(N, K)`` in float64.

    Example:
        >>> softmax(np.array([[0.0, 0.0]]))
        array([[0.5, 0.5]])
    """
    scaled = logits.astype(np.float64) / temperature
    exp = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probs: Scores = exp / exp.sum(axis=1, keepdims=True)
    return probs


def fit_temperature(logits: Logits, label: NDArray[np.int64]) -> float:
    """Minimizes the negative log-likelihood, which is convex in 1/T, by bisection.

    One virtual image of any class is added. Without it, a model that makes no error on a few images would get a
    temperature near 0.
    """
    logits = logits.astype(np.float64)
    smoothing = 1 / (len(label) + 2)
    true_logits = (1 - smoothing) * logits[np.arange(len(label)), label] + smoothing * logits.mean(axis=1)
    low, high = np.log(0.05), np.log(20.0)
    for _ in range(50):
        middle = (low + high) / 2
        expected = (softmax(logits, float(np.exp(middle))) * logits).sum(axis=1)
        too_sharp = (expected - true_logits).mean() > 0  # a higher temperature has a higher likelihood
        low, high = (middle, high) if too_sharp else (low, middle)
    return float(np.exp(middle))


def calibration_error(probs: Probabilities, label: NDArray[np.int64]) -> float:
    """Returns the expected calibration error: the mean gap between confidence and accuracy in 15 equal bins."""
    return confidence_error(probs.max(axis=1), probs.argmax(axis=1) == label)


def confidence_error(confidence: Scores, correct: NDArray[np.bool_]) -> float:
    """Returns the expected calibration error of confidences ``(N,)`` whose predictions are correct or not ``(N,)``.

    Example:
        >>> confidence_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
        0.0
    """
    gap = np.bincount(_bins(confidence), confidence - correct, minlength=NUM_BINS)
    return float(np.abs(gap).sum() / len(confidence))


def error_by_chance(confidence: Scores) -> float:
    """Returns the mean calibration error of perfectly calibrated confidences ``(N,)``.

    It is not 0, because each bin contains few images. The number of correct predictions in a bin is nearly normal, and
    the mean of |x| is √(2/π) standard deviations.
    """
    variance = np.bincount(_bins(confidence), confidence * (1 - confidence), minlength=NUM_BINS)
    return float(np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / len(confidence))


def _bins(confidence: Scores) -> NDArray[np.int64]:
    return np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)


def nonconformity(probs: Probabilities) -> Scores:
    """Returns the total probability of all classes that rank before each class ``(N, K)``, as for adaptive sets."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    before: Scores = np.zeros(probs.shape)
    np.put_along_axis(before, order, np.cumsum(ordered, axis=1) - ordered, axis=1)
    return before.clip(0, 1)


def energy_score(logits: Logits) -> Scores:
    """Returns the energy score ``(N,)``, -log sum exp of the logits. It is high if no class has a high logit."""
    logits = logits.astype(np.float64)
    largest = logits.max(axis=1)
    energy: Scores = -(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)))
    return energy


def _cross_fitted_error(logits: Logits, label: NDArray[np.int64]) -> float:
    """Measures the calibration error of each fold at the temperature fitted on the other folds."""
    fold = np.random.default_rng(0).permutation(len(label)) % NUM_FOLDS
    probs = np.empty(logits.shape)
    for held_out in range(NUM_FOLDS):
        inside = fold == held_out
        probs[inside] = softmax(logits[inside], fit_temperature(logits[~inside], label[~inside]))
    return calibration_error(probs, label)


def _quantile(ascending: tuple[float, ...], probability: float) -> float:
    """Returns the value that a new score does not exceed with this probability; infinity if there are too few."""
    rank = int(np.ceil((len(ascending) + 1) * probability))
    return ascending[max(rank, 1) - 1] if rank <= len(ascending) else np.inf


def _sorted(values: Scores) -> tuple[float, ...]:
    return tuple(round(float(value), 7) for value in np.sort(values))
