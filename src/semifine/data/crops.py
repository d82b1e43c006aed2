"""Crops of photos to boxes of animals: one crop of each photo for training, every box for predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from semifine.data.boxes import MIN_CONFIDENCE, Box, BoxTable, Crop, Photo, normalize_path, read_boxes
from semifine.data.catalog import Catalog, SubsetReader
from semifine.data.decode import FileReader, read_size
from semifine.data.parallel import map_in_order, usable_cores
from semifine.errors import UserError
from semifine.fields import setting


@dataclass(frozen=True)
class CropSettings:
    """Settings of a data source whose photos can be cropped to boxes."""

    crops: str | None = setting(
        None,
        "boxes of animals in MegaDetector's JSON, COCO JSON or a CSV table; each photo is cropped to its most "
        "confident box",
        is_path=True,
    )
    crop_confidence: float = setting(
        MIN_CONFIDENCE, "confidence from which the boxes of a detector are used", low=0.0, high=1.0
    )


def crop_catalog(catalog: Catalog, settings: CropSettings) -> Catalog:
    """Crops each photo of a catalog to its most confident box; photos without a box stay whole.

    Args:
        catalog: Images of files (:class:`~semifine.data.decode.FileReader`).
        settings: The settings of the source. Without ``crops``, the catalog is returned unchanged.

    Returns:
        The catalog with another reader and with a note on the number of photos without a box.

    Raises:
        UserError: If the boxes cannot be read, or none of them belongs to a photo of the catalog.
    """
    if not settings.crops:
        return catalog
    is_subset = isinstance(catalog.reader, SubsetReader)
    reader = catalog.reader.base if isinstance(catalog.reader, SubsetReader) else catalog.reader
    assert isinstance(reader, FileReader)
    table = read_boxes(Path(settings.crops), settings.crop_confidence)

    def find(row: int) -> list[Box] | None:
        file = reader.file(row)
        return _find_boxes(table, file, _names(file, [reader.paths[row]]), first_only=True)

    found = list(map_in_order(find, range(len(reader.paths)), usable_cores()))
    if all(boxes is None for boxes in found):
        raise _no_photo_error(table, reader.paths[0], "the folder of photos")
    columns = np.full((len(found), 4), np.nan)
    for row, boxes in enumerate(found):
        if boxes:
            columns[row] = boxes[0][:4]
    with_boxes = FileReader(reader.paths, reader.folders, reader.folder_of, columns)
    rows = catalog.reader.rows if isinstance(catalog.reader, SubsetReader) else np.arange(len(found))
    cropped = int((~np.isnan(columns[rows, 0])).sum())
    return replace(
        catalog,
        reader=SubsetReader(with_boxes, rows) if is_subset else with_boxes,
        notes=(*catalog.notes, describe_crops(cropped, len(rows))),
    )


def describe_crops(cropped: int, photos: int) -> str:
    """A note on the number of photos with a box.

    Example:
        >>> describe_crops(cropped=18, photos=20)
        'crops: 18 of 20 photos have a box; the others are used whole'
    """
    others = "" if cropped == photos else "; the others are used whole"
    return f"crops: {cropped} of {photos} photos have a box{others}"


class FileCrops(Iterator[Photo]):
    """One crop per box of each file, the most confident first; a file without a box is used whole.

    Args:
        files: Image files.
        table: The boxes.
        folders: Folders that the paths in the table are relative to. Paths relative to their parent folders and
            absolute paths are found as well.

    Raises:
        UserError: If no path in the table belongs to a file.
    """

    def __init__(self, files: Iterable[str], table: BoxTable, folders: Sequence[str] = ()) -> None:
        self._table = table
        self._prefixes = [os.path.join(folder, "") for folder in dict.fromkeys(folders)]
        self._photos = chain.from_iterable(map(self._crops, self._check(iter(files))))
        self._num_files = self._num_cropped = 0

    def __next__(self) -> Photo:
        return next(self._photos)

    @property
    def identity(self) -> str:
        """Hash of all boxes."""
        return self._table.identity

    def describe(self) -> str:
        """A note on the files so far."""
        return describe_crops(self._num_cropped, self._num_files)

    def _check(self, files: Iterator[str]) -> Iterator[str]:
        """Reads files until one is in the table, so that wrong paths are reported before the first prediction."""
        waiting = []
        for file in files:
            waiting.append(file)
            if self._table.find(self._names(file)) is not None:
                return chain(waiting, files)
        if waiting:
            raise _no_photo_error(self._table, waiting[0], "the folder given as PATH")
        return iter(())

    def _crops(self, file: str) -> list[Photo]:
        boxes = _find_boxes(self._table, file, self._names(file))
        self._num_files += 1
        self._num_cropped += bool(boxes)
        return [Crop(file, box) for box in boxes] if boxes else [file]

    def _names(self, file: str) -> Iterator[str]:
        inside = [file.removeprefix(prefix) for prefix in self._prefixes if file.startswith(prefix)]
        return _names(file, inside or [file])


def _names(file: str, inside: Iterable[str]) -> Iterator[str]:
    """The names under which a table may list a file: in the folder of photos, in its parent folders, and absolute."""
    depth = 1
    for name in map(normalize_path, inside):
        depth = max(depth, name.count("/") + 1)
        yield name
    absolute = normalize_path(os.path.abspath(file))
    parts = absolute.split("/")
    for start in range(len(parts) - depth - 1, 0, -1):
        yield "/".join(parts[start:])
    yield absolute


def _find_boxes(table: BoxTable, file: str, names: Iterable[str], first_only: bool = False) -> list[Box] | None:
    """The boxes of a file as fractions; None if the table does not contain the file."""
    found = table.find(names)
    if found is None:
        return None
    name, boxes = found
    boxes = boxes[:1] if first_only else boxes
    if not table.in_pixels or not boxes:
        return boxes
    size = read_size(file)
    return [] if size is None else [table.as_fractions(name, box, size) for box in boxes]


def _no_photo_error(table: BoxTable, photo: str, folder: str) -> UserError:
    listed = next(iter(table.boxes), None)
    example = "it lists no photo" if listed is None else f"it lists {listed}, for example, and there is {photo}"
    return UserError(f"{table.file} contains none of the photos ({example}): its paths must be relative to {folder}.")
