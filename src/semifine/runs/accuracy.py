"""The accuracy of a finished run with its 95 % interval, and whether two accuracies differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semifine.runs.analysis import Z_975, Interval, wilson_interval


@dataclass(frozen=True)
class Accuracy:
    """A top-1 accuracy and the images that it was measured on.

    Args:
        split: ``test``, ``val``, ``held_out`` for labels that the trial held out, or ``cross_validation``.
        top1: Percent.
        images: Number of images; 0 if the run did not record it.

    Example:
        >>> Accuracy("test", 75.0, 40).describe()
        '75.0 % (95 % interval 59.8 to 85.8, 40 images)'
        >>> Accuracy("test", 75.0, 0).describe()
        '75.0 % (number of images unknown)'
    """

    split: str
    top1: float
    images: int

    @property
    def interval(self) -> Interval | None:
        """The 95 % Wilson interval; None if the number of images is unknown."""
        return wilson_interval(self.top1, self.images) if self.images else None

    @property
    def title(self) -> str:
        """The kind of images in words, such as ``validation``."""
        return TITLES[self.split]

    def describe(self) -> str:
        """Returns the accuracy with its interval."""
        return describe_percent(self.top1, self.images)


TITLES = {
    "test": "test",
    "val": "validation",
    "held_out": "held-out labels",
    "cross_validation": "cross-validation",
}


def describe_percent(percent: float, images: int) -> str:
    """Returns an accuracy in percent with its 95 % interval.

    Example:
        >>> describe_percent(100.0, 60)
        '100.0 % (95 % interval 94.0 to 100.0, 60 images)'
    """
    if not images:
        return f"{percent:.1f} % (number of images unknown)"
    interval = wilson_interval(percent, images)
    noun = "image" if images == 1 else "images"
    return f"{percent:.1f} % (95 % interval {interval.low:.1f} to {interval.high:.1f}, {images} {noun})"


def final_accuracy(result: Mapping[str, Any]) -> Accuracy | None:
    """Returns the top-1 accuracy of the resulting network, on the most independent images of the run.

    These are the test images, else the validation images, else the labels that the trial held out, else the labeled
    images in the cross-validation of the probe. None if nothing was measured.

    Args:
        result: The content of ``result.json``.

    Example:
        >>> final_accuracy({"top1": None, "val": {"top1": 81.5}, "images": {"val": 27}})
        Accuracy(split='val', top1=81.5, images=27)
    """
    images = result.get("images") or {}
    if result.get("top1") is not None:
        return Accuracy("test", float(result["top1"]), int(images.get("test") or 0))
    if result.get("val"):
        return Accuracy("val", float(result["val"]["top1"]), int(images.get("val") or 0))
    comparison = result.get("comparison") or {}
    chosen = at_weight(comparison.get("top1") or [], result.get("weight"))
    if chosen is not None and result.get("chosen") != "probe":
        return Accuracy("held_out", float(chosen), int(comparison.get("images") or 0))
    return probe_accuracy(result) if result.get("chosen") == "probe" else None


def at_weight(values: Sequence[float], weight: float | None) -> float | None:
    """Returns the value of a comparison at a weight of the trained network; the weights are evenly spaced from 0 to 1.

    Example:
        >>> at_weight([50.0, 60.0, 70.0], 0.5), at_weight([], 0.5)
        (60.0, None)
    """
    if weight is None or not values:
        return None
    return values[round(min(max(weight, 0.0), 1.0) * (len(values) - 1))]


def describe_result(result: Mapping[str, Any]) -> str:
    """Returns the accuracy of the resulting network with its 95 % interval; empty if nothing was measured.

    Args:
        result: The content of ``result.json``.

    Example:
        >>> describe_result({"top1": 85.0, "top5": 100.0, "images": {"test": 60}})
        'test top-1 85.0 % (95 % interval 73.9 to 91.9, 60 images), top-5 100.0 % (94.0 to 100.0)'
    """
    accuracy = final_accuracy(result)
    if accuracy is None:
        return ""
    text = f"{accuracy.title} top-1 {accuracy.describe()}"
    if accuracy.split != "test" or result.get("top5") is None:
        return text
    return f"{text}, top-5 {short_interval(result['top5'], accuracy.images)}"


def short_interval(percent: float, images: int) -> str:
    """Returns an accuracy in percent with its 95 % interval in parentheses, without explanation.

    Example:
        >>> short_interval(85.0, 60), short_interval(85.0, 0)
        ('85.0 % (73.9 to 91.9)', '85.0 %')
    """
    interval = wilson_interval(percent, images) if images else None
    return f"{percent:.1f} %" + (f" ({interval.low:.1f} to {interval.high:.1f})" if interval else "")


def probe_accuracy(result: Mapping[str, Any]) -> Accuracy | None:
    """Returns the accuracy of the probe on labeled images in cross-validation; None if it was not measured."""
    found = (result.get("probe") or {}).get("cross_validation")
    return Accuracy("cross_validation", float(found["top1"]), int(found["images"])) if found else None


def difference_margin(first: float, second: float, images: int) -> float:
    """Returns the difference in points that two equally good networks exceed with a probability of 5 %.

    Both networks may see the same images, so the true margin is slightly smaller.

    Args:
        first: Accuracy in percent.
        second: Accuracy in percent.
        images: Number of images that each accuracy was measured on.

    Example:
        >>> round(difference_margin(60.0, 61.7, 60), 1)
        17.0
    """
    return Z_975 * math.sqrt(accuracy_variance(first, images) + accuracy_variance(second, images))


def describe_difference(before: float, after: float, images: int) -> str:
    """States whether an accuracy changed by more than chance.

    Example:
        >>> describe_difference(60.0, 61.7, 60)
        '+1.7 points, within the 95 % margin of chance (±17.0)'
        >>> describe_difference(40.0, 80.0, 60)
        '+40.0 points, more than the 95 % margin of chance (±15.7)'
    """
    difference = after - before
    if not images:
        return f"{difference:+.1f} points; the number of images is unknown, so the margin is unknown, too"
    margin = difference_margin(before, after, images)
    place = "within" if abs(difference) <= margin else "more than"
    return f"{difference:+.1f} points, {place} the 95 % margin of chance (±{margin:.1f})"


def accuracy_variance(percent: float, images: int) -> float:
    """Returns the variance of an accuracy in percent.

    Adds two correct and two wrong predictions (Agresti and Coull), because 0 % of 15 images does not mean 0 % of all.
    """
    share = (percent * images / 100 + 2) / (images + 4)
    return 100**2 * share * (1 - share) / (images + 4)
