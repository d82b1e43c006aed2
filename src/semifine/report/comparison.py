"""A method against supervised learning on the same images, and no more said than the numbers carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semifine.report.scores import REFERENCES, Score, find_baseline

Z_95 = 1.96


@dataclass(frozen=True)
class Comparison:
    """What the summary and the box "Does the unlabelled data help?" both tell."""

    score: Score
    baseline: Score

    @property
    def difference(self) -> float:
        return self.score.mean - self.baseline.mean

    @property
    def images(self) -> int:
        """How many images both accuracies are of, at least; 0 where that is not known."""
        return min(self.score.images, self.baseline.images)

    @property
    def margin(self) -> float | None:
        """What chance alone may give, in points; None where the number of images is not known."""
        return chance_margin((self.score, self.baseline), self.images) if self.images else None

    @property
    def verdict(self) -> Literal["yes", "no", "open"]:
        """Whether the unlabelled images helped."""
        if self.margin is None or abs(self.difference) <= self.margin:
            return "open"
        return "yes" if self.difference > 0 else "no"


def compare(scores: Sequence[Score]) -> list[Comparison]:
    """Every method that uses unlabelled images against the baseline; none without a baseline."""
    baseline = find_baseline(scores)
    if baseline is None:
        return []
    return [Comparison(score, baseline) for score in scores if score.method not in REFERENCES]


def chance_margin(scores: Sequence[Score], images: int) -> float:
    """Difference in points that equally good methods show in one of 20 cases, on this many images.

    The methods see the same images, so the true margin is a little smaller: this one errs on the careful side.
    How much seeds differ counts where there are several; with one seed each it cannot be known.
    """
    from_images = sum(_variance(score.mean, images) for score in scores)
    from_seeds = sum(score.spread**2 / len(score.values) for score in scores)
    return Z_95 * math.sqrt(from_images + from_seeds)


def _variance(accuracy: float, images: int) -> float:
    """Of an accuracy in percent over so many images.

    Two right and two wrong answers are added (Agresti and Coull): 0 % of 15 images does not mean 0 % of all.
    """
    share = (accuracy * images / 100 + 2) / (images + 4)
    return 100**2 * share * (1 - share) / (images + 4)
