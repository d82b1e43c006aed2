"""The view of MoCo v2: mostly jittered, with hues close together, half of them blurred."""

from __future__ import annotations

from torch import Tensor

from semifine.views.contrastive import Recipe, contrastive_view
from semifine.views.images import ImageBatch
from semifine.views.randomness import BatchRandom
from semifine.views.registry import register
from semifine.views.settings import ViewSettings

RECIPE = Recipe(hue=0.1, jitter=0.8, blur=0.5)


@register("moco_v2")
def moco_v2(images: ImageBatch, random: BatchRandom, settings: ViewSettings) -> Tensor:
    """(N, 3, size, size) random crops in random colours."""
    return contrastive_view(images, random, settings, RECIPE)
