"""Color jitter and blur of the contrastive views, against torchvision and Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms.v2 import functional as tv

from semifine.augment.color_jitter import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    JitterParams,
    apply_jitter,
    draw_jitter,
    gaussian_blur,
    gaussian_kernels,
    shift_hue,
)
from semifine.augment.pipeline import MOCO_CROP_SCALE
from semifine.augment.pipeline import MOCO_V1 as V1
from semifine.augment.pipeline import MOCO_V2 as V2
from semifine.augment.random_numbers import BatchRandom, create_generator
from tests.augment.helpers import noise_image, smooth_image, stack

# Levels out of 255. torchvision's luminance weights have four digits, ours three.
TORCHVISION = 0.2
# Pillow rounds to whole levels after each operation, and its hue has 256 steps; its blur is three box filters,
# which see the border three times.
PILLOW_MEAN = 2.0
PILLOW_BLUR = 2.0
PILLOW_BLUR_AT_THE_BORDER = 8.0

ADJUST = {
    BRIGHTNESS: tv.adjust_brightness,
    CONTRAST: tv.adjust_contrast,
    SATURATION: tv.adjust_saturation,
    HUE: tv.adjust_hue,
}


def make_images(count: int) -> torch.Tensor:
    originals = [noise_image(30, 40, seed=i) if i % 2 else smooth_image(30, 40, seed=i) for i in range(count)]
    return stack(originals).float()


def drawn(count: int, hue: float = 0.4, probability: float = 0.8, gray: float = 0.2, seed: int = 0) -> JitterParams:
    return draw_jitter(BatchRandom(create_generator(seed, 0, "test"), count), 0.4, hue, probability, gray)


def slowly(image: torch.Tensor, jitter: JitterParams, sample: int) -> torch.Tensor:
    """One image through torchvision's operations; a tensor in 0..1, or a Pillow image."""
    if jitter.is_on[sample]:
        for code in jitter.order[sample]:
            image = ADJUST[code](image, float(jitter.amount[sample, code]))
    return tv.rgb_to_grayscale(image, 3) if jitter.is_gray[sample] else image


def test_jitter_equals_torchvision_in_every_order() -> None:
    images, jitter = make_images(48), drawn(48)
    assert len({tuple(order) for order in jitter.order}) > 15, "many orders must have been drawn"
    ours = apply_jitter(images, jitter)
    theirs = torch.stack([slowly(image / 255, jitter, i) for i, image in enumerate(images)]) * 255
    assert (ours - theirs).abs().max() < TORCHVISION


def test_jitter_is_close_to_pillow() -> None:
    images, jitter = make_images(16), drawn(16, hue=0.1)
    ours = apply_jitter(images, jitter)
    for i, image in enumerate(images):
        pillow = Image.fromarray(image.permute(1, 2, 0).to(torch.uint8).numpy())
        theirs = torch.from_numpy(np.asarray(slowly(pillow, jitter, i)).copy()).permute(2, 0, 1).float()
        assert (ours[i] - theirs).abs().mean() < PILLOW_MEAN


def test_nothing_happens_where_nothing_was_drawn() -> None:
    images = make_images(4)
    assert torch.equal(apply_jitter(images, drawn(4, probability=0.0, gray=0.0)), images)


def test_gray_images_are_gray() -> None:
    red, green, blue = apply_jitter(make_images(6), drawn(6, gray=1.0)).unbind(1)
    torch.testing.assert_close(red, green, atol=1e-3, rtol=0)
    torch.testing.assert_close(red, blue, atol=1e-3, rtol=0)


def test_a_whole_turn_of_the_hue_changes_nothing() -> None:
    images = make_images(4)
    torch.testing.assert_close(shift_hue(images, torch.ones(4)), images, atol=1e-2, rtol=0)


def test_a_third_of_a_turn_of_the_hue_exchanges_the_channels() -> None:
    images = make_images(4)
    turned = shift_hue(images, torch.full((4,), 1 / 3))
    torch.testing.assert_close(turned, images.roll(1, dims=1), atol=1e-2, rtol=0)


def test_draws_follow_the_recipe() -> None:
    jitter = drawn(4000, hue=0.1)
    assert np.abs(jitter.amount[:, :HUE] - 1).max() <= 0.4
    assert 0.09 < np.abs(jitter.amount[:, HUE]).max() <= 0.1
    assert jitter.is_on.mean() == pytest.approx(0.8, abs=0.03)
    assert jitter.is_gray.mean() == pytest.approx(0.2, abs=0.03)
    assert all((np.bincount(slot, minlength=4) > 900).all() for slot in jitter.order.T), "every order is as likely"
    assert (np.sort(jitter.order, axis=1) == np.arange(4)).all()


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_equals_torchvision_inside_the_image(sigma: float) -> None:
    images = make_images(4)
    ours = gaussian_blur(images, np.full(4, sigma))
    theirs = tv.gaussian_blur(images, [13, 13], [sigma, sigma])
    inside = (..., slice(6, -6), slice(6, -6))
    assert (ours[inside] - theirs[inside]).abs().max() < TORCHVISION


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.3, 2.0])
def test_blur_is_close_to_pillow_up_to_the_border(sigma: float) -> None:
    original = smooth_image(40, 50, seed=3)
    ours = gaussian_blur(stack([original]).float(), np.array([sigma]))
    pillow = Image.fromarray(original).filter(ImageFilter.GaussianBlur(sigma))
    difference = (ours - stack([np.asarray(pillow)]).float()).abs()
    assert difference[..., 6:-6, 6:-6].max() < PILLOW_BLUR
    assert difference.max() < PILLOW_BLUR_AT_THE_BORDER


def test_only_the_chosen_images_are_blurred_each_by_its_own_width() -> None:
    images = stack([noise_image(30, 40)] * 3).float()
    blurred = gaussian_blur(images, np.array([0.0, 0.5, 2.0]))
    assert torch.equal(blurred[0], images[0])
    none, little, much = blurred.flatten(1).std(dim=1)
    assert none > little > much


def test_kernels_add_up_to_one() -> None:
    np.testing.assert_allclose(gaussian_kernels(np.array([0.1, 1.0, 2.0])).sum(axis=1), 1)


def test_the_two_versions_differ_as_published() -> None:
    assert (V1.hue, V1.jitter_probability, V1.blur_probability) == (0.4, 1.0, 0.0)
    assert (V2.hue, V2.jitter_probability, V2.blur_probability) == (0.1, 0.8, 0.5)
    assert MOCO_CROP_SCALE == (0.2, 1.0)
