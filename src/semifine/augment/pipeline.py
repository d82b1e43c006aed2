"""The augmentations by name, and the pipeline that applies them to stored images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semifine.augment.color_jitter import MAX_SIGMA, apply_jitter, draw_jitter, gaussian_blur
from semifine.augment.crops import crop_and_resize, draw_crop
from semifine.augment.image_batch import ImageBatch, ImageStore, ImageTable, IntArray, create_image_batch
from semifine.augment.randaugment import apply_randaugment, draw_randaugment
from semifine.augment.random_numbers import BatchRandom, create_generator
from semifine.augment.sampling import has_triton
from semifine.augment.settings import AugmentSettings, oversampling
from semifine.errors import UserError

Augmentation = Callable[[ImageBatch, BatchRandom, AugmentSettings], Tensor]
"""Returns (N, 3, size, size) views of N images: pixel values in 0..255, uint8 or float32."""

_augmentations: dict[str, Augmentation] = {}


def register_augmentation(name: str) -> Callable[[Augmentation], Augmentation]:
    """Decorator that registers an augmentation by name."""

    def register(augmentation: Augmentation) -> Augmentation:
        assert name not in _augmentations, f"two augmentations are named {name}"
        _augmentations[name] = augmentation
        return augmentation

    return register


def augmentation_names() -> tuple[str, ...]:
    """Names of all registered augmentations.

    Example:
        >>> augmentation_names()
        ('moco_v1', 'moco_v2', 'strong', 'weak')
    """
    return tuple(sorted(_augmentations))


def find_augmentation(view: str) -> Augmentation:
    """Returns the augmentation of a view. "strong:2" is a second, independent view with the augmentation "strong".

    Raises:
        UserError: If there is no such augmentation.
    """
    name = view.partition(":")[0]
    if name not in _augmentations:
        raise UserError(f"Unknown view '{view}'. Valid names: {', '.join(augmentation_names())}.")
    return _augmentations[name]


@register_augmentation("weak")
def weak(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """Random resized crop and horizontal flip."""
    return crop_and_resize(images, draw_crop(random, images.table, settings.crop_scale), settings.size)


@register_augmentation("strong")
def strong(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """RandAugment and Cutout on the whole image, then the weak augmentation."""
    crop = draw_crop(random, images.table, settings.crop_scale)
    params = draw_randaugment(random, images.table)
    if has_triton(images.device):
        from semifine.augment.triton import randaugment as kernels  # optional: imports Triton

        return kernels.apply_randaugment(images, params, crop, settings.size)
    return apply_randaugment(images, params, crop, settings.size)


@dataclass(frozen=True)
class MoCoRecipe:
    """Parameters in which the augmentations of MoCo v1 and v2 differ."""

    hue: float
    jitter_probability: float
    blur_probability: float


MOCO_V1 = MoCoRecipe(hue=0.4, jitter_probability=1.0, blur_probability=0.0)
MOCO_V2 = MoCoRecipe(hue=0.1, jitter_probability=0.8, blur_probability=0.5)
MOCO_CROP_SCALE = (0.2, 1.0)
MIN_SIGMA = 0.1


@register_augmentation("moco_v1")
def moco_v1(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """Crop, flip, color jitter and random grayscale."""
    return _moco(images, random, settings.size, MOCO_V1)


@register_augmentation("moco_v2")
def moco_v2(images: ImageBatch, random: BatchRandom, settings: AugmentSettings) -> Tensor:
    """Crop, flip, color jitter in most images, random grayscale and Gaussian blur."""
    return _moco(images, random, settings.size, MOCO_V2)


def _moco(images: ImageBatch, random: BatchRandom, size: int, recipe: MoCoRecipe) -> Tensor:
    crop = draw_crop(random, images.table, MOCO_CROP_SCALE)
    jitter = draw_jitter(random, 0.4, recipe.hue, recipe.jitter_probability, gray_probability=0.2)
    draw, width = random.uniform(2).T
    sigma = np.where(draw < recipe.blur_probability, MIN_SIGMA + width * (MAX_SIGMA - MIN_SIGMA), 0)
    views = crop_and_resize(images, crop, size)
    if has_triton(images.device):
        from semifine.augment.triton import color_jitter as kernels  # optional: imports Triton

        return kernels.gaussian_blur(kernels.apply_jitter(views, jitter), sigma)
    return gaussian_blur(apply_jitter(views, jitter), sigma)


class AugmentPipeline:
    """Creates normalized views of stored images on one device.

    A view depends on the row, its position in the global batch, the seed, the step, the stream and the name of the
    view. It depends neither on earlier calls nor on the number of ranks. No call waits for a GPU.

    Args:
        store: The images. Pixels in host memory are uploaded for each batch.
        settings: Size, normalization and options.
        seed: Seed of the random numbers.
        device: Device of the views.
        channels_last: Whether views have the memory format ``torch.channels_last``.
    """

    def __init__(
        self,
        store: ImageStore,
        settings: AugmentSettings,
        seed: int,
        device: torch.device | str = "cpu",
        channels_last: bool = True,
    ) -> None:
        self.settings = settings
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", like the device of tensors
        self._seed = seed
        self._pixels = store.pixels
        self._table = ImageTable.from_store(store)
        self._oversample = _oversample(self._table, settings.size)
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        mean, std = (torch.tensor(per_channel).view(1, 3, 1, 1) for per_channel in (settings.mean, settings.std))
        self._scale, self._shift = (1 / (255 * std)).to(self.device), (-mean / std).to(self.device)

    def __call__(
        self,
        view: str,
        rows: IntArray | Tensor,
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> Tensor:
        """Returns one view of each row; see :meth:`augment`."""
        return self.augment(rows, (view,), step, stream, rank, world_size)[view]

    @torch.no_grad()
    def augment(
        self,
        rows: IntArray | Tensor,
        views: Sequence[str],
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> dict[str, Tensor]:
        """Returns several views of the same rows.

        Args:
            rows: (N,) rows of the store for this rank, on the host.
            views: Names of the views. "strong:2" is a second view with the augmentation "strong".
            step: Training step.
            stream: Name of the random stream, for example "labeled".
            rank: Rank of this process.
            world_size: Number of processes.

        Returns:
            (N, 3, size, size) normalized float32 images by name of the view.
        """
        if not views:
            return {}
        augmentations = {view: find_augmentation(view) for view in views}
        host_rows = np.asarray(rows, dtype=np.int64)
        table = self._table.take(host_rows)
        if (table.height == 0).any():
            raise ValueError(f"Row {host_rows[table.height == 0][0]} of the store has no image.")
        images = create_image_batch(self._pixels, table, self.device, self._oversample)
        augmented: dict[str, Tensor] = {}
        for view, augmentation in augmentations.items():
            generator = create_generator(self._seed, step, f"{stream}/{view}")
            random = BatchRandom(generator, len(host_rows), rank, world_size)
            augmented[view] = self._normalize(augmentation(images, random, self.settings))
        return augmented

    def _normalize(self, views: Tensor) -> Tensor:
        normalized = torch.addcmul(self._shift, views.float(), self._scale)
        return normalized.contiguous(memory_format=self._memory_format)


def _oversample(table: ImageTable, size: int) -> int:
    """Number of samples along each axis that are averaged per pixel: one number for all images of the store, so that
    a view does not depend on the other images of its batch."""
    shorter = np.minimum(table.height, table.width)
    return oversampling(float(np.median(shorter[shorter > 0])), size) if shorter.any() else 1
