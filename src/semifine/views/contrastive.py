"""Views for contrastive learning, as MoCo draws them: a crop, a flip, changed colours, and for v2 a blur."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from semifine.views.blur import LARGEST, blur
from semifine.views.crops import draw_crop, render_crop
from semifine.views.images import ImageBatch
from semifine.views.jitter import draw_jitter, render_jitter
from semifine.views.randomness import BatchRandom
from semifine.views.settings import ViewSettings

CROP_SCALE = (0.2, 1.0)
JITTER = 0.4
GREY = 0.2
SIGMA = (0.1, LARGEST)


@dataclass(frozen=True)
class Recipe:
    """What differs between the versions: the range of hues, and the chances of a jitter and of a blur."""

    hue: float
    jitter: float
    blur: float


def contrastive_view(images: ImageBatch, random: BatchRandom, settings: ViewSettings, recipe: Recipe) -> Tensor:
    """(N, 3, size, size) random crops in random colours."""
    crop = draw_crop(random, images.table, replace(settings, crop_scale=CROP_SCALE))
    jitter = draw_jitter(random, JITTER, recipe.hue, recipe.jitter, GREY)
    chance, width = random.uniform(2).T
    sigma = np.where(chance < recipe.blur, SIGMA[0] + width * (SIGMA[1] - SIGMA[0]), 0)
    return blur(render_jitter(render_crop(images, crop, settings.size), jitter), sigma)
