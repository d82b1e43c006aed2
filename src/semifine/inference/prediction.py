"""What a model says about an image, made from its logits. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.inference.calibration import Logits, softmax, strangeness
from semifine.inference.candidates import Chosen, candidates
from semifine.inference.knowledge import Knowledge
from semifine.inference.taxonomy import Taxon, Taxonomy


@dataclass(frozen=True)
class Questions:
    """What a prediction is to say."""

    top: int = 5
    coverage: float = 0.9
    """How often the conformal set holds the true class."""
    false_alarms: float = 0.05
    """The share of ordinary images that are flagged as strange."""
    sure: float = 0.9
    """The probability from which on a taxon is safe to name."""
    taxonomy: Taxonomy | None = None

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UserError(f"top must be at least 1, not {self.top}.")
        for name in ("coverage", "false_alarms", "sure"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must lie between 0 and 1, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Prediction:
    """Class names, the most probable first, with calibrated probabilities, and what else is worth knowing."""

    names: list[str]
    probabilities: list[float]
    candidates: list[str]
    """Classes worth considering: the cluster that SoC learnt, the smaller the surer the model; by probability."""
    conformal_set: list[str] | None
    """Holds the true class as often as asked for; None for a model without validation images."""
    ood_score: float
    """The higher, the less the image is like those of the known classes."""
    is_ood: bool | None
    """Whether it is higher than that of nearly all validation images; None without them."""
    taxon: Taxon | None = None
    """The lowest taxon that is safe to name, where a taxonomy is given."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


def predict_from_logits(logits: Logits, knowledge: Knowledge, questions: Questions) -> list[Prediction]:
    """One prediction for each row of (N, K) logits."""
    names, calibration = knowledge.class_names, knowledge.calibration
    probs = calibration.probabilities(logits)
    order = np.argsort(-probs, axis=1, kind="stable")
    first = order[:, : questions.top]
    # SoC's clusters are chosen by the confidence that training knew, which no temperature had changed.
    plausible = _listed(candidates(softmax(logits), knowledge.clusters), order, names)
    conformal = calibration.conformal_set(probs, questions.coverage)
    scores = strangeness(logits)
    flags = calibration.is_strange(scores, questions.false_alarms)
    unknown = [None] * len(probs)
    columns = zip(
        first.tolist(),
        np.take_along_axis(probs, first, axis=1).tolist(),
        plausible,
        unknown if conformal is None else _listed(conformal, order, names),
        scores.tolist(),
        unknown if flags is None else flags.tolist(),
        questions.taxonomy.name(probs, questions.sure) if questions.taxonomy else unknown,
        strict=True,
    )
    return [Prediction([names[place] for place in ranking], *rest) for ranking, *rest in columns]


def _listed(chosen: Chosen, order: NDArray[np.int64], names: Sequence[str]) -> list[list[str]]:
    """(N, K) which classes -> their names for each image, in the given order of all classes."""
    images, ranks = np.nonzero(np.take_along_axis(chosen, order, axis=1))
    listed = [names[place] for place in order[images, ranks].tolist()]
    ends = np.cumsum(chosen.sum(axis=1)).tolist()
    return [listed[start:end] for start, end in pairwise([0, *ends])]
