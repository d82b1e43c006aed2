"""The view of testing: the central square of the image, its shorter side resized to the view's size."""

from __future__ import annotations

from torch import Tensor

from semifine.views.crops import centre_crop, render_crop
from semifine.views.images import ImageBatch
from semifine.views.randomness import BatchRandom
from semifine.views.registry import register
from semifine.views.settings import ViewSettings


@register("test")
def test(images: ImageBatch, random: BatchRandom, settings: ViewSettings) -> Tensor:  # noqa: ARG001
    """(N, 3, size, size) central squares; nothing is random."""
    return render_crop(images, centre_crop(images.table, settings.size), settings.size)
