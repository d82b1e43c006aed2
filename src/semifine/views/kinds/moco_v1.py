"""The view of MoCo v1: always jittered, with hues far apart, never blurred."""

from __future__ import annotations

from torch import Tensor

from semifine.views.contrastive import Recipe, contrastive_view
from semifine.views.images import ImageBatch
from semifine.views.randomness import BatchRandom
from semifine.views.registry import register
from semifine.views.settings import ViewSettings

RECIPE = Recipe(hue=0.4, jitter=1.0, blur=0.0)


@register("moco_v1")
def moco_v1(images: ImageBatch, random: BatchRandom, settings: ViewSettings) -> Tensor:
    """(N, 3, size, size) random crops in random colours."""
    return contrastive_view(images, random, settings, RECIPE)
