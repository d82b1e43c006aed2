"""Settings of the augmentation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil
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
    """Settings of all views of a run: the user's options, the image size, and the normalization."""

    size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    @classmethod
    def from_options(cls, options: AugmentOptions, **others: Any) -> AugmentSettings:
        """Returns settings with the user's options and the other values."""
        return cls(**{option.name: getattr(options, option.name) for option in fields(AugmentOptions)}, **others)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise UserError(f"size must be positive, not {self.size}.")
        if min(self.std) <= 0:
            raise UserError(f"std must be positive, not {self.std}.")


MAX_SHRINK = 1.5
"""If images are shrunk by more, several samples per pixel are averaged against aliasing."""
MAX_OVERSAMPLE = 4


def oversampling(shorter_side: float, size: int) -> int:
    """Returns the number of samples along each axis that are averaged per pixel if images are resized to ``size``.

    Example:
        >>> oversampling(256, 224), oversampling(1024, 224)
        (1, 4)
    """
    return min(max(1, ceil(shorter_side / size / MAX_SHRINK)), MAX_OVERSAMPLE)
