"""Exports the labels of a log to the formats of other programs, and imports labels from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semifine.data.boxes import Box, normalize_path
from semifine.data.catalog import Catalog, normalize_class_name
from semifine.data.label_log import LABEL, CurrentLabel, Event, LabelLog, current_labels
from semifine.errors import UserError
from semifine.studio.exchange_camtrap import read_camtrap, write_camtrap
from semifine.studio.exchange_formats import READERS, WRITERS, Entry, Label, Skipped
from semifine.studio.images import PhotoFiles

CAMTRAP = "camtrapdp"


@dataclass(frozen=True)
class Format:
    """How a format is offered.

    Args:
        title: Name of the format.
        suffix: Suffix of its file.
        media_type: Media type of its file.
    """

    title: str
    suffix: str
    media_type: str


JSON = "application/json"
FORMATS = {
    "csv": Format("CSV", ".csv", "text/csv; charset=utf-8"),
    "labelstudio": Format("Label Studio JSON", ".json", JSON),
    "coco": Format("COCO JSON", ".json", JSON),
    "fiftyone": Format("FiftyOne labels.json", ".json", JSON),
    CAMTRAP: Format("Camtrap DP", ".zip", "application/zip"),
}


def check_format(name: str) -> str:
    """Returns the name of a format. Raises ``UserError`` for others.

    Example:
        >>> check_format("coco")
        'coco'
    """
    if name not in FORMATS:
        raise UserError(f"There is no format '{name}': choose one of {', '.join(FORMATS)}.")
    return name


def guess_format(file: Path) -> str:
    """Returns the format that the name of a file suggests: CSV, or Camtrap DP for a folder, an archive or observations.

    Example:
        >>> guess_format(Path("labels.csv")), guess_format(Path("package/observations.csv"))
        ('csv', 'camtrapdp')
    """
    if file.name == "observations.csv" or file.suffix.lower() == ".zip" or file.is_dir():
        return CAMTRAP
    if file.suffix.lower() == ".json":
        raise UserError(f"{file} can have several formats: choose one with --format labelstudio, coco or fiftyone.")
    return "csv"


# Export


def collect_labels(labels: Iterable[tuple[str, CurrentLabel]], photos: PhotoTable, with_size: bool) -> list[Label]:
    """Returns the agreed labels with their photos and boxes, sorted by path.

    Args:
        labels: Path and state of each image.
        photos: The images of the data set. Labels of other images are left out.
        with_size: Whether to read the width and height of each photo from its file.
    """
    collected = []
    for path, state in sorted(labels, key=lambda pair: pair[0]):
        row = photos.row_of(path)
        if state.label is None or row is None:
            continue
        verdict = state.verdicts[-1]
        size = photos.size(row) if with_size else None
        collected.append(Label(photos.photo(row), state.label, photos.box(row), size, verdict.person, verdict.time))
    return collected


def export_as(format_name: str, labels: Sequence[Label], class_names: Sequence[str], photos: PhotoTable) -> bytes:
    """Returns the content of the exported file."""
    if check_format(format_name) == CAMTRAP:
        return write_camtrap(labels, photos.file_of, photos.root)
    return WRITERS[format_name](labels, class_names).encode()


def needs_size(format_name: str) -> bool:
    """Whether the format contains the width and height of photos."""
    return format_name in ("coco", "labelstudio")


# Import


@dataclass(frozen=True)
class ImportResult:
    """The labels of a file that fit the data set, and those that do not."""

    labels: list[tuple[int, str]]
    """Row in the ``PhotoTable`` and class."""
    skipped: list[Skipped]


class PhotoTable:
    """Finds images by the paths that other programs write.

    Args:
        catalog: The data set.
        rows: Catalog rows of the images that may be labeled.
    """

    def __init__(self, catalog: Catalog, rows: Iterable[int]) -> None:
        self._files = PhotoFiles(catalog)
        self.root = "" if catalog.root is None else os.path.abspath(catalog.root)
        self._rows = [int(row) for row in rows]
        self._paths = [str(catalog.paths[row]) for row in self._rows]
        self._row_of = {path: row for row, path in enumerate(self._paths)}
        self._by_name: dict[bool, dict[str, list[int]]] = {}

    def row_of(self, path: str) -> int | None:
        """The row of a path as the log writes it."""
        return self._row_of.get(path)

    def path(self, row: int) -> str:
        """The path of a row in the log."""
        return self._paths[row]

    def photo(self, row: int) -> str:
        """The path of the photo of a row; boxes of one photo share it."""
        return self._files.photo(self._rows[row], self._paths[row])

    def box(self, row: int) -> Box | None:
        """The box of a row; None for a whole photo."""
        return self._files.box(self._rows[row])

    def size(self, row: int) -> tuple[int, int] | None:
        """Width and height of the photo."""
        return self._files.size(self._rows[row])

    def file_of(self, photo: str) -> str | None:
        """The file of a photo; None if there is none."""
        rows = self._named(photo, False)
        return self._files.file(self._rows[rows[0]]) if rows else None

    def find(self, label: Label, ignore_suffix: bool = False) -> int | str:
        """Returns the row of a label, or the reason why there is none.

        Paths match if one of them ends with the other, so that a label for ``/data/birds/1.jpg`` fits ``birds/1.jpg``.
        """
        rows = self._named(label.path, ignore_suffix)
        photos = {self.photo(row) for row in rows}
        if len(photos) > 1:
            return f"{len(photos)} photos have this name: write more of their folders"
        if not rows:
            return "there is no such photo without a label in the data set"
        if label.box is None:
            return rows[0] if len(rows) == 1 else f"the photo has {len(rows)} boxes, and the label names none"
        overlaps = [_overlap(label.box, self.box(row)) for row in rows]
        best = max(range(len(rows)), key=overlaps.__getitem__)
        return rows[best] if overlaps[best] >= MIN_OVERLAP else "no box of the photo overlaps with the box of the label"

    def _named(self, path: str, ignore_suffix: bool) -> list[int]:
        wanted = _parts(normalize_path(path))
        candidates = self._index(ignore_suffix).get(wanted[-1], []) if wanted else []
        found = [row for row in candidates if _end_equal(_parts(self.photo(row))[:-1], wanted[:-1])]
        exact = [row for row in found if len(_parts(self.photo(row))) == len(wanted)]
        return exact or found

    def _index(self, ignore_suffix: bool) -> dict[str, list[int]]:
        if ignore_suffix not in self._by_name:
            rows_of: dict[str, list[int]] = {}
            for row in range(len(self._paths)):
                name = os.path.basename(self.photo(row))
                rows_of.setdefault(os.path.splitext(name)[0] if ignore_suffix else name, []).append(row)
            self._by_name[ignore_suffix] = rows_of
        return self._by_name[ignore_suffix]


MIN_OVERLAP = 0.5
"""Intersection over union from which two boxes are the same."""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _end_equal(first: Sequence[str], second: Sequence[str]) -> bool:
    return all(a == b for a, b in zip(reversed(first), reversed(second), strict=False))


def _overlap(box: Box, other: Box | None) -> float:
    """Intersection over union; 1 if the other is a whole photo, which any box of it labels."""
    if other is None:
        return 1.0
    width = min(box.x + box.width, other.x + other.width) - max(box.x, other.x)
    height = min(box.y + box.height, other.y + other.height) - max(box.y, other.y)
    common = max(width, 0.0) * max(height, 0.0)
    return common / (box.width * box.height + other.width * other.height - common)


def match_labels(
    entries: Iterable[Entry], photos: PhotoTable, class_names: Sequence[str], ignore_suffix: bool = False
) -> ImportResult:
    """Selects the labels that fit the data set. A photo with two classes gets none of them."""
    names = {normalize_class_name(name): name for name in class_names}
    found: dict[int, str] = {}
    contradictory: dict[int, str] = {}
    skipped: list[Skipped] = []
    for entry in entries:
        if isinstance(entry, Skipped):
            skipped.append(entry)
            continue
        class_name, row = names.get(normalize_class_name(entry.class_name)), photos.find(entry, ignore_suffix)
        if isinstance(row, str):
            skipped.append(Skipped(entry.path, row))
        elif class_name is None:
            skipped.append(Skipped(entry.path, f"'{entry.class_name}' is not a class of the studio"))
        elif found.setdefault(row, class_name) != class_name:
            contradictory[row] = entry.path
    skipped += [Skipped(path, "the file gives it two classes") for path in contradictory.values()]
    return ImportResult([(row, name) for row, name in found.items() if row not in contradictory], skipped)


def read_entries(format_name: str, name: str, text: str) -> Iterable[Entry]:
    """Reads the labels in the text of a file; ``name`` is its name in messages."""
    return read_camtrap(name, text) if check_format(format_name) == CAMTRAP else READERS[format_name](name, text)


def import_text(format_name: str, name: str, text: str, photos: PhotoTable, class_names: Sequence[str]) -> ImportResult:
    """Reads the labels of a file that fit the data set."""
    # FiftyOne identifies photos by their path without its suffix.
    return match_labels(read_entries(format_name, name, text), photos, class_names, format_name == "fiftyone")


def record_labels(log: LabelLog, person: str, labels: Iterable[tuple[str, str]], format_name: str) -> int:
    """Appends labels to a log as one answer of a person, except those that the person has given already.

    They do not replace labels of other people, so that disagreements become conflicts.

    Args:
        log: The log.
        person: Who answers for the labels.
        labels: Path and class of each.
        format_name: Format of the file, for the audit log.

    Returns:
        The number of new labels.
    """
    own = {path: state.verdict_of(person) for path, state in current_labels(log.events()).items()}
    new = [
        Event(person, path, LABEL, class_name, shown={"imported": format_name})
        for path, class_name in labels
        if (old := own.get(path)) is None or (old.kind, old.class_name) != (LABEL, class_name)
    ]
    if new:
        log.append(new)
    return len(new)
