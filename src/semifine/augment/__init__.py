"""Batched augmentation: random per sample, the same views on CPU and GPU."""

from semifine.augment.image_batch import upload
from semifine.augment.pipeline import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    AugmentPipeline,
    AugmentSettings,
    register,
    view_names,
)

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "AugmentPipeline", "AugmentSettings", "register", "upload", "view_names"]
