"""Crops of photos to boxes of animals: one crop of each photo for training, every box for predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from semifine.data.boxes import MIN_CONFIDENCE, Box, BoxTable, Crop, Photo, normalize_path, read_boxes
from semifine.data.catalog import Catalog, SubsetReader
from semifine.data.decode import FileReader, read_upright_size
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
        names = [normalize_path(reader.paths[row]), normalize_path(os.path.abspath(reader.file(row)))]
        return _find_boxes(table, reader.file(row), names, first_only=True)

    found = list(map_in_order(find, range(len(reader.paths)), usable_cores()))
    if all(boxes is None for boxes in found):
        raise _no_photo_error(table, reader.paths[0], "the folder of photos")
    columns = np.full((len(found), 4), np.nan)
    for row, boxes in enumerate(found):
        if boxes:
            columns[row] = boxes[0][:4]
    cropped = FileReader(reader.paths, reader.folders, reader.folder_of, columns)
    rows = catalog.reader.rows if isinstance(catalog.reader, SubsetReader) else np.arange(len(found))
    whole = int(np.isnan(columns[rows, 0]).sum())
    return replace(
        catalog,
        reader=SubsetReader(cropped, rows) if is_subset else cropped,
        notes=(*catalog.notes, describe_crops(len(rows) - whole, whole)),
    )


def describe_crops(cropped: int, whole: int) -> str:
    """A note on how many photos are cropped and how many have no box.

    Example:
        >>> describe_crops(cropped=18, whole=2)
        'crops: 18 of 20 photos are cropped to a box; 2 have no box and are used whole'
    """
    return f"crops: {cropped} of {cropped + whole} photos are cropped to a box; {whole} have no box and are used whole"


def crop_files(files: Iterable[str], table: BoxTable, folders: Sequence[str] = ()) -> Iterator[Photo]:
    """Yields one crop per box of each file, the most confident first; a file without a box is yielded whole.

    Args:
        files: Image files.
        table: The boxes.
        folders: Folders that the paths in the table may be relative to. Paths that are equal to a file's, and absolute
            paths, are found as well.

    Raises:
        UserError: If no path of the table belongs to a file.
    """
    prefixes = [os.path.join(folder, "") for folder in folders]
    rest, waiting = iter(files), list[str]()
    # Boxes whose paths are relative to another folder are detected before the first prediction.
    for file in rest:
        waiting.append(file)
        if table.find(_names(file, prefixes)) is not None:
            break
    else:
        if waiting:
            raise _no_photo_error(table, waiting[0], "the folder given as PATH")
    return chain.from_iterable(map(partial(_crops, table, prefixes), chain(waiting, rest)))


def _crops(table: BoxTable, prefixes: list[str], file: str) -> list[Photo]:
    boxes = _find_boxes(table, file, _names(file, prefixes))
    return [Crop(file, box) for box in boxes] if boxes else [file]


def _names(file: str, prefixes: list[str]) -> list[str]:
    """The names under which a table may list a file."""
    inside = [file.removeprefix(prefix) for prefix in prefixes if file.startswith(prefix)]
    return [normalize_path(name) for name in (*inside, file, os.path.abspath(file))]


def _find_boxes(table: BoxTable, file: str, names: Sequence[str], first_only: bool = False) -> list[Box] | None:
    """The boxes of a file as fractions; None if the table does not contain the file."""
    found = table.find(names)
    if found is None:
        return None
    name, boxes = found
    boxes = boxes[:1] if first_only else boxes
    if not table.in_pixels or not boxes:
        return boxes
    size = read_upright_size(file)
    return [] if size is None else [table.as_fractions(name, box, size) for box in boxes]


def _no_photo_error(table: BoxTable, photo: str, folder: str) -> UserError:
    listed = next(iter(table.boxes), None)
    example = "it lists no photo" if listed is None else f"it lists {listed}, for example, and there is {photo}"
    return UserError(f"{table.file} contains none of the photos ({example}): its paths must be relative to {folder}.")
