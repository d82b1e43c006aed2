"""256 bits of what an image looks like, nearly the same where it is resized, compressed anew or shot a moment later."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16

Hash = NDArray[np.uint16]
"""(16,), or (rows, 16): a row of cells is one number."""


def perceptual_hash(pixels: NDArray[np.uint8]) -> Hash:
    """Whether each of 16 x 16 cells of an (H, W, 3) image is brighter than its neighbour to the left."""
    grey = Image.fromarray(pixels).convert("L")
    cells = np.asarray(grey.resize((SIDE + 1, SIDE), Image.Resampling.BOX), np.int16)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1], axis=1)
    return bits.view(np.uint16)[:, 0]
