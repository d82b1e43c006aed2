"""Reads photos from the data set of a run and encodes them for the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import try_decode_row
from semifine.errors import UserError
from semifine.report.names import data_name
from semifine.runs.run import Run

SIDE = 112
"""Pixels. The report shows photos at about half this size, which is sharp on high-density screens."""
MAX_PHOTOS = 400
"""Photos of classes in a report, about 5 KB each."""
MAX_PER_CLASS = 4


class RunPhotos:
    """Photos of a run by class and by path.

    Args:
        run: A run. If its data set cannot be read, there are no photos, and :attr:`missing` contains the reason.
    """

    def __init__(self, run: Run) -> None:
        self._catalog: Catalog | None = None
        self.missing = ""
        """Why there are no photos; empty if there are."""
        try:
            self._catalog = run.catalog
        except (UserError, OSError) as error:
            root = run.data.partition(":")[2]
            self.missing = str(error).replace(root, data_name(run)) if root else str(error)

    def of_classes(self) -> dict[int, list[NDArray[Any]]]:
        """Returns a few labeled photos of each class."""
        if self._catalog is None:
            return {}
        photos: dict[int, list[NDArray[Any]]] = {}
        for row in self._catalog.rows(Split.LABELED):
            of_class = photos.setdefault(int(self._catalog.label[row]), [])
            if len(of_class) < MAX_PER_CLASS:
                of_class += self._read(int(row))
        return photos

    def of_samples(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns data URIs of training photos by path. Unreadable photos are left out."""
        wanted = {path: self._rows[path] for path in paths if path in self._rows}
        photos = {path: self._read(row) for path, row in wanted.items()}
        return {path: to_data_uri(photo[0]) for path, photo in photos.items() if photo}

    @cached_property
    def _rows(self) -> dict[str, int]:
        if self._catalog is None:
            return {}
        splits = (Split.VAL, Split.LABELED, Split.UNLABELED)
        return {str(self._catalog.paths[row]): int(row) for split in splits for row in self._catalog.rows(split)}

    def _read(self, row: int) -> list[NDArray[Any]]:
        """Returns a list with the photo; empty if it is unreadable."""
        assert self._catalog is not None
        decoded = try_decode_row(self._catalog.reader, row, SIDE)
        return [] if isinstance(decoded, str) else [decoded.pixels]


def encode_class_photos(photos: Mapping[int, Sequence[NDArray[Any]]], classes: Sequence[int]) -> dict[int, list[str]]:
    """Returns data URIs of the first photos of each class. The more classes, the fewer photos per class."""
    shown = [label for label in classes if len(photos.get(label, ()))][:MAX_PHOTOS]
    per_class = max(1, min(MAX_PER_CLASS, MAX_PHOTOS // max(1, len(shown))))
    return {label: [to_data_uri(image) for image in photos[label][:per_class]] for label in shown}


def to_data_uri(image: NDArray[Any]) -> str:
    """Crops a `(height, width, 3)` uint8 image to its central square and returns it as a JPEG data URI."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(np.ascontiguousarray(image[top : top + side, left : left + side]))
    if side > SIDE:
        square = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    square.save(buffer, "JPEG", quality=85, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
