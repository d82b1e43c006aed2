"""The views by name: weak, strong, test, and MoCo's two contrastive views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from semifine.augment.blur import LARGEST, blur
from semifine.augment.color_jitter import draw_jitter, render_jitter
from semifine.augment.crops import center_crop, draw_crop, render_crop
from semifine.augment.image_batch import ImageBatch
from semifine.augment.randaugment import draw_plan, render_plan
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.settings import AugmentSettings
from semifine.errors import UserError

View = Callable[[ImageBatch, BatchRandom, AugmentSettings], Tensor]
"""Makes (N, 3, size, size) views of the N images: levels 0..255, uint8 or float32."""

_views: dict[str, View] = {}


def register(name: str) -> Callable[[View], View]:
    """Decorator: makes a view known by ``name``."""

    def add(view: View) -> View:
        assert name not in _views, f"two views are called {name}"
        _views[name] = view
        return view

    return add


def view_names() -> tuple[str, ...]:
    """Names of all registered views."""
    return tuple(sorted(_views))


def find_view(name: str) -> View:
    """The view of a name such as "strong"; "strong:2" is a second, independent view of the kind "strong"."""
    kind = name.partition(":")[0]
    if kind not in _views:
        raise UserError(f"There is no view '{name}'; the views are {', '.join(view_names())}.")
    return _views[kind]


CROP_SCALE = (0.2, 1.0)
JITTER = 0.4
GRAY = 0.2
SIGMA = (0.1, LARGEST)


@dataclass(frozen=True)
class Recipe:
    """What differs between the versions: the range of hues, and the chances of a jitter and of a blur."""

    hue: float
    jitter: float
    blur: float


def contrastive_view(images: ImageBatch, random: BatchRandom, settings: AugmentSettings, recipe: Recipe) -> Tensor:
    """(N, 3, size, size) random crops in random colors."""
    crop = draw_crop(random, images.table, replace(settings, crop_scale=CROP_SCALE))
    jitter = draw_jitter(random, JITTER, recipe.hue, recipe.jitter, GRAY)
    chance, width = random.uniform(2).T
    sigma = np.where(chance < recipe.blur, SIGMA[0] + width * (SIGMA[1] - SIGMA[0]), 0)
    return blur(render_jitter(render_crop(images, crop, settings.size), jitter), sigma)


@register("weak")
def weak(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """(N, 3, size, size) random crops."""
    return render_crop(images, draw_crop(random, images.table, settings), settings.size)


@register("strong")
def strong(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """(N, 3, size, size) random crops of randomly changed originals."""
    crop = draw_crop(random, images.table, settings)
    plan = draw_plan(random, images.table, settings.randaugment_ops)
    return render_plan(images, plan, crop, settings)


@register("test")
def test(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:  # noqa: ARG001
    """(N, 3, size, size) central squares; nothing is random."""
    return render_crop(images, center_crop(images.table, settings.size), settings.size)


MOCO_V1 = Recipe(hue=0.4, jitter=1.0, blur=0.0)


@register("moco_v1")
def moco_v1(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """(N, 3, size, size) random crops in random colors."""
    return contrastive_view(images, random, settings, MOCO_V1)


MOCO_V2 = Recipe(hue=0.1, jitter=0.8, blur=0.5)


@register("moco_v2")
def moco_v2(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """(N, 3, size, size) random crops in random colors."""
    return contrastive_view(images, random, settings, MOCO_V2)
