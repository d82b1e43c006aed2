"""Labels as a Camera Trap Data Package: a zip archive of its tables, and observations of people from its tables."""

from __future__ import annotations

import io
import json
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from semifine.data.boxes import Box
from semifine.data.csv_table import CsvTable, get_cell, parse_csv
from semifine.errors import UserError, short_reason
from semifine.files import check_is_no_pipe, read_text
from semifine.inference.camtrap import FILES, write_package
from semifine.studio.exchange_formats import Entry, Label, Skipped

OBSERVATIONS, MEDIA = "observations.csv", "media.csv"
MAX_BYTES = 1 << 30
"""Size of the largest table in an archive."""


def write_camtrap(labels: Sequence[Label], file_of: Callable[[str], str | None], root: str) -> bytes:
    """Returns a zip archive of a package, to be unpacked in the folder of the photos.

    Args:
        labels: The labels, sorted by photo.
        file_of: Finds the file of a photo, whose metadata contain the time and the place.
        root: The folder of the photos.

    Raises:
        UserError: If none of the photos has a file.
    """
    records = [_record(label, file) for label in labels if (file := file_of(label.path)) is not None]
    if labels and not records:
        raise UserError("Camtrap DP describes photo files, which this data set does not have: choose another format.")
    with tempfile.TemporaryDirectory() as folder:
        write_package(records, Path(folder) / "package", "", root=os.path.abspath(root))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in FILES:
                archive.write(Path(folder) / "package" / name, name)
    return buffer.getvalue()


def _record(label: Label, file: str) -> dict[str, Any]:
    record: dict[str, Any] = {"path": file, "name": label.class_name, "person": label.person, "time": label.time}
    if label.box is not None:
        x, y, width, height = label.box[:4]
        record |= {"box_x": x, "box_y": y, "box_width": width, "box_height": height}
    return record


def read_package(file: Path) -> str:
    """Returns the tables of a package as text for ``read_camtrap``.

    Args:
        file: The folder or zip archive of a package, its observations.csv, or JSON with the tables.

    Raises:
        UserError: If it contains no observations or cannot be read.
    """
    folder = file if file.is_dir() else file.parent if file.name == OBSERVATIONS else None
    try:
        if folder is not None:
            tables = {name: _read(folder / name) for name in (OBSERVATIONS, MEDIA) if (folder / name).exists()}
        elif file.is_file() and zipfile.is_zipfile(file):
            tables = _read_archive(file)
        else:
            return _read(file)
        return json.dumps(tables)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"Cannot read the package {file} ({short_reason(error)}): export it again.") from error


def _read(file: Path) -> str:
    check_is_no_pipe(file)
    return read_text(file, MAX_BYTES).removeprefix("\ufeff")


def _read_archive(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        tables = {}
        for info in archive.infolist():
            if (name := os.path.basename(info.filename)) in (OBSERVATIONS, MEDIA):
                with archive.open(info) as stream:  # the size that the archive claims may be wrong
                    content = stream.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    raise ValueError(f"{name} is larger than {MAX_BYTES >> 20} MB")
                tables[name] = content.decode("utf-8-sig")
        return tables


def read_camtrap(name: str, text: str) -> Iterator[Entry]:
    """Reads the animals that people observed in single photos.

    Args:
        name: Name of the file in messages.
        text: The table of observations, or a JSON object with the text of observations.csv and of media.csv. Without
            media.csv, each ``mediaID`` must be a path, as in packages of the studio.

    Example:
        >>> table = "mediaID,observationType,scientificName,classificationMethod\\n1.jpg,animal,robin,human\\n"
        >>> [(label.path, label.class_name) for label in read_camtrap("observations.csv", table)]
        [('1.jpg', 'robin')]
    """
    observations, media = _tables(name, text)
    path_of = {} if media is None else _media_paths(media)
    columns = {
        column: observations.column(column)
        for column in ("mediaID", "observationType", "scientificName", "classificationMethod")
    }
    if missing := [column for column, position in columns.items() if position is None and column != OPTIONAL]:
        raise UserError(f"{observations.file} has no column {missing[0]}: give {OBSERVATIONS} of a Camtrap DP package.")
    boxes = [observations.column(column) for column in ("bboxX", "bboxY", "bboxWidth", "bboxHeight")]
    for line, cells in observations.lines:
        media_id, kind, class_name, method = (get_cell(cells, column) for column in columns.values())
        if not media_id:
            yield Skipped(f"line {line}", "the observation belongs to an event, not to a photo")
            continue
        path = path_of.get(media_id, media_id)
        if method == "machine":
            yield Skipped(path, "a machine classified it")
        elif kind != "animal" or not class_name:
            yield Skipped(path, f"it shows no animal with a name, but '{kind or 'nothing'}'")
        else:
            box = [get_cell(cells, column) for column in boxes]
            yield _with_box(path, class_name, box) if any(box) else Label(path, class_name)


OPTIONAL = "classificationMethod"


def _with_box(path: str, class_name: str, cells: Sequence[str]) -> Entry:
    try:
        x, y, width, height = map(float, cells)
    except ValueError:
        return Skipped(path, "its box is invalid")
    is_valid = width > 0 and height > 0 and min(x, y) >= 0 and max(x + width, y + height) <= 1.01
    return Label(path, class_name, Box(x, y, width, height)) if is_valid else Skipped(path, "its box is invalid")


def _tables(name: str, text: str) -> tuple[CsvTable, CsvTable | None]:
    if not text.lstrip().startswith("{"):
        return _parse(name, text), None
    try:
        tables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON ({short_reason(error)}): give {OBSERVATIONS}.") from error
    if not isinstance(tables.get(OBSERVATIONS), str):
        raise UserError(f"{name} contains no {OBSERVATIONS}: give the tables of a Camtrap DP package.")
    media = tables.get(MEDIA)
    return _parse(OBSERVATIONS, tables[OBSERVATIONS]), _parse(MEDIA, media) if isinstance(media, str) else None


def _parse(name: str, text: str) -> CsvTable:
    return parse_csv(io.StringIO(text.removeprefix("\ufeff"), newline=""), Path(name))


def _media_paths(media: CsvTable) -> dict[str, str]:
    """The path of each medium: its path in the package, or its name if the path is an address on the web."""
    identifier, path, name = (media.column(column) for column in ("mediaID", "filePath", "fileName"))
    if identifier is None or path is None:
        raise UserError(f"{media.file} has no column mediaID or filePath: give {MEDIA} of a Camtrap DP package.")
    paths = {}
    for _, cells in media.lines:
        file_path, file_name = get_cell(cells, path), get_cell(cells, name)
        is_address = "://" in file_path and not file_path.startswith("file://")
        if file_path.startswith("file://"):
            file_path = unquote(file_path.removeprefix("file://"))
        paths[get_cell(cells, identifier)] = file_name if is_address and file_name else file_path
    return paths
