"""The views' Triton sampling against torch on the CPU: compiled on a GPU, or on the CPU by Triton's interpreter."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch

from semifine.augment import randaugment
from semifine.augment.color_jitter import apply_jitter, draw_jitter, gaussian_blur
from semifine.augment.crops import draw_crop
from semifine.augment.image_batch import ImageTable, create_image_batch
from semifine.augment.randaugment import RandAugmentParams, cutout_edges, draw_randaugment
from semifine.augment.randaugment_ops import CODE, OPERATIONS, RANGES
from semifine.augment.random_numbers import BatchRandom, create_generator
from semifine.augment.sampling import sample_view
from semifine.augment.triton import color_jitter as color_jitter_kernels
from semifine.augment.triton import randaugment as randaugment_kernels
from semifine.augment.triton import sampling as sampling_kernels
from tests.augment.helpers import CPU, make_batch, make_store, noise_image, smooth_image

IMAGES = [
    *(smooth_image(20 + i, 45 - i, seed=i) for i in range(10)),
    *(noise_image(*shape) for shape in ((1, 1), (2, 3), (1, 50), (90, 7))),
    np.full((30, 30, 3), 77, dtype=np.uint8),  # a single level: nothing to stretch, nothing to spread
]
SIZES = [(33, 128), (33, 16), (24, 20), (2, 128), (1, 1)]
"""Sizes of views and of references, which are never larger."""


def random_for(seed: int, count: int = len(IMAGES)) -> BatchRandom:
    return BatchRandom(create_generator(seed, 0, "comparison"), count)


def compare_sampling(device: torch.device) -> None:
    """Weights are computed in another order: equal but for the last bits, in bytes for a level here and there."""
    for oversample in (1, 2):
        images = make_batch(IMAGES, oversample)
        there = create_image_batch(images.pixels.to(device), images.table, device, oversample)
        crop = draw_crop(random_for(0), images.table, scale=(0.08, 1.0))
        packed = randaugment_kernels.pack_params(
            draw_randaugment(random_for(1), images.table, 3), crop, images.table, 24, 24
        )
        x_axis, y_axis, turn, *_ = torch.from_numpy(packed.images).tensor_split([4, 8, 14], dim=1)
        for maps in (None, turn):
            for dtype, tolerance in ((torch.float32, 1e-2), (torch.uint8, 1)):
                expected = sample_view(images, x_axis, y_axis, maps, 24, dtype)
                arguments = (None if tensor is None else tensor.to(device) for tensor in (x_axis, y_axis, maps))
                found = sampling_kernels.sample(there, *arguments, 24, dtype)
                assert found.dtype == dtype
                difference = (found.cpu().float() - expected.float()).abs()
                assert difference.max() <= tolerance, (oversample, maps is None, dtype, difference.max())
                assert difference.mean() < 0.01


def compare_single_operations(device: torch.device) -> None:
    for name in OPERATIONS:
        compare_randaugment([[name, name]] * len(IMAGES), 33, 20, device)


def compare_random_operations(device: torch.device) -> None:
    for seed, (size, reference_size) in enumerate(SIZES):
        for steps in (0, 1, 4):
            names = np.random.default_rng(seed).choice(OPERATIONS, (len(IMAGES), steps))
            compare_randaugment(names.tolist(), size, reference_size, device)


def compare_randaugment(names: list[list[str]], size: int, reference_size: int, device: torch.device) -> None:
    """From the same sampled pixels, level for level."""
    store = make_store(IMAGES)
    table = ImageTable.from_store(store)
    images = create_image_batch(store.pixels, table, CPU)
    there = create_image_batch(store.pixels.to(device), table, device)
    rng = np.random.default_rng(size)
    codes = np.array([[CODE[name] for name in row] for row in names], dtype=np.int64)
    ends = np.array(list(RANGES.values()))[codes]
    params = RandAugmentParams(
        codes, rng.uniform(ends[..., 0], ends[..., 1]), cutout_edges(table, *rng.uniform(size=(3, len(codes))))
    )
    crop = draw_crop(random_for(size), table, scale=(0.08, 1.0))

    def sample_there(_images, x_axis, y_axis, maps, size, dtype):
        return sampling_kernels.sample(there, x_axis.to(device), y_axis.to(device), maps.to(device), size, dtype).cpu()

    with patch.object(randaugment, "sample_view", sample_there):
        expected = randaugment.apply_randaugment(images, params, crop, size, reference_size)
    found = randaugment_kernels.apply_randaugment(there, params, crop, size, reference_size)
    assert found.is_contiguous(memory_format=torch.channels_last)
    different = (found.cpu() != expected).flatten(1).any(dim=1)
    assert not different.any(), [names[i] for i in different.nonzero().flatten().tolist()]


def compare_contrastive(device: torch.device) -> None:
    """Floats: the order of the sums differs."""
    for size in (1, 5, 40):
        images = torch.rand((24, 3, size, size), generator=torch.Generator().manual_seed(size)).mul_(255)
        images[0] = 7.0  # gray: a hue of nothing
        images[1, :, 0] = 255.0
        images = images.contiguous(memory_format=torch.channels_last)
        for hue, probability, gray in ((0.4, 1.0, 0.2), (0.1, 0.5, 0.5)):
            jitter = draw_jitter(random_for(size, 24), 0.4, hue, probability, gray)
            found = color_jitter_kernels.apply_jitter(images.to(device), jitter)
            assert (found.cpu() - apply_jitter(images, jitter)).abs().max() < 0.01
        sigma = np.where(np.arange(24) % 3 > 0, np.linspace(0.1, 2, 24), 0)
        found = color_jitter_kernels.gaussian_blur(images.to(device), sigma).cpu()
        assert (found - gaussian_blur(images, sigma)).abs().max() < 0.01
        assert torch.equal(found[sigma == 0], images[sigma == 0])


COMPARISONS = {
    "sampling": compare_sampling,
    "single operations": compare_single_operations,
    "random operations": compare_random_operations,
    "contrastive": compare_contrastive,
}
