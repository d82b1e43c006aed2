"""Predictions from logits, the metadata and options that they depend on, and their columns. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semifine.data.boxes import Box
from semifine.errors import UserError
from semifine.inference.calibration import Calibration, ClassClusters, Logits, Mask, candidates, energy_score, softmax
from semifine.inference.taxonomy import Taxon, Taxonomy

Device = Literal["auto", "cpu", "cuda"]
Checkpoint = Literal["auto", "last", "best_val", "probe", "interpolated"]

FORMAT_VERSION = 1
MAX_SIDE = 16_384
"""Side of the largest images that a model can have."""


@dataclass(frozen=True, eq=False)
class ModelMetadata:
    """Everything except the weights that predictions need. Exported files contain it as JSON."""

    class_names: tuple[str, ...]
    image_size: int
    """Side of the square input of the network."""
    stored_side: int
    """Larger images are shrunk to this shorter side before the center crop."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    backbone: str
    """Name of the timm model."""
    backbone_args: str | None = None
    """Further arguments of the timm model, such as ``pad_type=same``."""
    calibration: Calibration = field(default_factory=Calibration)
    clusters: ClassClusters | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns values that JSON can represent."""
        clusters = self.clusters
        return {
            "semifine_model": FORMAT_VERSION,
            "class_names": list(self.class_names),
            "image_size": self.image_size,
            "stored_side": self.stored_side,
            "mean": list(self.mean),
            "std": list(self.std),
            "backbone": self.backbone,
            "backbone_args": self.backbone_args,
            "calibration": self.calibration.as_dict(),
            "clusters": None
            if clusters is None
            else {"assignment": clusters.assignment.tolist(), "confidence": clusters.confidence.tolist()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelMetadata:
        """Restores the metadata from :meth:`as_dict`."""
        if values["semifine_model"] > FORMAT_VERSION:
            raise UserError("The model was exported by a later version of semifine: use that version.")
        clusters, sizes = values["clusters"], (int(values["image_size"]), int(values["stored_side"]))
        if not all(0 < size <= MAX_SIDE for size in sizes):
            raise ValueError(f"images of {sizes[0]} pixels, shrunk to {sizes[1]}, are not possible")
        return cls(
            class_names=tuple(map(str, values["class_names"])),
            image_size=sizes[0],
            stored_side=sizes[1],
            mean=_three_numbers(values["mean"]),
            std=_three_numbers(values["std"]),
            backbone=str(values["backbone"]),
            backbone_args=values.get("backbone_args"),
            calibration=Calibration.from_dict(values["calibration"]),
            clusters=clusters
            and ClassClusters(np.array(clusters["assignment"], np.int32), np.array(clusters["confidence"], np.float64)),
        )


def _three_numbers(values: Sequence[Any]) -> tuple[float, float, float]:
    red, green, blue = map(float, values)
    return red, green, blue


@dataclass(frozen=True)
class PredictOptions:
    """Options of a prediction."""

    top: int = 5
    """Number of classes to name."""
    coverage: float = 0.9
    """Probability that a conformal set contains the true class."""
    false_alarms: float = 0.05
    """Fraction of in-distribution images that may be flagged as out of distribution."""
    taxon_threshold: float = 0.9
    """Lowest probability of a predicted taxon."""
    taxonomy: Taxonomy | None = None

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UserError(f"top must be at least 1, not {self.top}.")
        for name in ("coverage", "false_alarms", "taxon_threshold"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must lie between 0 and 1, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Prediction:
    """Prediction of one image.

    Example:
        >>> names = ["Parus major", "Parus minor"]
        >>> prediction = Prediction(names, [0.8, 0.1], names, conformal_set=names, ood_score=-4.2, is_ood=False)
        >>> prediction.name, prediction.probability
        ('Parus major', 0.8)
    """

    names: list[str]
    """The most probable classes in descending order."""
    probabilities: list[float]
    """Their calibrated probabilities."""
    candidates: list[str]
    """Candidate classes, the most probable first: SoC's cluster of the predicted class."""
    conformal_set: list[str] | None
    """Contains the true class with the requested probability; None without validation images."""
    ood_score: float
    """Energy score of the logits; higher for images unlike the known classes."""
    is_ood: bool | None
    """Whether the score is higher than for nearly all validation images; None without validation images."""
    taxon: Taxon | None = None
    """The lowest taxon that reaches the threshold; None without a taxonomy."""
    box: Box | None = None
    """The box that the photo was cropped to; None for a whole photo."""

    @property
    def name(self) -> str:
        """The most probable class."""
        return self.names[0]

    @property
    def probability(self) -> float:
        """Calibrated probability of the most probable class."""
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
    Column("box_x", "number", lambda prediction: prediction.box and round(prediction.box.x, 6)),
    Column("box_y", "number", lambda prediction: prediction.box and round(prediction.box.y, 6)),
    Column("box_width", "number", lambda prediction: prediction.box and round(prediction.box.width, 6)),
    Column("box_height", "number", lambda prediction: prediction.box and round(prediction.box.height, 6)),
    Column("box_confidence", "number", lambda prediction: prediction.box and prediction.box.confidence),
)
"""The columns of prediction tables after ``path``, in CSV, JSON lines and Parquet."""


def predict_from_logits(logits: Logits, metadata: ModelMetadata, options: PredictOptions) -> list[Prediction]:
    """Returns a prediction for each row of the logits ``(N, K)``.

    Example:
        >>> metadata = ModelMetadata(("wren", "robin"), 224, 256, (0.5,) * 3, (0.2,) * 3, "resnet50")
        >>> predict_from_logits(np.array([[0.0, 3.0]]), metadata, PredictOptions())[0].names
        ['robin', 'wren']
    """
    names, calibration = metadata.class_names, metadata.calibration
    probs = calibration.probabilities(logits)
    order = np.argsort(-probs, axis=1, kind="stable")
    top = order[:, : options.top]
    # SoC selects clusters by uncalibrated confidence, as in training.
    candidate_mask = candidates(softmax(logits), metadata.clusters)
    conformal_mask = calibration.conformal_set(probs, options.coverage)
    scores = energy_score(logits)
    is_ood = calibration.is_ood(scores, options.false_alarms)
    missing = [None] * len(probs)
    columns = zip(
        top.tolist(),
        np.take_along_axis(probs, top, axis=1).tolist(),
        _ranked_names(candidate_mask, order, names),
        missing if conformal_mask is None else _ranked_names(conformal_mask, order, names),
        scores.tolist(),
        missing if is_ood is None else is_ood.tolist(),
        options.taxonomy.predict(probs, options.taxon_threshold) if options.taxonomy else missing,
        strict=True,
    )
    return [Prediction([names[class_id] for class_id in ranking], *rest) for ranking, *rest in columns]


def _ranked_names(mask: Mask, order: NDArray[np.int64], names: Sequence[str]) -> list[list[str]]:
    """Returns the names of the classes in a mask ``(N, K)`` for each image, in the order of all classes ``(N, K)``."""
    images, ranks = np.nonzero(np.take_along_axis(mask, order, axis=1))
    flat = [names[class_id] for class_id in order[images, ranks].tolist()]
    ends = np.cumsum(mask.sum(axis=1)).tolist()
    return [flat[start:end] for start, end in pairwise([0, *ends])]
