"""Boxes of animals in photos, from MegaDetector's JSON, COCO JSON or a CSV table."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from semifine.data.csv_table import CsvTable, get_cell, read_csv
from semifine.errors import OutOfMemory, UserError, short_reason
from semifine.files import read_text

MAX_BYTES = 1 << 30
"""Size of the largest JSON file, with the boxes of a few million photos."""
MIN_CONFIDENCE = 0.2
"""Default confidence from which the boxes of a detector are used."""
MARGIN = 0.15
"""Margin around a box, as a fraction of its longer side."""
ANIMAL = "animal"
"""Name of the category whose boxes are used, in files that have it."""
ROUNDING = 0.01
"""Detectors round boxes, which may therefore extend beyond the photo by this fraction."""


class Box(NamedTuple):
    """A box in an upright photo. All numbers are fractions of the photo's width and height."""

    x: float
    """Left side."""
    y: float
    """Upper side."""
    width: float
    height: float
    confidence: float | None = None
    """Confidence of the detector; None for boxes without one, such as those that people drew."""


class Crop(NamedTuple):
    """The part of a photo around a box."""

    file: str
    box: Box


Photo = str | Crop
"""The file of a whole photo, or a part of a photo."""


def photo_file(photo: Photo) -> str:
    """The file of a photo or of a part of it."""
    return photo if isinstance(photo, str) else photo.file


def crop_around(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The square around a box with a margin, moved into the photo; where it does not fit, it is clipped.

    Args:
        box: The box.
        size: Width and height of the photo.

    Returns:
        Left, upper, right and lower pixel.

    Example:
        >>> crop_around(Box(0.4, 0.4, 0.2, 0.1), size=(100, 100))
        (37, 32, 63, 58)
        >>> crop_around(Box(0.0, 0.0, 0.2, 0.2), size=(100, 20))
        (0, 0, 26, 20)
    """
    extent = max(math.ceil(max(box.width * size[0], box.height * size[1]) * (1 + 2 * MARGIN) - 1e-6), 1)
    spans = []
    for center, side in ((box.x + box.width / 2, size[0]), (box.y + box.height / 2, size[1])):
        length = min(extent, side)
        start = min(max(round(center * side - length / 2), 0), side - length)
        spans.append((start, start + length))
    (left, right), (upper, lower) = spans
    return left, upper, right, lower


@dataclass(frozen=True, eq=False)
class BoxTable:
    """The boxes of all photos in a file.

    Args:
        file: The file of the boxes.
        boxes: The boxes by path, the most confident first. Photos without a box have an empty list.
        in_pixels: Whether the numbers are pixels instead of fractions.
    """

    file: Path
    boxes: Mapping[str, list[Box]]
    in_pixels: bool = False

    @property
    def identity(self) -> str:
        """Hash of all boxes."""
        content = json.dumps([self.in_pixels, self.boxes])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def find(self, names: Iterable[str]) -> tuple[str, list[Box]] | None:
        """The path and the boxes of the first of several names of a photo; None if the file contains none of them."""
        for name in names:
            if (boxes := self.boxes.get(name)) is not None:
                return name, boxes
        return None

    def as_fractions(self, name: str, box: Box, size: tuple[int, int]) -> Box:
        """Converts a box to fractions of a photo of this width and height."""
        if not self.in_pixels:
            return box
        width, height = size
        scaled = Box(box.x / width, box.y / height, box.width / width, box.height / height, box.confidence)
        return _inside(scaled, f"{self.file}: the box of {name}", f"the photo of {width} x {height} pixels")


def normalize_path(path: str) -> str:
    """A path with ``/``, without ``./`` and double slashes, to compare paths of different programs.

    Example:
        >>> normalize_path(".\\\\site 1\\\\a.jpg")
        'site 1/a.jpg'
    """
    return os.path.normpath(path.replace("\\", "/"))


def read_boxes(file: Path, min_confidence: float = MIN_CONFIDENCE) -> BoxTable:
    """Reads boxes from MegaDetector's JSON, COCO JSON or a CSV table.

    Args:
        file: A ``.json``, ``.csv`` or ``.tsv`` file.
        min_confidence: Boxes with a lower confidence are left out.

    Raises:
        UserError: If the file cannot be read; the message names the file and the key.

    Example:
        >>> Path("boxes.csv").write_text("path,x,y,width,height\\na.jpg,0.1,0.2,0.3,0.4\\n")
        44
        >>> read_boxes(Path("boxes.csv")).boxes
        {'a.jpg': [Box(x=0.1, y=0.2, width=0.3, height=0.4, confidence=None)]}
    """
    suffix = file.suffix.lower()
    if suffix not in (".json", ".csv", ".tsv"):
        raise UserError(f"{file}: boxes are read from a .json, .csv or .tsv file.")
    if not file.is_file():
        raise UserError(f"{file}, the file of the boxes, does not exist: check the path.")
    found: dict[str, list[Box]] = {}
    in_pixels = False
    if suffix != ".json":
        in_pixels = _read_table(read_csv(file), found)
    else:
        content = _load_json(file)
        read = _read_coco if "annotations" in content else _read_megadetector
        read(file, content, found)
    kept = {
        path: sorted((box for box in boxes if _is_used(box, min_confidence)), key=_confidence, reverse=True)
        for path, boxes in found.items()
    }
    return BoxTable(file, kept, in_pixels)


def _confidence(box: Box) -> float:
    return 1.0 if box.confidence is None else box.confidence


def _is_used(box: Box, min_confidence: float) -> bool:
    return _confidence(box) >= min_confidence and box.width > 0 and box.height > 0


def _load_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file, MAX_BYTES).removeprefix("\ufeff"))
    except MemoryError as error:
        raise OutOfMemory("host", f"{file} is too large to be read here") from error
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise UserError(f"{file} is not valid JSON ({short_reason(error)}): write the boxes again.") from error
    if not isinstance(content, dict) or "images" not in content:
        raise UserError(f"{file} has no key 'images': give MegaDetector's output or a COCO file.")
    return content


def _read_megadetector(file: Path, content: dict[str, Any], found: dict[str, list[Box]]) -> None:
    animals = _animal_categories(file, content.get("detection_categories", {"1": ANIMAL}))
    for number, image in enumerate(_list(file, "images", content["images"])):
        key = f"images[{number}]"
        boxes = found.setdefault(normalize_path(_text(file, f"{key}.file", _get(image, "file"))), [])
        # MegaDetector writes null, or no key, for a photo that it could not read.
        for position, detection in enumerate(_list(file, f"{key}.detections", _get(image, "detections") or [])):
            where = f"{key}.detections[{position}]"
            if str(_get(detection, "category")) not in animals:
                continue
            (confidence,) = _numbers(file, f"{where}.conf", [_get(detection, "conf")], 1)
            x, y, width, height = _numbers(file, f"{where}.bbox", _get(detection, "bbox"), 4)
            box = Box(x, y, width, height, confidence)
            boxes.append(_inside(box, f"{file}: {where}.bbox", "the photo, whose width and height are 1"))


def _animal_categories(file: Path, categories: Any) -> set[str]:
    names = categories.items() if isinstance(categories, dict) else []
    animals = {key for key, name in names if str(name).lower() == ANIMAL}
    if not animals:
        raise UserError(f"{file}: detection_categories must contain '{ANIMAL}', the category of the boxes to use.")
    return animals


def _read_coco(file: Path, content: dict[str, Any], found: dict[str, list[Box]]) -> None:
    """Reads COCO boxes of the category ``animal`` if there is one, else of all categories."""
    photos: dict[Any, tuple[list[Box], tuple[float, float]]] = {}
    for number, image in enumerate(_list(file, "images", content["images"])):
        key = f"images[{number}]"
        boxes = found.setdefault(normalize_path(_text(file, f"{key}.file_name", _get(image, "file_name"))), [])
        width, height = (_numbers(file, f"{key}.{side}", [_get(image, side)], 1)[0] for side in ("width", "height"))
        if width <= 0 or height <= 0:
            raise UserError(f"{file}: {key}.width and height must be at least one pixel.")
        photos[_id(file, f"{key}.id", _get(image, "id"))] = boxes, (width, height)
    categories = _list(file, "categories", content.get("categories") or [])
    animals = [_get(category, "id") for category in categories if str(_get(category, "name")).lower() == ANIMAL]
    for number, annotation in enumerate(_list(file, "annotations", content["annotations"])):
        key = f"annotations[{number}]"
        if _get(annotation, "bbox") is None or (animals and _get(annotation, "category_id") not in animals):
            continue  # photos without an animal have an annotation without a box
        photo = photos.get(_id(file, f"{key}.image_id", _get(annotation, "image_id")))
        if photo is None:
            raise UserError(f"{file}: {key}.image_id names no image: it must be the id of an entry of images.")
        boxes, (width, height) = photo
        score = _get(annotation, "score")
        confidence = None if score is None else _numbers(file, f"{key}.score", [score], 1)[0]
        x, y, w, h = _numbers(file, f"{key}.bbox", _get(annotation, "bbox"), 4)
        box = Box(x / width, y / height, w / width, h / height, confidence)
        boxes.append(_inside(box, f"{file}: {key}.bbox", f"the photo of {width:g} x {height:g} pixels"))


def _read_table(table: CsvTable, found: dict[str, list[Box]]) -> bool:
    """Reads the rows of a table; returns whether the numbers are pixels."""
    columns = {name: table.column(name) for name in ("path", "x", "y", "width", "height", "confidence")}
    missing = [name for name, column in columns.items() if column is None and name != "confidence"]
    if missing:
        raise UserError(
            f"{table.file} has no column '{missing[0]}': the first line must name path, x, y, width and height, "
            "optionally confidence."
        )
    rows: list[tuple[int, str, Box]] = []
    for line, cells in table.lines:
        values = {name: get_cell(cells, column) for name, column in columns.items()}
        path = normalize_path(_text(table.file, f"line {line}, path", values["path"] or None))
        found.setdefault(path, [])
        sides = [values[name] for name in ("x", "y", "width", "height")]
        if not any(sides):
            continue  # a photo without a box
        x, y, width, height = _numbers(table.file, f"line {line}, x, y, width and height", sides, 4)
        (confidence,) = _numbers(table.file, f"line {line}, confidence", [values["confidence"] or 1], 1)
        rows.append((line, path, Box(x, y, width, height, confidence if values["confidence"] else None)))
    in_pixels = any(value > 1 for _, _, box in rows for value in box[:4])
    for line, path, box in rows:
        found[path].append(box if in_pixels else _inside(box, f"{table.file}: line {line}", "the photo"))
    return in_pixels


def _inside(box: Box, where: str, photo: str) -> Box:
    """Clips the part of a box that rounding left outside the photo; raises UserError for other boxes outside."""
    right, lower = box.x + box.width, box.y + box.height
    limits = -ROUNDING, 1 + ROUNDING
    if not (limits[0] <= box.x <= right <= limits[1] and limits[0] <= box.y <= lower <= limits[1]):
        raise UserError(f"{where} is not inside {photo}: correct it, or remove it.")
    if box.x >= 0 and box.y >= 0 and right <= 1 and lower <= 1:
        return box
    x, y = min(max(box.x, 0.0), 1.0), min(max(box.y, 0.0), 1.0)
    return Box(x, y, max(min(right, 1.0) - x, 0.0), max(min(lower, 1.0) - y, 0.0), box.confidence)


def _get(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _list(file: Path, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{file}: {key} must be a list.")
    return value


def _text(file: Path, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{file}: {key} must be the path of a photo, not {_show(value)}.")
    return value


def _id(file: Path, key: str, value: Any) -> int | str:
    if not isinstance(value, int | str):
        raise UserError(f"{file}: {key} must be a number or text, not {_show(value)}.")
    return value


def _numbers(file: Path, key: str, values: Any, count: int) -> list[float]:
    """Converts numbers, which may be text; raises UserError if they are not ``count`` finite numbers."""
    try:
        numbers = [float(value) for value in values if not isinstance(value, bool)]
    except (TypeError, ValueError, OverflowError):  # a whole number may be too large for a float
        numbers = []
    if len(numbers) != count or len(values) != count or not all(map(math.isfinite, numbers)):
        wanted = "a number" if count == 1 else f"{count} numbers"
        given = values[0] if count == 1 and isinstance(values, list) else values
        raise UserError(f"{file}: {key} must be {wanted}, not {_show(given)}.")
    return numbers


def _show(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]
