"""Images that somebody hands over: files, Pillow images, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.reading import Pixels, decode_array, orientation_of, to_rgb, turned
from semifine.inference.gathering import Group, gather_items
from semifine.inference.sight import Sight

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


def gather_given(sight: Sight, images: Iterable[ImageInput]) -> Iterator[Group]:
    """Decoded and gathered, in order."""
    return gather_items(images, partial(_decode, sight), sight)


def _decode(sight: Sight, image: ImageInput) -> Pixels | str:
    """The pixels that a view is made of, or the reason why there are none."""
    if isinstance(image, str | Path):
        return sight.decode_file(str(image))
    try:
        if isinstance(image, Image.Image):
            image = np.asarray(turned(to_rgb(image), orientation_of(image)))
        pixels = np.asarray(image)
        return decode_array(pixels, sight.known.stored_side).pixels
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
