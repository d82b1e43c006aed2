"""Pictures to try a network out with, where no photos are at hand. Needs numpy alone."""

from __future__ import annotations

import numpy as np

from semifine.data.reading import Pixels


def pictures(count: int, size: int) -> Pixels:
    """(count, size, size, 3) levels, smooth to noisy, since noise alone excites few features; always the same ones."""
    random = np.random.default_rng(count)
    drawn = []
    for _ in range(count):
        cells = int(random.integers(2, size + 1))
        coarse = random.integers(0, 256, (cells, cells, 3), np.uint8)
        places = np.arange(size) * cells // size
        drawn.append(coarse[np.ix_(places, places)])
    return np.stack(drawn)
