"""Photos for the page. Every photo is re-encoded from its pixels, so no bytes of the original file are sent."""

from __future__ import annotations

import io
import os
import threading
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from semifine.data.boxes import Box
from semifine.data.catalog import Catalog, SubsetReader
from semifine.data.decode import FileReader, read_size
from semifine.data.store import ImageStore

SIZES = {"small": 160, "large": 1000, "full": 4096}
"""The maximum shorter side in pixels. 4096 shows nearly all photos in full and limits memory for the others."""
NUM_CACHED = 4000


class PhotoFiles:
    """The original files of a catalog's images.

    Args:
        catalog: The images. Only files inside the folders of the data set are read.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._reader, self._rows = file_reader(catalog)

    def file(self, row: int) -> str | None:
        """The file of a catalog row; None if the images have no files or it is outside the data set."""
        if self._reader is None:
            return None
        file = self._reader.file(self._rows[row])
        return file if is_inside(file, self._reader.folders) else None

    def photo(self, row: int, path: str) -> str:  # noqa: ARG002
        """The path of the photo of a catalog row with this path."""
        return path

    def box(self, row: int) -> Box | None:
        """The box of a catalog row; None for a whole photo."""
        return None if self._reader is None else self._reader.box(self._rows[row])

    def size(self, row: int) -> tuple[int, int] | None:
        """Width and height of the upright photo; None if they are unknown."""
        file = self.file(row)
        return None if file is None else read_size(file)


class PhotoEncoder:
    """Encodes the images of a catalog as JPEG.

    Args:
        catalog: The images. Originals are read only if they are inside the folders of the data set.
        store: Decoded images, for thumbnails and for photos whose file is missing.
    """

    def __init__(self, catalog: Catalog, store: ImageStore) -> None:
        self._store = store
        self._reader, self._rows = file_reader(catalog)
        self._cached_thumbnail = lru_cache(NUM_CACHED)(self._thumbnail)
        # Decoding a photo in full can take hundreds of megabytes: only one at a time.
        self._full_size_lock = threading.Lock()

    def jpeg(self, row: int, size: str) -> bytes:
        """Returns the image at a catalog row as JPEG, in one of ``SIZES``."""
        if size == "small":
            return self._cached_thumbnail(row)
        with self._full_size_lock if size == "full" else nullcontext():
            return self._photo(row, SIZES[size])

    def _thumbnail(self, row: int) -> bytes:
        return _encode(self._stored_image(row), SIZES["small"])

    def _photo(self, row: int, shorter_side: int) -> bytes:
        """Decodes the original file at a higher resolution than the store; without a file, returns the stored image."""
        if self._reader is not None and is_inside(self._reader.file(self._rows[row]), self._reader.folders):
            try:
                return _encode(Image.fromarray(self._reader.decode(self._rows[row], shorter_side).pixels), None)
            except OSError:
                pass  # the file was deleted or changed after it was decoded for the store
        return _encode(self._stored_image(row), None)

    def _stored_image(self, row: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self._store.image(row).numpy()))


def is_inside(file: str, folders: tuple[str, ...]) -> bool:
    """Returns whether a file is inside one of the folders after resolving symbolic links."""
    real = Path(os.path.realpath(file))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders if folder)


def file_reader(catalog: Catalog) -> tuple[FileReader | None, list[int]]:
    """Returns the reader of the original files, if there are any, and the reader's row for each catalog row."""
    reader = catalog.reader
    if isinstance(reader, SubsetReader):
        return (reader.base, reader.rows.tolist()) if isinstance(reader.base, FileReader) else (None, [])
    return (reader, list(range(len(catalog)))) if isinstance(reader, FileReader) else (None, [])


def _encode(image: Image.Image, shorter_side: int | None) -> bytes:
    if shorter_side is not None and min(image.size) > shorter_side:
        scale = shorter_side / min(image.size)
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
