"""What a model says about one image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """Class names, the most probable first, and their probabilities."""

    names: list[str]
    probabilities: list[float]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]
