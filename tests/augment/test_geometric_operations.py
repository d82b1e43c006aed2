"""Every geometric operation and the cutout against Pillow, at the image's own resolution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from semifine.augment.randaugment import apply_randaugment, cutout_edges
from semifine.augment.randaugment_ops import GEOMETRIC, RANGES, compose, identity, rescale
from tests.augment.helpers import (
    make_batch,
    make_crop,
    make_params,
    noise_image,
    pillow_cutout,
    pillow_operation,
    smooth_image,
    to_array,
)

SIDE = 40
SHAPES = [(60, 80), (80, 60), (40, 40), (45, 120)]


def corner_boxes(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Boxes at the four corners, which together show all borders of the image."""
    return [(x, y, SIDE, SIDE) for x in (0, width - SIDE) for y in (0, height - SIDE)]


def views_at_corners(name: str, array: np.ndarray, magnitude: float) -> list[np.ndarray]:
    boxes = corner_boxes(*array.shape[:2])
    images = make_batch([array] * len(boxes))
    params = make_params([[name]] * len(boxes), [[magnitude]] * len(boxes), images.table)
    views = apply_randaugment(images, params, make_crop(boxes), SIDE)
    return [to_array(view) for view in views]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(GEOMETRIC))
def test_operation_equals_pillow(name: str, shape: tuple[int, int]) -> None:
    for seed, make in enumerate((noise_image, smooth_image, smooth_image)):
        array = make(*shape, seed=seed)
        magnitude = np.random.default_rng(seed).uniform(*RANGES[name])
        theirs = np.asarray(pillow_operation(name, Image.fromarray(array), magnitude), dtype=np.float32)
        views = views_at_corners(name, array, magnitude)
        for (left, top, *_), ours in zip(corner_boxes(*shape), views, strict=True):
            expected = theirs[top : top + SIDE, left : left + SIDE]
            # One level: Pillow cuts the fraction off, we round. Pixels on the very edge may fall either side.
            assert (np.abs(ours - expected) > 1).any(axis=-1).sum() <= 2


@pytest.mark.parametrize("name", sorted(GEOMETRIC))
def test_what_comes_from_outside_is_black(name: str) -> None:
    white = np.full((60, 80, 3), 255, dtype=np.uint8)
    views = views_at_corners(name, white, RANGES[name][1])
    assert set(np.unique(np.stack(views))) == {0, 255}


def test_all_operations_meet_in_one_batch() -> None:
    """Images of different sizes, each with its own operation, do not disturb each other."""
    names = sorted(GEOMETRIC)
    arrays = [smooth_image(50 + 7 * i, 90 - 9 * i, seed=i) for i in range(len(names))]
    images = make_batch(arrays)
    params = make_params([[name] for name in names], [[RANGES[name][0]] for name in names], images.table)
    views = apply_randaugment(images, params, make_crop([(2, 3, SIDE, SIDE)] * len(names)), SIDE)
    for name, array, view in zip(names, arrays, views, strict=True):
        theirs = np.asarray(pillow_operation(name, Image.fromarray(array), RANGES[name][0]), dtype=np.float32)
        wrong = np.abs(to_array(view) - theirs[3 : 3 + SIDE, 2 : 2 + SIDE]) > 1
        assert wrong.any(axis=-1).sum() <= 2


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from(SHAPES))
def test_cutout_equals_pillow_exactly(side: float, x: float, y: float, shape: tuple[int, int]) -> None:
    array = smooth_image(*shape)
    boxes = corner_boxes(*shape)
    images = make_batch([array] * len(boxes))
    draws = [[side, x, y]] * len(boxes)
    params = make_params([["Identity"]] * len(boxes), [[0.0]] * len(boxes), images.table, draws)
    views = apply_randaugment(images, params, make_crop(boxes), SIDE)
    theirs = np.asarray(pillow_cutout(Image.fromarray(array), side, x, y), dtype=np.float32)
    for (left, top, *_), view in zip(boxes, views, strict=True):
        assert np.array_equal(to_array(view), theirs[top : top + SIDE, left : left + SIDE])


def test_cutout_side_is_a_fraction_of_the_width() -> None:
    table = make_batch([noise_image(200, 40)]).table
    left, top, right, bottom = cutout_edges(table, *np.array([[0.999], [0.5], [0.5]]))[0]
    assert 18 <= right - left <= 21
    assert 18 <= bottom - top <= 21


def test_compose_applies_the_inner_map_first() -> None:
    rng = np.random.default_rng(0)
    outer, inner = rng.normal(size=(2, 5, 2, 3))
    point = np.append(rng.normal(size=2), 1.0)
    through = np.append(inner @ point, np.ones((5, 1)), axis=1)
    expected = np.einsum("nij,nj->ni", outer, through)
    assert np.allclose(compose(outer, inner) @ point, expected)
    assert np.allclose(compose(outer, identity(5)), outer)


def test_rescale_changes_the_units_on_both_sides() -> None:
    rng = np.random.default_rng(0)
    maps, (inputs, outputs) = rng.normal(size=(4, 2, 3)), rng.uniform(1, 3, size=(2, 4, 2))
    point = rng.normal(size=2)
    in_new_units = np.append(point * outputs, np.ones((4, 1)), axis=1)
    expected = (maps @ np.append(point, 1.0)) * inputs
    assert np.allclose(np.einsum("nij,nj->ni", rescale(maps, inputs, outputs), in_new_units), expected)
