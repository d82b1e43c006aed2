"""What a model says about an image, made from its logits. Needs numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    names, calibration = np.array(knowledge.class_names, dtype=object), knowledge.calibration
    probs = calibration.probabilities(logits)
    order = np.argsort(-probs, axis=1, kind="stable")
    # SoC's clusters are chosen by the confidence that training knew, which no temperature had changed.
    plausible = candidates(softmax(logits), knowledge.clusters)
    conformal = calibration.conformal_set(probs, questions.coverage)
    scores = strangeness(logits)
    flags = calibration.is_strange(scores, questions.false_alarms)
    taxa = questions.taxonomy.name(probs, questions.sure) if questions.taxonomy else [None] * len(probs)

    def listed(image: int, chosen: Chosen) -> list[str]:
        return [str(name) for name in names[order[image][chosen[image][order[image]]]]]

    return [
        Prediction(
            names=[str(name) for name in names[ranking[: questions.top]]],
            probabilities=probs[image][ranking[: questions.top]].tolist(),
            candidates=listed(image, plausible),
            conformal_set=None if conformal is None else listed(image, conformal),
            ood_score=float(scores[image]),
            is_ood=None if flags is None else bool(flags[image]),
            taxon=taxa[image],
        )
        for image, ranking in enumerate(order)
    ]
