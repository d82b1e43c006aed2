"""Converts images of any mode to RGB."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

STRIP_PIXELS = 4 << 20
"""Number of pixels that are converted to RGB at a time."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB; transparent pixels become white.

    Example:
        >>> to_rgb(Image.new("LA", (1, 1), (7, 0))).getpixel((0, 0))
        (255, 255, 255)
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        brightest = max(_gray_values(strip).max() for _, strip in _strips(image))
        return _convert_strips(image, lambda strip: _deep_gray_to_rgb(strip, brightest))
    if image.mode == "LAB":
        return _convert_strips(image, _lab_to_rgb)
    return _convert_strips(image, _on_white) if image.has_transparency_data else image.convert("RGB")


def _convert_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Converts an image to RGB strip by strip, because a conversion takes memory for several copies of the pixels."""
    rgb = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        rgb.paste(convert(strip), (0, top))
    return rgb


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba).convert("RGB")


def _gray_values(image: Image.Image) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a damaged file contains any bits
        return np.nan_to_num(np.asarray(image, dtype=np.float64))


def _deep_gray_to_rgb(image: Image.Image, brightest: float) -> Image.Image:
    """Scales 16-bit, 32-bit and float gray by the range of the format, so that images of one scene stay comparable."""
    values = _gray_values(image)
    if image.mode == "F" and brightest <= 1:
        values = values * 255
    elif image.mode.startswith("I;16") or brightest > 255:
        values = values / 257
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8)).convert("RGB")


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    transform = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:
        raise ValueError("LAB colors cannot be converted")
    return converted
