"""Labels as text: CSV, Label Studio JSON, COCO JSON and FiftyOne's JSON."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from semifine.data.boxes import Box
from semifine.data.csv_table import get_cell, parse_csv
from semifine.data.extra_labels import labels_as_csv
from semifine.errors import UserError, short_reason


@dataclass(frozen=True)
class Label:
    """The class of a photo or of a box in it.

    Args:
        path: The photo, relative to the folder of the data set.
        class_name: The class.
        box: The box; None for the whole photo.
        size: Width and height of the photo in pixels; None if they are unknown.
        person: Who gave the label.
        time: When, in ISO 8601 format.
    """

    path: str
    class_name: str
    box: Box | None = None
    size: tuple[int, int] | None = None
    person: str = ""
    time: str = ""


@dataclass(frozen=True)
class Skipped:
    """A label of a file that was not imported."""

    path: str
    reason: str


Entry = Label | Skipped
"""A label in a file, or the reason why it cannot be used."""


# CSV


def write_csv_labels(labels: Sequence[Label], class_names: Sequence[str]) -> str:  # noqa: ARG001
    """Formats a table with the columns ``path`` and ``label``, as ``--labels`` reads it.

    Example:
        >>> write_csv_labels([Label("1.jpg", "robin")], ["robin"])
        'path,label\\n1.jpg,robin\\n'
    """
    return labels_as_csv([(label.path, label.class_name) for label in labels])


def read_csv_labels(name: str, text: str) -> Iterator[Entry]:
    """Reads a table with the columns ``path`` and ``label``; lines without a label are left out.

    Example:
        >>> list(read_csv_labels("labels.csv", "path,label\\n1.jpg,robin\\n2.jpg,\\n"))
        [Label(path='1.jpg', class_name='robin', box=None, size=None, person='', time='')]
    """
    table = parse_csv(io.StringIO(text.removeprefix("\ufeff"), newline=""), Path(name))
    path_column, label_column = table.column("path"), table.column("label")
    if path_column is None or label_column is None:
        raise UserError(f"{name} needs the columns path and label: name them in the first line.")
    for _, cells in table.lines:
        if class_name := get_cell(cells, label_column):
            yield Label(get_cell(cells, path_column), class_name)


# Label Studio: a list of tasks. Boxes are in percent of the photo.

LOCAL_FILES = "/data/local-files/?d="
"""Prefix of files in a local storage of Label Studio."""
_UPLOAD = re.compile(r"[0-9a-f]{8}-")
"""Label Studio puts these before the names of uploaded files."""


def write_label_studio(labels: Sequence[Label], class_names: Sequence[str]) -> str:  # noqa: ARG001
    """Formats tasks with a choice for each photo, or with a labeled rectangle for each box.

    Example:
        >>> task, = json.loads(write_label_studio([Label("1.jpg", "robin")], ["robin"]))
        >>> task["data"]["image"], task["annotations"][0]["result"][0]["value"]
        ('/data/local-files/?d=1.jpg', {'choices': ['robin']})
    """
    tasks = []
    for number, (path, of_photo) in enumerate(_by_photo(labels).items(), start=1):
        people = sorted({label.person for label in of_photo if label.person})
        results = [
            {"id": f"{number}-{position}", "to_name": "image", **_label_studio_result(label)}
            for position, label in enumerate(of_photo, start=1)
        ]
        data = {"image": LOCAL_FILES + quote(path, safe="/"), "labeled_by": ", ".join(people)}
        tasks.append({"id": number, "data": data, "annotations": [{"result": results}]})
    return _format(tasks)


def _label_studio_result(label: Label) -> dict[str, Any]:
    if label.box is None:
        return {"from_name": "class", "type": "choices", "value": {"choices": [label.class_name]}}
    x, y, width, height = (100 * number for number in label.box[:4])
    rectangle = {"x": x, "y": y, "width": width, "height": height, "rotation": 0}
    return {
        "from_name": "box",
        "type": "rectanglelabels",
        "value": {**rectangle, "rectanglelabels": [label.class_name]},
        **(dict(zip(("original_width", "original_height"), label.size, strict=True)) if label.size else {}),
    }


def read_label_studio(name: str, text: str) -> Iterator[Entry]:
    """Reads the choices and the labeled rectangles of tasks. Canceled annotations and predictions are left out.

    Example:
        >>> result = {"type": "choices", "value": {"choices": ["robin"]}}
        >>> task = {"data": {"image": "/data/upload/3/0a1b2c3d-1.jpg"}, "annotations": [{"result": [result]}]}
        >>> [(label.path, label.class_name) for label in read_label_studio("tasks.json", json.dumps([task]))]
        [('1.jpg', 'robin')]
    """
    tasks = _load_json(name, text)
    for number, task in enumerate(tasks if isinstance(tasks, list) else [tasks]):
        data = _get(task, "data")
        if not isinstance(data, dict):
            raise UserError(f"{name}: task {number} has no key 'data': export the tasks as JSON, not as JSON-MIN.")
        image = data.get("image") or next((value for value in data.values() if _is_image(value)), None)
        if not isinstance(image, str):
            yield Skipped(f"task {number}", "it names no photo")
            continue
        path = label_studio_path(image)
        for annotation in _entries(_get(task, "annotations") or _get(task, "completions")):
            if not _get(annotation, "was_cancelled"):  # codespell:ignore cancelled
                for result in _entries(_get(annotation, "result")):
                    yield from _read_label_studio_result(path, result)


def _read_label_studio_result(path: str, result: Any) -> Iterator[Entry]:
    kind, value = _get(result, "type"), _get(result, "value")
    if kind not in ("choices", "rectanglelabels"):
        return
    names = [choice for choice in _entries(_get(value, kind)) if isinstance(choice, str)]
    if len(names) != 1:
        yield Skipped(path, f"it has {len(names)} classes in one answer; a photo or box has one")
    elif kind == "choices":
        yield Label(path, names[0])
    elif _get(value, "rotation"):
        yield Skipped(path, "its box is rotated")
    else:
        box = _box([_get(value, key) for key in ("x", "y", "width", "height")], (100, 100))
        yield Skipped(path, "its box is invalid") if box is None else Label(path, names[0], box)


def label_studio_path(image: str) -> str:
    """Returns the path in the address of a photo in Label Studio.

    Example:
        >>> label_studio_path("/data/local-files/?d=birds/1%20a.jpg"), label_studio_path("s3://bucket/birds/1.jpg")
        ('birds/1 a.jpg', 'birds/1.jpg')
    """
    try:
        url = urlsplit(image)
    except ValueError:  # brackets that are not those of an IPv6 address
        return image
    if "/local-files" in url.path and (inside := parse_qs(url.query, keep_blank_values=True).get("d")):
        return inside[0]
    if "/data/upload/" in url.path:
        return _UPLOAD.sub("", unquote(os.path.basename(url.path)), count=1)
    if url.scheme and url.netloc:
        return unquote(url.path).lstrip("/")
    return image


def _is_image(value: Any) -> bool:
    return isinstance(value, str) and bool(re.search(r"\.\w{2,5}([?#]|$)|[?&]d=", value))


# COCO: images, categories and annotations. Boxes are in pixels.


def write_coco(labels: Sequence[Label], class_names: Sequence[str]) -> str:
    """Formats images, categories and annotations. The annotation of a whole photo has no box.

    Example:
        >>> coco = json.loads(write_coco([Label("1.jpg", "robin", size=(40, 30))], ["robin", "wren"]))
        >>> coco["images"], coco["annotations"]
        ([{'id': 1, 'file_name': '1.jpg', 'width': 40, 'height': 30}], [{'id': 1, 'image_id': 1, 'category_id': 1}])
    """
    category_of = {name: number for number, name in enumerate(_all_names(labels, class_names), start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, (path, of_photo) in enumerate(_by_photo(labels).items(), start=1):
        size = next((label.size for label in of_photo if label.size), None)
        sides = {} if size is None else {"width": size[0], "height": size[1]}
        images.append({"id": image_id, "file_name": path, **sides})
        for label in of_photo:
            ids = {"id": len(annotations) + 1, "image_id": image_id, "category_id": category_of[label.class_name]}
            annotations.append({**ids, **(_coco_box(label.box, size) if label.box and size else {})})
    categories = [{"id": number, "name": name} for name, number in category_of.items()]
    return _format({"images": images, "categories": categories, "annotations": annotations})


def _coco_box(box: Box, size: tuple[int, int]) -> dict[str, Any]:
    width, height = box.width * size[0], box.height * size[1]
    return {"bbox": [box.x * size[0], box.y * size[1], width, height], "area": width * height, "iscrowd": 0}


def read_coco(name: str, text: str) -> Iterator[Entry]:
    """Reads the annotations, with or without a box.

    Example:
        >>> labels = [Label("1.jpg", "robin", Box(0.1, 0.2, 0.5, 0.5), (40, 30))]
        >>> list(read_coco("coco.json", write_coco(labels, ["robin"]))) == labels
        True
    """
    content = _load_json(name, text)
    if not all(isinstance(_get(content, key), list) for key in ("images", "annotations", "categories")):
        raise UserError(f"{name} needs the lists images, annotations and categories: export the labels as COCO JSON.")
    images = {_key(image, "id"): image for image in content["images"]}
    categories = {_key(category, "id"): _get(category, "name") for category in content["categories"]}
    for number, annotation in enumerate(content["annotations"]):
        image = images.get(_key(annotation, "image_id"))
        path, class_name = _get(image, "file_name"), categories.get(_key(annotation, "category_id"))
        if not isinstance(path, str) or not isinstance(class_name, str):
            yield Skipped(f"annotation {number}", "its image_id or category_id has no entry with a name")
            continue
        size = _size([_get(image, "width"), _get(image, "height")])
        if not _get(annotation, "bbox"):
            yield Label(path, class_name, size=size)
            continue
        box = _box(annotation["bbox"], size) if size else None
        reason = "its box is invalid" if size else "a box needs the width and height of its image"
        yield Skipped(path, reason) if box is None else Label(path, class_name, box, size)


# FiftyOne: FiftyOneImageClassificationDataset, and FiftyOneImageDetectionDataset for boxes, which are fractions.


def write_fiftyone(labels: Sequence[Label], class_names: Sequence[str]) -> str:
    """Formats labels.json. If there are boxes, photos without one get a box around everything.

    Raises:
        UserError: If two photos differ only in their suffix, which FiftyOne removes.

    Example:
        >>> write_fiftyone([Label("a/1.jpg", "wren")], ["robin", "wren"])
        '{"classes": ["robin", "wren"], "labels": {"a/1": 1}}'
    """
    names = _all_names(labels, class_names)
    id_of = {name: number for number, name in enumerate(names)}
    has_boxes = any(label.box for label in labels)
    targets: dict[str, Any] = {}
    path_of: dict[str, str] = {}
    for path, of_photo in _by_photo(labels).items():
        name = os.path.splitext(path)[0]
        if path_of.setdefault(name, path) != path:
            raise UserError(f"FiftyOne's format cannot tell {path_of[name]} and {path} apart: rename one of them.")
        targets[name] = (
            [
                {"label": id_of[label.class_name], "bounding_box": list((label.box or Box(0, 0, 1, 1))[:4])}
                for label in of_photo
            ]
            if has_boxes
            else id_of[of_photo[0].class_name]
        )
    return _format({"classes": names, "labels": targets})


def read_fiftyone(name: str, text: str) -> Iterator[Entry]:
    """Reads labels.json of image classification or detection; photos without a label are left out.

    Example:
        >>> [(label.path, label.class_name) for label in read_fiftyone("labels.json", '{"labels": {"1": "robin"}}')]
        [('1', 'robin')]
    """
    content = _load_json(name, text)
    targets, classes = _get(content, "labels"), _get(content, "classes")
    if not isinstance(targets, dict):
        raise UserError(f"{name} has no key 'labels' with a label for each photo: give labels.json of FiftyOne.")
    for path, target in targets.items():
        if isinstance(target, list):
            for detection in target:
                yield _read_detection(path, detection, classes)
        elif target is not None:
            yield _fiftyone_label(path, _get(target, "label") if isinstance(target, dict) else target, classes)


def _read_detection(path: str, detection: Any, classes: Any) -> Entry:
    box = _box(_get(detection, "bounding_box"), (1, 1))
    if box is None:
        return Skipped(path, "its box is invalid")
    return _fiftyone_label(path, _get(detection, "label"), classes, box)


def _fiftyone_label(path: str, target: Any, classes: Any, box: Box | None = None) -> Entry:
    if isinstance(target, int) and isinstance(classes, list) and 0 <= target < len(classes):
        target = classes[target]
    if not isinstance(target, str):
        return Skipped(path, "its label is neither a name nor the number of a class")
    return Label(path, target, box)


# Helpers of all formats


def _by_photo(labels: Iterable[Label]) -> dict[str, list[Label]]:
    photos: dict[str, list[Label]] = {}
    for label in labels:
        photos.setdefault(label.path, []).append(label)
    return photos


def _all_names(labels: Iterable[Label], class_names: Iterable[str]) -> list[str]:
    """The classes in their order, and classes of labels that are not among them."""
    return list(dict.fromkeys([*class_names, *(label.class_name for label in labels)]))


def _format(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _load_json(name: str, text: str) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON ({short_reason(error)}): export the labels again.") from error


def _get(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _key(entry: Any, key: str) -> int | str | None:
    """An id, which files write as number or as text."""
    value = _get(entry, key)
    return value if isinstance(value, int | str) else None


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _size(sides: list[Any]) -> tuple[int, int] | None:
    is_valid = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    return (sides[0], sides[1]) if is_valid else None


ROUNDING = 0.01
"""Programs round boxes, which may therefore extend beyond the photo by this fraction."""


def _box(numbers: Any, size: tuple[int, int]) -> Box | None:
    """Returns x, y, width and height divided by the size of the photo; None for anything but a box in the photo."""
    if not isinstance(numbers, list) or len(numbers) != 4:
        return None
    try:
        x, y, width, height = (float(number) / size[axis % 2] for axis, number in enumerate(numbers))
    except (TypeError, ValueError, OverflowError):
        return None
    if not all(map(math.isfinite, (x, y, width, height))) or min(width, height) <= 0:
        return None
    is_inside = min(x, y) >= -ROUNDING and max(x + width, y + height) <= 1 + ROUNDING
    return Box(x, y, width, height) if is_inside else None


READERS: dict[str, Callable[[str, str], Iterator[Entry]]] = {
    "csv": read_csv_labels,
    "labelstudio": read_label_studio,
    "coco": read_coco,
    "fiftyone": read_fiftyone,
}

WRITERS: dict[str, Callable[[Sequence[Label], Sequence[str]], str]] = {
    "csv": write_csv_labels,
    "labelstudio": write_label_studio,
    "coco": write_coco,
    "fiftyone": write_fiftyone,
}
