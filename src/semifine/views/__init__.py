"""Batched augmentation: random per sample, the same views on CPU and GPU."""

from semifine.views.maker import ViewMaker
from semifine.views.registry import register, view_names
from semifine.views.settings import IMAGENET_MEAN, IMAGENET_STD, ViewSettings
from semifine.views.transfer import upload

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "ViewMaker", "ViewSettings", "register", "upload", "view_names"]
