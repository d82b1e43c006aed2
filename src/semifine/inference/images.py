"""Images that somebody hands over: files, Pillow images, arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.reading import Decoded, decode_array, decode_file, to_rgb

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


def decode_given(image: ImageInput, shorter_side: int) -> Decoded | str:
    """The pixels as training images have them, or the reason why there are none."""
    try:
        if isinstance(image, str | Path):
            return decode_file(str(image), shorter_side)
        return decode_array(np.asarray(to_rgb(image) if isinstance(image, Image.Image) else image), shorter_side)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
