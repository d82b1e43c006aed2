"""Batched augmentation: random per sample, the same views on CPU and GPU."""

from semifine.augment.image_batch import upload
from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import IMAGENET_MEAN, IMAGENET_STD, AugmentSettings
from semifine.augment.views import register, view_names

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "AugmentPipeline", "AugmentSettings", "register", "upload", "view_names"]
