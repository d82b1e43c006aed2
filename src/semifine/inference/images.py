"""Images that somebody hands over, brought into the form that training images have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.reading import FileReader, to_rgb
from semifine.data.store import ImageStore, open_store, unreadable_images
from semifine.errors import UserError

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


class GivenImages:
    """Reads paths, Pillow images and (H, W, 3) uint8 arrays alike."""

    in_memory = True

    def __init__(self, images: Sequence[ImageInput]) -> None:
        self._images = images

    def read(self, row: int) -> NDArray[np.uint8]:
        image = self._images[row]
        if isinstance(image, str | Path):
            return FileReader([str(image)]).read(0)
        return np.asarray(to_rgb(image) if isinstance(image, Image.Image) else image)

    def fingerprint(self) -> list[str]:
        return [str(row) for row in range(len(self._images))]


def store_of_images(images: Sequence[ImageInput], size: int) -> ImageStore:
    """Decodes and shrinks the images as training did; an unreadable one is named."""
    if not len(images):
        raise UserError("There are no images to predict.")
    names = [str(image) if isinstance(image, str | Path) else f"image {row}" for row, image in enumerate(images)]
    unknown = np.full(len(images), UNKNOWN)
    split = np.full(len(images), Split.UNLABELLED)
    catalog = Catalog("given images", (), names, unknown, split, unknown, GivenImages(images))
    store = open_store(catalog, size)
    for name, reason in unreadable_images(catalog, store):
        raise UserError(f"{name} cannot be read as an image: {reason}.")
    return store
