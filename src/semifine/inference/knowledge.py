"""What is known of a trained model beside its network: enough to make predictions of its logits. Needs numpy alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semifine.errors import UserError
from semifine.inference.calibration import Calibration
from semifine.inference.candidates import ClassClusters

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Knowledge:
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
    def from_dict(cls, values: dict[str, Any]) -> Knowledge:
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
