"""The strong view, rendered in one go, against Pillow's operations one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from semifine.augment.crops import Crop, draw_crop
from semifine.augment.randaugment import RandAugmentParams, apply_randaugment, draw_randaugment
from semifine.augment.randaugment_ops import CODE, GEOMETRIC, OPERATIONS, RANGES
from semifine.augment.random_numbers import BatchRandom, create_generator
from tests.augment.helpers import (
    COLOR,
    make_batch,
    make_crop,
    make_params,
    pillow_cutout,
    pillow_operation,
    smooth_image,
    to_array,
)

SIDE = 64


def random_for(count: int, seed: int = 0) -> BatchRandom:
    return BatchRandom(create_generator(seed, 0, "test"), count)


def pillow_sequence(array: np.ndarray, names: list[str], magnitudes: list[float]) -> Image.Image:
    changed = Image.fromarray(array)
    for name, magnitude in zip(names, magnitudes, strict=True):
        changed = pillow_operation(name, changed, magnitude)
    return changed


def differences(names: list[list[str]], with_cutout: bool = True, seed: int = 0) -> np.ndarray:
    """(samples, SIDE, SIDE, 3) absolute differences to Pillow on the full frame, all operations in order."""
    rng = np.random.default_rng(seed)
    arrays = [smooth_image(SIDE, SIDE, seed=i) for i in range(len(names))]
    images = make_batch(arrays)
    magnitudes = [[rng.uniform(*RANGES[name]) for name in row] for row in names]
    cutouts = rng.uniform(size=(len(names), 3))
    params = make_params(names, magnitudes, images.table, cutouts.tolist() if with_cutout else None)
    crop = make_crop([(0, 0, SIDE, SIDE)] * len(names))
    views = apply_randaugment(images, params, crop, SIDE, reference_size=SIDE)
    found = []
    for array, row, strengths, cutout, view in zip(arrays, names, magnitudes, cutouts, views, strict=True):
        theirs = pillow_sequence(array, row, strengths)
        theirs = pillow_cutout(theirs, *cutout) if with_cutout else theirs
        found.append(np.abs(to_array(view) - np.asarray(theirs, dtype=np.float32)))
    return np.stack(found)


def test_color_operations_in_order_equal_pillow() -> None:
    """Without geometry nothing is resampled: equal but for fractions, which later operations stretch."""
    rng = np.random.default_rng(1)
    # Sharpness last: references are not filtered, so statistics after it would be those before it.
    first = sorted(set(COLOR) - {"Sharpness"})
    names = [[*map(str, rng.choice(first, 2)), str(rng.choice(COLOR))] for _ in range(120)]
    found = differences(names)
    assert np.quantile(found, 0.99) <= 1
    per_sample = found.mean(axis=(1, 2, 3))
    # A level that falls into the next bin of a later Equalize moves a whole gray by that bin's height.
    assert (per_sample > 0.1).mean() < 0.02
    assert per_sample.max() < 5


def test_random_triples_in_order_are_near_pillow() -> None:
    rng = np.random.default_rng(2)
    names = [[str(name) for name in rng.choice(OPERATIONS, 3)] for _ in range(200)]
    per_sample = differences(names).mean(axis=(1, 2, 3))
    assert np.median(per_sample) < 1
    # The most come from Equalize after geometry: black borders of slightly other shape shift its histogram.
    assert per_sample.max() < 8


def test_order_matters_as_in_pillow() -> None:
    """Solarize before or after a shift: the border is black or inverted black."""
    before, after = differences([["Solarize", "TranslateX"], ["TranslateX", "Solarize"]], with_cutout=False)
    assert before.mean() < 2
    assert after.mean() < 2
    images = make_batch([smooth_image(SIDE, SIDE)] * 2)
    names = [["Solarize", "TranslateX"], ["TranslateX", "Solarize"]]
    params = make_params(names, [[0.0, 0.3], [0.3, 0.0]], images.table)
    crop = make_crop([(0, 0, SIDE, SIDE)] * 2)
    views = apply_randaugment(images, params, crop, SIDE)
    assert (views[0, :, :, -10:] == 0).all()
    assert (views[1, :, :, -10:] == 255).all()


def test_black_of_an_earlier_operation_moves_with_a_later_one() -> None:
    """What the first shift lost stays lost when the second shift brings its place back."""
    white = np.full((SIDE, SIDE, 3), 255, dtype=np.uint8)
    images = make_batch([white])
    params = make_params([["TranslateX", "TranslateX"]], [[0.25, -0.25]], images.table)
    view = apply_randaugment(images, params, make_crop([(0, 0, SIDE, SIDE)]), SIDE)[0]
    assert (view[:, :, : SIDE // 4] == 0).all()  # came from outside in the second shift
    assert (view[:, :, SIDE // 4 :] == 255).all()
    params = make_params([["TranslateX", "TranslateX"]], [[-0.25, 0.25]], images.table)
    view = apply_randaugment(images, params, make_crop([(0, 0, SIDE, SIDE)]), SIDE)[0]
    assert (view[:, :, : 3 * SIDE // 4] == 255).all()
    assert (view[:, :, 3 * SIDE // 4 :] == 0).all()


def test_crop_and_flip_come_after_the_operations() -> None:
    """Pillow's operations on the whole image, then torchvision's crop of the result."""
    shapes = [(90, 120), (120, 90), (100, 100), (80, 150)]
    arrays = [smooth_image(*shape, seed=i) for i, shape in enumerate(shapes)]
    images = make_batch(arrays)
    names = [["Rotate", "Color", "ShearX"], ["Equalize", "TranslateY", "Brightness"]] * 2
    names[3] = ["Contrast", "AutoContrast", "ShearY"]
    magnitudes = [[20.0, 0.3, 0.2], [0.0, 0.2, 0.6], [-15.0, 0.7, -0.1], [0.4, 0.0, 0.2]]
    boxes = [(10, 5, 60, 50), (0, 20, 90, 80), (30, 30, 40, 45), (50, 0, 100, 80)]
    flips = [False, True, True, False]
    cutouts = [[0.6, 0.3, 0.4], [0.9, 0.9, 0.5], [0.2, 0.5, 0.5], [0.7, 0.6, 0.1]]
    params = make_params(names, magnitudes, images.table, cutouts)
    views = apply_randaugment(images, params, make_crop(boxes, flips), 48)
    for i, (left, top, width, height) in enumerate(boxes):
        changed = pillow_cutout(pillow_sequence(arrays[i], names[i], magnitudes[i]), *cutouts[i])
        whole = torch.from_numpy(np.array(changed)).permute(2, 0, 1).float()
        theirs = tv.resized_crop(whole, top, left, height, width, [48, 48], antialias=False)
        theirs = theirs.flip(-1) if flips[i] else theirs
        difference = (views[i] - theirs).abs()
        assert difference.mean() < 2.5  # the borders of cutout and fill are sharp here, soft after a resize
        assert difference.median() <= 1.5


def test_statistics_are_those_of_the_whole_image() -> None:
    """A crop of the dark half keeps its darkness: the bright half counts too."""
    array = np.full((40, 80, 3), 40, dtype=np.uint8)
    array[:, 40:] = 240
    array[:4, :4], array[:4, 76:] = 0, 255
    images = make_batch([array] * 3)
    params = make_params([["AutoContrast"], ["Equalize"], ["Contrast"]], [[0.0], [0.0], [0.1]], images.table)
    views = apply_randaugment(images, params, make_crop([(4, 4, 32, 32)] * 3), 32)
    pillow = [pillow_operation(OPERATIONS[code], Image.fromarray(array), 0.1) for code in params.codes[:, 0]]
    for view, theirs in zip(views, pillow, strict=True):
        assert abs(view[0, 16, 16].item() - np.asarray(theirs)[20, 20, 0]) <= 2


def test_fourteen_operations_are_drawn_evenly_within_their_ranges() -> None:
    table = make_batch([smooth_image(30, 50)]).table.take(np.zeros(6000, dtype=np.int64))
    params = draw_randaugment(random_for(6000), table, 3)
    counts = np.bincount(params.codes.ravel(), minlength=14)
    assert len(OPERATIONS) == len(counts) == 14
    assert set(OPERATIONS) == {*COLOR, *GEOMETRIC, "Identity"}
    assert np.abs(counts / counts.sum() - 1 / 14).max() < 0.01
    for name, (low, high) in RANGES.items():
        drawn = params.magnitudes[params.codes == CODE[name]]
        assert low <= drawn.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < drawn.max() < high
    bits = np.floor(params.magnitudes[params.codes == CODE["Posterize"]])
    assert set(np.unique(bits)) == {4, 5, 6, 7}


def test_cutout_draws_stay_in_the_image() -> None:
    table = make_batch([smooth_image(30, 50)]).table.take(np.zeros(3000, dtype=np.int64))
    left, top, right, bottom = draw_randaugment(random_for(3000), table, 1).cutout.T
    assert left.min() == 0
    assert top.min() == 0
    assert (right - left).max() <= 27
    assert (right - left).min() >= 1
    assert right.max() <= 51
    assert bottom.max() <= 31
    assert 10 < np.mean(right - left) < 14


def select_samples(params: RandAugmentParams, crop: Crop, some: np.ndarray) -> tuple[RandAugmentParams, Crop]:
    boxes = (array[some] for array in (crop.left, crop.top, crop.width, crop.height, crop.flip))
    return RandAugmentParams(params.codes[some], params.magnitudes[some], params.cutout[some]), Crop(*boxes)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    arrays = [smooth_image(40 + i, 70 - i, seed=i) for i in range(24)]
    images = make_batch(arrays)
    crop = draw_crop(random_for(24), images.table, scale=(0.08, 1.0))
    params = draw_randaugment(random_for(24, seed=1), images.table, 3)
    together = apply_randaugment(images, params, crop, 32)
    for i in range(24):
        alone = apply_randaugment(make_batch([arrays[i]]), *select_samples(params, crop, np.array([i])), 32)
        assert torch.equal(alone[0], together[i])


def test_no_operations_leave_crop_and_cutout() -> None:
    images = make_batch([smooth_image(40, 40)])
    params = replace(draw_randaugment(random_for(1), images.table, 0), cutout=np.array([[5.0, 6.0, 9.0, 11.0]]))
    view = apply_randaugment(images, params, make_crop([(0, 0, 40, 40)]), 40)[0]
    expected = smooth_image(40, 40)
    expected[6:11, 5:9] = (125, 123, 114)
    assert np.array_equal(to_array(view), expected)
