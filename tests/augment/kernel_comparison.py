"""The views' Triton sampling against torch on the CPU: compiled on a GPU, or on the CPU by Triton's interpreter."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch

from semifine.augment import randaugment
from semifine.augment.blur import blur
from semifine.augment.color_jitter import draw_jitter, render_jitter
from semifine.augment.crops import draw_crop
from semifine.augment.image_batch import ImageTable, image_batch
from semifine.augment.randaugment import Plan, cutout_edges, draw_plan, make_kernel_params
from semifine.augment.randaugment_ops import CODE, OPERATIONS, RANGES
from semifine.augment.random_numbers import BatchRandom, generator
from semifine.augment.sampling import sample_view
from semifine.augment.settings import AugmentSettings
from semifine.augment.triton import color_jitter as color_jitter_kernels
from semifine.augment.triton import randaugment as randaugment_kernels
from semifine.augment.triton import sampling as sampling_kernels
from tests.augment.view_helpers import CPU, make_batch, make_store, noise_picture, smooth_picture

PICTURES = [
    *(smooth_picture(20 + i, 45 - i, seed=i) for i in range(10)),
    *(noise_picture(*shape) for shape in ((1, 1), (2, 3), (1, 50), (90, 7))),
    np.full((30, 30, 3), 77, dtype=np.uint8),  # a single level: nothing to stretch, nothing to spread
]
SIZES = [(33, 128), (33, 16), (24, 20), (2, 128), (1, 1)]
"""Sizes of views, and of thumbnails, which are cut to them."""


def random_for(seed: int, count: int = len(PICTURES)) -> BatchRandom:
    return BatchRandom(generator(seed, 0, "comparison"), count)


def compare_sampling(device: torch.device) -> None:
    """Weights are computed in another order: equal but for the last bits, in bytes for a level here and there."""
    for oversample in (1, 2):
        images = make_batch(PICTURES, oversample)
        there = image_batch(images.pixels.to(device), images.table, device, oversample)
        crop = draw_crop(random_for(0), images.table, AugmentSettings(size=24))
        params = make_kernel_params(draw_plan(random_for(1), images.table, 3), crop, images.table, 24, 24)
        x_line, y_line, turn, *_ = torch.from_numpy(params.frame).tensor_split([4, 8, 14], dim=1)
        for maps in (None, turn):
            for dtype, tolerance in ((torch.float32, 1e-2), (torch.uint8, 1)):
                expected = sample_view(images, x_line, y_line, maps, 24, dtype)
                arguments = (None if tensor is None else tensor.to(device) for tensor in (x_line, y_line, maps))
                found = sampling_kernels.sample(there, *arguments, 24, dtype)
                assert found.dtype == dtype
                difference = (found.cpu().float() - expected.float()).abs()
                assert difference.max() <= tolerance, (oversample, maps is None, dtype, difference.max())
                assert difference.mean() < 0.01


def compare_single_operations(device: torch.device) -> None:
    for name in OPERATIONS:
        compare_walk([[name, name]] * len(PICTURES), 33, 20, device)


def compare_random_plans(device: torch.device) -> None:
    for seed, (size, thumbnail_size) in enumerate(SIZES):
        for slots in (0, 1, 4):
            names = np.random.default_rng(seed).choice(OPERATIONS, (len(PICTURES), slots))
            compare_walk(names.tolist(), size, thumbnail_size, device)


def compare_walk(names: list[list[str]], size: int, thumbnail_size: int, device: torch.device) -> None:
    """From the same sampled pixels, level for level."""
    store = make_store(PICTURES)
    table = ImageTable.of(store)
    images = image_batch(store.pixels, table, CPU)
    there = image_batch(store.pixels.to(device), table, device)
    rng = np.random.default_rng(size)
    codes = np.array([[CODE[name] for name in row] for row in names], dtype=np.int64)
    ends = np.array(list(RANGES.values()))[codes]
    plan = Plan(codes, rng.uniform(ends[..., 0], ends[..., 1]), cutout_edges(table, *rng.uniform(size=(3, len(codes)))))
    settings = AugmentSettings(size=size, statistics_size=thumbnail_size)
    crop = draw_crop(random_for(size), table, settings)

    def sample_there(_images, x_line, y_line, maps, size, dtype):
        return sampling_kernels.sample(there, x_line.to(device), y_line.to(device), maps.to(device), size, dtype).cpu()

    with patch.object(randaugment, "sample_view", sample_there):
        expected = randaugment.render_plan(images, plan, crop, settings)
    thumbnail_size = min(size, thumbnail_size)
    params = make_kernel_params(plan, crop, table, size, thumbnail_size)
    found = randaugment_kernels.render(there, params, size, thumbnail_size)
    assert found.is_contiguous(memory_format=torch.channels_last)
    different = (found.cpu() != expected).flatten(1).any(dim=1)
    assert not different.any(), [names[i] for i in different.nonzero().flatten().tolist()]


def compare_contrastive(device: torch.device) -> None:
    """Floats: the order of the sums differs."""
    for size in (1, 5, 40):
        pictures = torch.rand((24, 3, size, size), generator=torch.Generator().manual_seed(size)).mul_(255)
        pictures[0] = 7.0  # gray: a hue of nothing
        pictures[1, :, 0] = 255.0
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        for hue, probability, gray in ((0.4, 1.0, 0.2), (0.1, 0.5, 0.5)):
            jitter = draw_jitter(random_for(size, 24), 0.4, hue, probability, gray)
            found = color_jitter_kernels.jitter(pictures.to(device), jitter)
            assert (found.cpu() - render_jitter(pictures, jitter)).abs().max() < 0.01
        sigma = np.where(np.arange(24) % 3 > 0, np.linspace(0.1, 2, 24), 0)
        found = color_jitter_kernels.blur(pictures.to(device), sigma).cpu()
        assert (found - blur(pictures, sigma)).abs().max() < 0.01
        assert torch.equal(found[sigma == 0], pictures[sigma == 0])


COMPARISONS = {
    "sampling": compare_sampling,
    "single operations": compare_single_operations,
    "random plans": compare_random_plans,
    "contrastive": compare_contrastive,
}
