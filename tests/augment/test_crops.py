"""Random and center crops agree with torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from semifine.augment.crops import Crop, center_crop, crop_and_resize, draw_crop
from semifine.augment.random_numbers import BatchRandom, create_generator
from tests.augment.helpers import make_batch, make_crop, noise_image, smooth_image, stack

SHAPES = [(48, 64), (64, 48), (50, 50), (37, 111), (160, 41)]


def draw(shape: tuple[int, int], count: int, scale: tuple[float, float]) -> Crop:
    table = make_batch([noise_image(*shape)]).table.take(np.zeros(count, dtype=np.int64))
    return draw_crop(BatchRandom(create_generator(0, 0, "test"), count), table, scale)


@pytest.mark.parametrize("size", [32, 57])
def test_crop_equals_torchvision(size: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [noise_image(*shape, seed=i) for i, shape in enumerate(SHAPES)] * 4
    boxes = []
    for array in arrays:
        height, width = array.shape[:2]
        w, h = rng.integers(1, width + 1), rng.integers(1, height + 1)
        boxes.append((rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h))
    flips = rng.random(len(boxes)) < 0.5
    ours = crop_and_resize(make_batch(arrays), make_crop(boxes, flips.tolist()), size)
    for array, (left, top, width, height), flip, view in zip(arrays, boxes, flips, ours, strict=True):
        whole = stack([array]).float()
        theirs = tv.resized_crop(whole, top, left, height, width, [size, size], antialias=False)[0]
        theirs = theirs.flip(-1) if flip else theirs
        assert (view - theirs).abs().max() < 0.05


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000))
def test_drawn_boxes_lie_in_any_image(height: int, width: int, seed: int) -> None:
    table = make_batch([noise_image(height, width)]).table.take(np.zeros(20, dtype=np.int64))
    crop = draw_crop(BatchRandom(create_generator(seed, 0, "test"), 20), table, scale=(0.08, 1.0))
    assert (crop.left >= 0).all()
    assert (crop.top >= 0).all()
    assert (crop.width >= 1).all()
    assert (crop.height >= 1).all()
    assert (crop.left + crop.width <= width).all()
    assert (crop.top + crop.height <= height).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 1.0)])
def test_boxes_are_distributed_as_torchvisions(shape: tuple[int, int], scale: tuple[float, float]) -> None:
    count = 3000
    crop = draw(shape, count, scale=scale)
    torch.manual_seed(0)
    array = torch.empty(3, *shape)
    params = np.array([RandomResizedCrop.get_params(array, scale, (3 / 4, 4 / 3)) for _ in range(count)])
    top, left, height, width = params.T.astype(float)
    pairs = {
        "area": (crop.width * crop.height, width * height),
        "ratio": (np.log(crop.width / crop.height), np.log(width / height)),
        "left": (crop.left, left),
        "top": (crop.top, top),
    }
    for name, (ours, theirs) in pairs.items():
        grid = np.sort(np.concatenate([ours, theirs]))
        ours_below = np.searchsorted(np.sort(ours), grid, side="right") / count
        theirs_below = np.searchsorted(np.sort(theirs), grid, side="right") / count
        # Kolmogorov-Smirnov distance; 0.05 has a chance below 0.1 % for equal distributions.
        assert np.abs(ours_below - theirs_below).max() < 0.05, name
    assert 0.46 < crop.flip.mean() < 0.54


def test_image_without_a_fitting_box_falls_back_to_its_center() -> None:
    crop = draw((20, 400), 5, scale=(1.0, 1.0))
    assert set(crop.height) == {20}
    assert set(crop.width) == {27}
    assert set(crop.left) == {(400 - 27) // 2}
    crop = draw((400, 20), 5, scale=(1.0, 1.0))
    assert set(crop.width) == {20}
    assert set(crop.height) == {27}


@pytest.mark.parametrize("size", [32, 45, 64])
def test_center_crop_equals_torchvision(size: int) -> None:
    arrays = [noise_image(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    images = make_batch(arrays)
    ours = crop_and_resize(images, center_crop(images.table, size), size)
    for array, view in zip(arrays, ours, strict=True):
        theirs = tv.center_crop(tv.resize(stack([array]).float(), [size], antialias=False), [size, size])[0]
        assert (view - theirs).abs().max() < 0.1


def test_center_crop_is_close_to_the_antialiased_one_at_the_usual_shrink() -> None:
    """The store's shorter side is about 8/7 of the view's: antialiasing hardly shows."""
    array = smooth_image(64, 90)
    images = make_batch([array])
    view = crop_and_resize(images, center_crop(images.table, 56), 56)[0]
    theirs = tv.center_crop(tv.resize(stack([array]).float(), [56], antialias=True), [56, 56])[0]
    assert (view - theirs).abs().max() < 2


def test_oversampling_averages_where_images_shrink_much() -> None:
    array = noise_image(120, 120)
    theirs = tv.resize(stack([array]).float(), [30, 30], antialias=True)[0]

    def error(oversample: int) -> float:
        images = make_batch([array], oversample)
        return (crop_and_resize(images, center_crop(images.table, 30), 30)[0] - theirs).abs().mean().item()

    assert error(3) < 0.5 * error(1)


@pytest.mark.parametrize("value", [0, 255])
def test_extreme_values_and_tiny_images_stay_exact(value: int) -> None:
    shapes = [(1, 1), (1, 7), (7, 1), (2, 2), (30, 40)]
    # The neighbors in the buffer have the opposite value: a sample that leaves its image would show.
    arrays = []
    for shape in shapes:
        arrays += [np.full((*shape, 3), value, np.uint8), np.full((5, 5, 3), 255 - value, np.uint8)]
    images = make_batch(arrays)
    boxes = [(0, 0, array.shape[1], array.shape[0]) for array in arrays]
    views = crop_and_resize(images, make_crop(boxes), 16)
    assert (views[::2] == value).all()
    assert (views[1::2] == 255 - value).all()
