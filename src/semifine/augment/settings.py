"""Settings of the augmentation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from semifine.errors import UserError
from semifine.fields import setting

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class AugmentOptions:
    """Settings of the augmentation that users choose; ``TrainSettings`` inherits them.

    Example:
        >>> AugmentOptions(crop_scale=(0.2, 1.0))
        AugmentOptions(crop_scale=(0.2, 1.0))
    """

    crop_scale: tuple[float, float] = setting((0.08, 1.0), "range of the image area that a random crop covers")

    def __post_init__(self) -> None:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise UserError(f"crop_scale must satisfy 0 < low <= high <= 1, not {low},{high}.")


@dataclass(frozen=True)
class AugmentSettings(AugmentOptions):
    """Settings shared by all views of a run.

    ``statistics_size`` is the side of the thumbnail of the whole image that AutoContrast, Equalize and
    Contrast take their statistics from; it is never larger than the view. Equalize divides the number of
    pixels by 255 and drops the rest: a small thumbnail makes that rest felt.
    """

    size: int = 224
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    randaugment_ops: int = 3
    statistics_size: int = 128
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    @classmethod
    def from_options(cls, options: AugmentOptions, **others: Any) -> AugmentSettings:
        """Returns the settings that hold the user's options, and the other values."""
        return cls(**{option.name: getattr(options, option.name) for option in fields(AugmentOptions)}, **others)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1 or self.statistics_size < 1:
            raise UserError(f"size and statistics_size must be positive, not {self.size}, {self.statistics_size}.")
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise UserError(f"crop_ratio must be two rising positive numbers, not {self.crop_ratio}.")
        if not 0 <= self.flip_probability <= 1:
            raise UserError(f"flip_probability must lie in [0, 1], not {self.flip_probability}.")
        if self.randaugment_ops < 0:
            raise UserError(f"randaugment_ops must be 0 or more, not {self.randaugment_ops}.")
        if min(self.std) <= 0:
            raise UserError(f"std must be positive, not {self.std}.")
