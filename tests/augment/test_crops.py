"""The weak and the test view against torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from semifine.augment.crops import Crop, center_crop, draw_crop, render_crop
from semifine.augment.random_numbers import BatchRandom, generator
from semifine.augment.settings import AugmentSettings
from tests.augment.view_helpers import make_batch, make_crop, noise_picture, smooth_picture, stack

SHAPES = [(48, 64), (64, 48), (50, 50), (37, 111), (160, 41)]


def draw(shape: tuple[int, int], count: int, **more: object) -> Crop:
    table = make_batch([noise_picture(*shape)]).table.take(np.zeros(count, dtype=np.int64))
    return draw_crop(BatchRandom(generator(0, 0, "test"), count), table, AugmentSettings(**more))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [32, 57])
def test_crop_equals_torchvision(size: int) -> None:
    rng = np.random.default_rng(0)
    pictures = [noise_picture(*shape, seed=i) for i, shape in enumerate(SHAPES)] * 4
    boxes = []
    for picture in pictures:
        height, width = picture.shape[:2]
        w, h = rng.integers(1, width + 1), rng.integers(1, height + 1)
        boxes.append((rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h))
    flips = rng.random(len(boxes)) < 0.5
    ours = render_crop(make_batch(pictures), make_crop(boxes, flips.tolist()), size)
    for picture, (left, top, width, height), flip, view in zip(pictures, boxes, flips, ours, strict=True):
        whole = stack([picture]).float()
        theirs = tv.resized_crop(whole, top, left, height, width, [size, size], antialias=False)[0]
        theirs = theirs.flip(-1) if flip else theirs
        assert (view - theirs).abs().max() < 0.05


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000))
def test_drawn_boxes_lie_in_any_picture(height: int, width: int, seed: int) -> None:
    table = make_batch([noise_picture(height, width)]).table.take(np.zeros(20, dtype=np.int64))
    crop = draw_crop(BatchRandom(generator(seed, 0, "test"), 20), table, AugmentSettings())
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
    crop = draw(shape, count, crop_scale=scale)
    torch.manual_seed(0)
    picture = torch.empty(3, *shape)
    params = np.array([RandomResizedCrop.get_params(picture, scale, (3 / 4, 4 / 3)) for _ in range(count)])
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


def test_picture_without_a_fitting_box_falls_back_to_its_center() -> None:
    crop = draw((20, 400), 5, crop_scale=(1.0, 1.0))
    assert set(crop.height) == {20}
    assert set(crop.width) == {27}
    assert set(crop.left) == {(400 - 27) // 2}
    crop = draw((400, 20), 5, crop_scale=(1.0, 1.0))
    assert set(crop.width) == {20}
    assert set(crop.height) == {27}


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_flip_probability(probability: float) -> None:
    assert (draw((30, 30), 50, flip_probability=probability).flip == bool(probability)).all()


@pytest.mark.parametrize("size", [32, 45, 64])
def test_test_view_equals_torchvision(size: int) -> None:
    pictures = [noise_picture(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    images = make_batch(pictures)
    ours = render_crop(images, center_crop(images.table, size), size)
    for picture, view in zip(pictures, ours, strict=True):
        theirs = tv.center_crop(tv.resize(stack([picture]).float(), [size], antialias=False), [size, size])[0]
        assert (view - theirs).abs().max() < 0.1


def test_test_view_is_near_the_antialiased_one_at_the_usual_shrink() -> None:
    """The store's shorter side is about 8/7 of the view's: antialiasing hardly shows."""
    picture = smooth_picture(64, 90)
    images = make_batch([picture])
    view = render_crop(images, center_crop(images.table, 56), 56)[0]
    theirs = tv.center_crop(tv.resize(stack([picture]).float(), [56], antialias=True), [56, 56])[0]
    assert (view - theirs).abs().max() < 2


def test_oversampling_averages_where_pictures_shrink_much() -> None:
    picture = noise_picture(120, 120)
    theirs = tv.resize(stack([picture]).float(), [30, 30], antialias=True)[0]

    def error(oversample: int) -> float:
        images = make_batch([picture], oversample)
        return (render_crop(images, center_crop(images.table, 30), 30)[0] - theirs).abs().mean().item()

    assert error(3) < 0.5 * error(1)


@pytest.mark.parametrize("value", [0, 255])
def test_extreme_values_and_tiny_pictures_stay_exact(value: int) -> None:
    shapes = [(1, 1), (1, 7), (7, 1), (2, 2), (30, 40)]
    # The neighbors in the buffer have the opposite value: a sample that leaves its picture would show.
    pictures = []
    for shape in shapes:
        pictures += [np.full((*shape, 3), value, np.uint8), np.full((5, 5, 3), 255 - value, np.uint8)]
    images = make_batch(pictures)
    boxes = [(0, 0, picture.shape[1], picture.shape[0]) for picture in pictures]
    views = render_crop(images, make_crop(boxes), 16)
    assert (views[::2] == value).all()
    assert (views[1::2] == 255 - value).all()
