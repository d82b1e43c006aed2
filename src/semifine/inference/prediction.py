"""Predictions made from logits: candidates, confidence, and the metadata they need. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.inference.calibration import Calibration, ClassClusters, Logits, Mask, candidates, energy_score, softmax
from semifine.inference.taxonomy import Taxon, Taxonomy

FORMAT = 1


@dataclass(frozen=True, eq=False)
class ModelMetadata:
    """Travels with an exported model as JSON."""

    class_names: tuple[str, ...]
    image_size: int
    """Side of the square that the network sees."""
    stored_side: int
    """Shorter side to which images are shrunk before the square is cut out."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    backbone: str
    calibration: Calibration = field(default_factory=Calibration)
    clusters: ClassClusters | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        clusters = self.clusters
        return {
            "semifine_model": FORMAT,
            "class_names": list(self.class_names),
            "image_size": self.image_size,
            "stored_side": self.stored_side,
            "mean": list(self.mean),
            "std": list(self.std),
            "backbone": self.backbone,
            "calibration": self.calibration.as_dict(),
            "clusters": None
            if clusters is None
            else {"assignment": clusters.assignment.tolist(), "confidence": clusters.confidence.tolist()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelMetadata:
        if values["semifine_model"] > FORMAT:
            raise UserError("The model was exported by a later version of semifine: use that one.")
        clusters = values["clusters"]
        return cls(
            class_names=tuple(values["class_names"]),
            image_size=values["image_size"],
            stored_side=values["stored_side"],
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
            backbone=values["backbone"],
            calibration=Calibration.from_dict(values["calibration"]),
            clusters=clusters
            and ClassClusters(np.array(clusters["assignment"], np.int32), np.array(clusters["confidence"], np.float64)),
        )


@dataclass(frozen=True)
class PredictOptions:
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
    """Classes worth considering: the cluster that SoC learned, the smaller the surer the model; by probability."""
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


@dataclass(frozen=True)
class Column:
    """A column of a prediction table."""

    name: str
    kind: Literal["text", "texts", "number", "numbers", "flag"]
    value: Callable[[Prediction], Any]
    """Reads the value from a prediction; None leaves the cell empty."""


COLUMNS = (
    Column("name", "text", lambda prediction: prediction.name),
    Column("probability", "number", lambda prediction: round(prediction.probability, 6)),
    Column("names", "texts", lambda prediction: prediction.names),
    Column("probabilities", "numbers", lambda prediction: [round(value, 6) for value in prediction.probabilities]),
    Column("candidates", "texts", lambda prediction: prediction.candidates),
    Column("conformal_set", "texts", lambda prediction: prediction.conformal_set),
    Column("ood_score", "number", lambda prediction: round(prediction.ood_score, 4)),
    Column("is_ood", "flag", lambda prediction: prediction.is_ood),
    Column("taxon", "text", lambda prediction: prediction.taxon and prediction.taxon.name),
    Column("rank", "text", lambda prediction: prediction.taxon and prediction.taxon.rank),
    Column(
        "taxon_probability", "number", lambda prediction: prediction.taxon and round(prediction.taxon.probability, 6)
    ),
)
"""The columns of prediction tables after ``path``, in CSV, JSON lines and Parquet."""


def predict_from_logits(logits: Logits, metadata: ModelMetadata, questions: PredictOptions) -> list[Prediction]:
    """One prediction for each row of (N, K) logits."""
    names, calibration = metadata.class_names, metadata.calibration
    probs = calibration.probabilities(logits)
    order = np.argsort(-probs, axis=1, kind="stable")
    first = order[:, : questions.top]
    # SoC's clusters are chosen by the confidence that training knew, which no temperature had changed.
    plausible = _listed(candidates(softmax(logits), metadata.clusters), order, names)
    conformal = calibration.conformal_set(probs, questions.coverage)
    scores = energy_score(logits)
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


def _listed(chosen: Mask, order: NDArray[np.int64], names: Sequence[str]) -> list[list[str]]:
    """(N, K) which classes -> their names for each image, in the given order of all classes."""
    images, ranks = np.nonzero(np.take_along_axis(chosen, order, axis=1))
    listed = [names[place] for place in order[images, ranks].tolist()]
    ends = np.cumsum(chosen.sum(axis=1)).tolist()
    return [listed[start:end] for start, end in pairwise([0, *ends])]
