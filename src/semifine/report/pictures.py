"""Example photos as small square pictures inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Examples = Mapping[int, Sequence[NDArray[Any]]]

SIDE = 112  # shown at about half this size, so that it is sharp on dense screens
BUDGET = 400  # example pictures of classes, about 5 KB each
MAX_PER_CLASS = 4


def encode_examples(examples: Examples, classes: Sequence[int]) -> dict[int, list[str]]:
    """Data URIs of the first photos of each class; the more classes, the fewer photos of each."""
    shown = [label for label in classes if len(examples.get(label, ()))][:BUDGET]
    each = max(1, min(MAX_PER_CLASS, BUDGET // max(1, len(shown))))
    return {label: [data_uri(image) for image in examples[label][:each]] for label in shown}


def data_uri(image: NDArray[Any]) -> str:
    """The middle square of an (H, W, 3) uint8 image, as JPEG."""
    from PIL import Image

    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(np.ascontiguousarray(image[top : top + side, left : left + side]))
    if side > SIDE:
        square = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    square.save(buffer, "JPEG", quality=85, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
