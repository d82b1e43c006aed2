"""The strong view: RandAugment and cutout on the original, then a crop and a flip of its own."""

from __future__ import annotations

from torch import Tensor

from semifine.views.crops import draw_crop
from semifine.views.images import ImageBatch
from semifine.views.randaugment import draw_plan
from semifine.views.randomness import BatchRandom
from semifine.views.registry import register
from semifine.views.settings import ViewSettings
from semifine.views.walk import render_plan


@register("strong")
def strong(images: ImageBatch, random: BatchRandom, settings: ViewSettings) -> Tensor:
    """(N, 3, size, size) random crops of randomly changed originals."""
    crop = draw_crop(random, images.table, settings)
    plan = draw_plan(random, images.table, settings.randaugment_ops)
    return render_plan(images, plan, crop, settings)
