"""The view of testing without torch: what ``views/kinds/test.py`` makes, rounded to whole levels."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.reading import Pixels

# Both as views/maker.py has them; a test compares the two.
LARGEST_SHRINK = 1.5
MOST_OVERSAMPLE = 4


def central_view(pixels: Pixels, size: int) -> Pixels:
    """(H, W, 3) levels -> (size, size, 3): the central square, its shorter side resized to ``size``."""
    height, width, _ = pixels.shape
    shorter = min(height, width)
    oversample = oversampling(shorter, size)
    rows = _along(pixels, _places(height, shorter, size, oversample))
    both = _along(rows.swapaxes(0, 1), _places(width, shorter, size, oversample)).swapaxes(0, 1)
    if oversample > 1:
        both = both.reshape(size, oversample, size, oversample, 3).mean(axis=(1, 3))
    return (both + np.float32(0.5)).astype(np.uint8)


def oversampling(shorter: int, size: int) -> int:
    """How many samples a pixel of the view averages along each axis."""
    return min(max(1, ceil(shorter / size / LARGEST_SHRINK)), MOST_OVERSAMPLE)


def _places(extent: int, shorter: int, size: int, oversample: int) -> NDArray[np.float64]:
    """Where the samples along one axis lie, counted from the centre of the first pixel."""
    resized = size * extent // shorter
    scale = extent / resized
    start = np.rint((resized - size) / 2) * scale
    steps = (np.arange(size * oversample) + 0.5) / oversample
    places: NDArray[np.float64] = np.clip(start + scale * steps - 0.5, 0, extent - 1)
    return places


def _along(levels: NDArray[Any], places: NDArray[np.float64]) -> NDArray[np.float32]:
    """Linear interpolation along the first axis."""
    # Only what is sampled is converted: of a long image a part.
    first, last = int(places[0]), min(int(places[-1]) + 2, len(levels))
    levels, places = levels[first:last].astype(np.float32), places - first
    lower = np.minimum(places.astype(np.intp), max(len(levels) - 2, 0))
    weight = (places - lower).astype(np.float32)[:, None, None]
    below = levels[lower]
    above = levels[np.minimum(lower + 1, len(levels) - 1)]
    between: NDArray[np.float32] = below + weight * (above - below)
    return between
