"""Images of any sizes in one piece of memory, which is moved as one. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.uint8]


class Packed(NamedTuple):
    """Images, those of one size one after the other."""

    levels: Levels
    """Flat."""
    shapes: list[tuple[int, int]]
    """Heights and widths, in the order of the levels,"""
    places: list[int]
    """and where the images were before."""


def pack(images: Sequence[Levels], into: Levels | None = None) -> Packed:
    """(H, W, 3) images, written to the beginning of ``into`` where that is given."""
    places = sorted(range(len(images)), key=lambda place: images[place].shape)
    parts = [images[place].reshape(-1) for place in places]
    size = sum(map(len, parts))
    levels = np.empty(size, np.uint8) if into is None else into[:size]
    if parts:
        np.concatenate(parts, out=levels)
    return Packed(levels, [(images[place].shape[0], images[place].shape[1]) for place in places], places)
