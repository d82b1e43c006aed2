"""Every color operation against Pillow, with the image as its own reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from semifine.augment.randaugment_ops import RANGES, STATISTICAL, luminance
from tests.augment.helpers import COLOR, change_colors, noise_image, pillow_operation, smooth_image, stack

# Levels out of 255. Pillow multiplies in double or single precision in places, then cuts the fraction off.
TOLERANCE = dict.fromkeys(COLOR, 0) | {
    "AutoContrast": 1,
    "Brightness": 1,
    "Color": 1,
    "Contrast": 1,
    "Sharpness": 1,
}
SIZES = [(37, 53), (64, 64), (3, 5)]


def make_images(height: int, width: int) -> list[np.ndarray]:
    edge_values = np.zeros((height, width, 3), dtype=np.uint8)
    edge_values[: height // 2] = 255
    return [
        noise_image(height, width),
        smooth_image(height, width, seed=1),
        smooth_image(height, width, seed=2),
        edge_values,
        np.full((height, width, 3), 255, dtype=np.uint8),
        np.full((height, width, 3), (0, 7, 200), dtype=np.uint8),
    ]


def worst_difference(name: str, originals: list[np.ndarray], magnitudes: np.ndarray) -> float:
    images = stack(originals)
    ours = change_colors(name, images, torch.from_numpy(magnitudes).float(), images)
    theirs = stack(
        [
            np.asarray(pillow_operation(name, Image.fromarray(original), float(magnitude)))
            for original, magnitude in zip(originals, magnitudes, strict=True)
        ]
    )
    assert ours.shape == images.shape
    assert ours.dtype == torch.uint8
    return (ours.float() - theirs.float()).abs().max().item()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(COLOR))
def test_operation_equals_pillow(name: str, size: tuple[int, int]) -> None:
    originals = make_images(*size)
    low, high = RANGES[name]
    for seed in range(4):
        magnitudes = np.random.default_rng(seed).uniform(low, high, len(originals)).astype(np.float32)
        assert worst_difference(name, originals, magnitudes) <= TOLERANCE[name]


@pytest.mark.parametrize("name", sorted(COLOR))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), unit=st.floats(0, 1, width=32), levels=st.integers(1, 256))
def test_operation_equals_pillow_on_any_histogram(name: str, seed: int, unit: float, levels: int) -> None:
    rng = np.random.default_rng(seed)
    palette = rng.integers(0, 256, levels).astype(np.uint8)
    original = palette[rng.integers(0, levels, (24, 31, 3))]
    low, high = RANGES[name]
    # Posterize's range ends before 8 bits, which would change nothing.
    high = 7.99 if name == "Posterize" else high
    magnitude = np.array([low + unit * (high - low)], dtype=np.float32)
    assert worst_difference(name, [original], magnitude) <= TOLERANCE[name]


def test_luminance_equals_pillow_exactly() -> None:
    original = noise_image(80, 90)
    theirs = np.asarray(Image.fromarray(original).convert("L"), dtype=np.float32)
    assert np.array_equal(luminance(stack([original]).float())[0, 0].numpy(), theirs)


# Sharpness is missing: it leaves the border of what it is given unfiltered.
@pytest.mark.parametrize("name", sorted(set(COLOR) - {"Sharpness"}))
def test_statistics_come_from_the_reference_alone(name: str) -> None:
    """A crop of the image, with the whole as reference, is the crop of the changed image."""
    images = stack(make_images(40, 50))
    magnitude = torch.full((len(images),), float(np.mean(RANGES[name])))
    crop = change_colors(name, images[..., 10:30, 5:25].contiguous(), magnitude, images)
    assert torch.equal(crop, change_colors(name, images, magnitude, images)[..., 10:30, 5:25])
    other = change_colors(name, images, magnitude, images.flip(0))
    assert torch.equal(other, change_colors(name, images, magnitude, images)) == (name not in STATISTICAL)


def test_levels_outside_the_reference_stay_in_range() -> None:
    images, dark = stack([noise_image(20, 20)]), stack([noise_image(20, 20) // 4 + 60])
    for name in STATISTICAL:
        changed = change_colors(name, images, torch.tensor([0.5]), dark)
        assert changed.min() >= 0
        assert changed.max() <= 255


def test_samples_use_their_own_magnitude() -> None:
    images = stack([smooth_image(20, 20)] * 3)
    changed = change_colors("Brightness", images, torch.tensor([0.1, 0.5, 0.9]), images)
    darkest, middle, brightest = changed.float().mean(dim=(1, 2, 3))
    assert darkest < middle < brightest
