"""How far a model's numbers can be trusted, measured on validation images. Needs numpy alone.

Temperature scaling makes confidences honest, a conformal threshold makes sets of classes that hold the true one as
often as stated, and the scores of validation images say which score is unusual.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.floating[Any]]


Mask = NDArray[np.bool_]


PLAUSIBLE_MASS = 0.9
"""Without clusters: how much probability the candidates hold together."""


@dataclass(frozen=True, eq=False)
class ClassClusters:
    """The clusterings of the classes that SoC learned, from the coarsest to the finest."""

    assignment: NDArray[np.integer[Any]]
    """(R, K) the cluster of each class in each clustering."""
    confidence: NDArray[np.float64]
    """(R,) the confidence from which on each clustering applies, rising."""

    def candidates(self, probs: Probabilities) -> Mask:
        """(N, K) the cluster of each prediction: the surer the model, the finer the clustering, the fewer classes."""
        confidence = probs.max(axis=1).astype(np.float64)
        clustering = np.searchsorted(self.confidence, confidence, side="right") - 1
        clusters = self.assignment[np.maximum(clustering, 0)]
        own = np.take_along_axis(clusters, probs.argmax(axis=1)[:, None], axis=1)
        chosen: Mask = clusters == own
        return chosen


def most_probable(probs: Probabilities, mass: float = PLAUSIBLE_MASS) -> Mask:
    """(N, K) the fewest classes that hold at least ``mass`` of the probability together."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1).astype(np.float64)
    before = np.cumsum(ordered, axis=1) - ordered
    chosen: Mask = np.zeros(probs.shape, np.bool_)
    np.put_along_axis(chosen, order, before < mass, axis=1)
    return chosen


def candidates(probs: Probabilities, clusters: ClassClusters | None) -> Mask:
    """(N, K) the classes worth considering: the cluster of the prediction, or the most probable without clusters."""
    return most_probable(probs) if clusters is None else clusters.candidates(probs)


Logits = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]

MIN_IMAGES = 20
"""With fewer validation images, a temperature would be noise."""
BINS = 15
FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """What validation images taught; without them a temperature of 1, and no promises."""

    temperature: float = 1.0
    images: int = 0
    """Validation images that this was fitted on."""
    ece_before: float | None = None
    """Expected calibration error, 0..1, of the plain probabilities."""
    ece_after: float | None = None
    """The same at the fitted temperature; each fold is measured at the temperature of the others."""
    ece_by_chance: float | None = None
    """What it would be, on as few images, if the confidences were exactly right."""
    nonconformity: tuple[float, ...] = ()
    """Nonconformity of the true class of each validation image, rising."""
    energy_score: tuple[float, ...] = ()
    """Strangeness of each validation image, rising."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"the temperature is {self.temperature}")

    @property
    def is_fitted(self) -> bool:
        return self.images > 0

    def probabilities(self, logits: Logits) -> Scores:
        """(N, K) probabilities at the fitted temperature."""
        return softmax(logits, self.temperature)

    def conformal_set(self, probs: Probabilities, coverage: float) -> Mask | None:
        """(N, K) classes of which the true one is among with probability ``coverage``; None without validation images.

        The bound holds for images like those of validation. The set is the larger the less sure the model is, and the
        most probable class is always in it.
        """
        if not self.is_fitted:
            return None
        chosen: Mask = nonconformity(probs) <= _quantile(self.nonconformity, coverage)
        return chosen

    def is_strange(self, energy_score: Scores, false_alarms: float) -> NDArray[np.bool_] | None:
        """(N,) whether an image is stranger than all but a share ``false_alarms`` of the validation images."""
        return energy_score > _quantile(self.energy_score, 1 - false_alarms) if self.is_fitted else None

    def describe(self) -> str:
        """One sentence for people."""
        if self.ece_before is None or self.ece_after is None:
            return (
                f"not calibrated: the data of the run has fewer than {MIN_IMAGES} validation images, so confidences "
                "are as the network gives them, and no coverage is promised"
            )
        said = (
            f"calibrated on {self.images} validation images: temperature {self.temperature:.2f}, expected calibration "
            f"error {100 * self.ece_before:.1f} % before, {100 * self.ece_after:.1f} % after"
        )
        if self.ece_by_chance is None:  # of a calibration that an earlier version kept
            return said
        return (
            f"{said} (perfectly calibrated confidences would show about {100 * self.ece_by_chance:.1f} % "
            "on so few images)"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        as_tuples = {name: tuple(values[name]) for name in ("nonconformity", "energy_score")}
        return cls(**{**values, **as_tuples})


def calibrate(logits: Logits, label: NDArray[np.int64]) -> Calibration:
    """Everything from the logits (N, K) and true classes (N,) of validation images."""
    if len(label) < MIN_IMAGES:
        return Calibration()
    temperature = fit_temperature(logits, label)
    probs = softmax(logits, temperature)
    return Calibration(
        temperature=temperature,
        images=len(label),
        ece_before=calibration_error(softmax(logits), label),
        ece_after=_error_across_folds(logits, label),
        ece_by_chance=error_by_chance(probs.max(axis=1)),
        nonconformity=_rising(nonconformity(probs)[np.arange(len(label)), label]),
        energy_score=_rising(energy_score(logits)),
    )


def softmax(logits: Logits, temperature: float = 1.0) -> Scores:
    """(N, K) probabilities in float64."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probs: Scores = powers / powers.sum(axis=1, keepdims=True)
    return probs


def fit_temperature(logits: Logits, label: NDArray[np.int64]) -> float:
    """The temperature of the smallest negative log-likelihood, by halving: it is convex in 1/T.

    One image more of any class keeps it finite: without, a model that errs on none of few images would be taken for one
    that never errs.
    """
    logits = logits.astype(np.float64)
    doubt = 1 / (len(label) + 2)
    true_logits = (1 - doubt) * logits[np.arange(len(label)), label] + doubt * logits.mean(axis=1)
    low, high = np.log(0.05), np.log(20.0)
    for _ in range(50):
        middle = (low + high) / 2
        expected = (softmax(logits, float(np.exp(middle))) * logits).sum(axis=1)
        too_sharp = (expected - true_logits).mean() > 0  # the likelihood would rise with the temperature
        low, high = (middle, high) if too_sharp else (low, middle)
    return float(np.exp(middle))


def calibration_error(probs: Probabilities, label: NDArray[np.int64]) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over 15 equal bins of confidence."""
    return confidence_error(probs.max(axis=1), probs.argmax(axis=1) == label)


def confidence_error(confidence: Scores, correct: NDArray[np.bool_]) -> float:
    """The same of (N,) confidences and whether each prediction is right."""
    gap = np.bincount(_bins(confidence), confidence - correct, minlength=BINS)
    return float(np.abs(gap).sum() / len(confidence))


def error_by_chance(confidence: Scores) -> float:
    """The calibration error that (N,) exactly right confidences show on average, since each bin holds few images.

    The number of right predictions in a bin is nearly normal, and the mean of |x| is √(2/π) standard deviations.
    """
    variance = np.bincount(_bins(confidence), confidence * (1 - confidence), minlength=BINS)
    return float(np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / len(confidence))


def _bins(confidence: Scores) -> NDArray[np.int64]:
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)


def nonconformity(probs: Probabilities) -> Scores:
    """(N, K) how much probability the model gives to the classes before each one in its ranking (adaptive sets)."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    before: Scores = np.zeros(probs.shape)
    np.put_along_axis(before, order, np.cumsum(ordered, axis=1) - ordered, axis=1)
    return before.clip(0, 1)


def energy_score(logits: Logits) -> Scores:
    """(N,) the energy -log sum exp of the logits: high where no class speaks up."""
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    energy: Scores = -(largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1)))
    return energy


def _error_across_folds(logits: Logits, label: NDArray[np.int64]) -> float:
    fold = np.random.default_rng(0).permutation(len(label)) % FOLDS
    probs = np.empty(logits.shape)
    for left_out in range(FOLDS):
        inside = fold == left_out
        probs[inside] = softmax(logits[inside], fit_temperature(logits[~inside], label[~inside]))
    return calibration_error(probs, label)


def _quantile(rising: tuple[float, ...], share: float) -> float:
    """The value that a further one does not exceed with probability ``share``; infinite where there are too few."""
    place = int(np.ceil((len(rising) + 1) * share))
    return rising[max(place, 1) - 1] if place <= len(rising) else np.inf


def _rising(values: Scores) -> tuple[float, ...]:
    return tuple(round(float(value), 7) for value in np.sort(values))
