"""The weak view: a random-resized crop and a flip."""

from __future__ import annotations

from torch import Tensor

from semifine.views.crops import draw_crop, render_crop
from semifine.views.images import ImageBatch
from semifine.views.randomness import BatchRandom
from semifine.views.registry import register
from semifine.views.settings import ViewSettings


@register("weak")
def weak(images: ImageBatch, random: BatchRandom, settings: ViewSettings) -> Tensor:
    """(N, 3, size, size) random crops."""
    return render_crop(images, draw_crop(random, images.table, settings), settings.size)
