"""Photos as the page shows them: decoded and drawn anew, so that no byte of a file leaves as it is."""

from __future__ import annotations

import io
import os
import threading
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from semifine.data.catalog import Catalog, SubsetReader
from semifine.data.decode import FileReader
from semifine.data.store import ImageStore

SIDES = {"small": 160, "large": 1000, "full": 4096}
"""The shorter side of each size, at most: a full photo is whole, but for one that would fill the memory."""
KEPT = 4000


class Pictures:
    """JPEGs of the images of a catalog, by their row; nothing else can be asked for."""

    def __init__(self, catalog: Catalog, store: ImageStore) -> None:
        self._store = store
        self._reader, self._rows = _files_of(catalog)
        self.small = lru_cache(KEPT)(self._small)
        self._decoding_full = threading.Lock()
        """A photo in full takes hundreds of megabytes while it is decoded: one at a time."""

    def jpeg(self, row: int, size: str) -> bytes:
        if size == "small":
            return self.small(row)
        with self._decoding_full if size == "full" else nullcontext():
            return self._from_file(row, SIDES[size])

    def _small(self, row: int) -> bytes:
        return _encode(self._decoded(row), SIDES["small"])

    def _from_file(self, row: int, shorter_side: int) -> bytes:
        """From the file where it has more to show than what training keeps of it."""
        if self._reader is not None and is_inside(self._reader.file(self._rows[row]), self._reader.folders):
            try:
                return _encode(Image.fromarray(self._reader.decode(self._rows[row], shorter_side).pixels), None)
            except OSError:
                pass  # gone or changed since it was decoded; the decoded image is still there
        return _encode(self._decoded(row), None)

    def _decoded(self, row: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self._store.image(row).numpy()))


def is_inside(file: str, folders: tuple[str, ...]) -> bool:
    """Whether a file really lies in one of the data set's folders: a link could lead anywhere by now."""
    real = Path(os.path.realpath(file))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders if folder)


def _files_of(catalog: Catalog) -> tuple[FileReader | None, list[int]]:
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
