"""A method against supervised learning on the same images, and no more said than the numbers carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semifine.analysis.intervals import Z_975
from semifine.report.naming import REFERENCES
from semifine.report.scores import Score, find_baseline
from semifine.report.wording import digits_that_tell_apart

MARGINS_TO_BE_SURE = 2.576 / Z_975
"""What chance gives in one of 100 cases, in margins: those that it gives in one of 20."""


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
    def verdict(self) -> Literal["yes", "probably", "open", "probably not", "no"]:
        """Whether the unlabelled images helped; no more than probably where the difference barely exceeds chance."""
        if self.margin is None or abs(self.difference) <= self.margin:
            return "open"
        is_sure = abs(self.difference) > MARGINS_TO_BE_SURE * self.margin
        if self.difference > 0:
            return "yes" if is_sure else "probably"
        return "no" if is_sure else "probably not"

    @property
    def digits(self) -> int:
        """Decimals with which the difference is not told as the margin that it exceeds, or the other way round."""
        return 1 if self.margin is None else digits_that_tell_apart(abs(self.difference), self.margin)


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
    return Z_975 * math.sqrt(from_images + from_seeds)


def _variance(accuracy: float, images: int) -> float:
    """Of an accuracy in percent over so many images.

    Two right and two wrong answers are added (Agresti and Coull): 0 % of 15 images does not mean 0 % of all.
    """
    share = (accuracy * images / 100 + 2) / (images + 4)
    return 100**2 * share * (1 - share) / (images + 4)
