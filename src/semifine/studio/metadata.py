"""Dates and places of photos for searches, read from EXIF metadata in the background."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog
from semifine.data.decode import read_size
from semifine.data.photo_metadata import PhotoMetadata, read_photo_metadata
from semifine.errors import UserError
from semifine.studio.images import PhotoFiles

DATE_LENGTH = len("2024-05-06T07:08:09")
PAUSE_EVERY, PAUSE_SECONDS = 50, 0.005
"""Photos between two pauses of the background reader, in which the server answers requests."""
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


class MetadataIndex:
    """The dates of the images of a queue.

    Dates are empty until the background thread has read the photo.

    Args:
        catalog: The images.
        rows: The catalog rows ``(U,)`` of the images in the queue.
    """

    def __init__(self, catalog: Catalog, rows: NDArray[np.int64]) -> None:
        self._files = PhotoFiles(catalog)
        self._rows = rows
        self._dates = np.zeros(len(rows), f"U{DATE_LENGTH}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_read = 0
        """Number of photos that have been read."""

    def start(self, read: Callable[[str], PhotoMetadata] = read_photo_metadata) -> None:
        """Starts to read all photos in the background."""
        self._thread = threading.Thread(target=self._read_all, args=(read,), daemon=True, name="photo metadata")
        self._thread.start()

    def take_over(self, other: MetadataIndex) -> None:
        """Takes the dates that another index has read; its images are the first ones of this index."""
        self._dates[: other.num_read] = other._dates[: other.num_read]
        self.num_read = other.num_read

    def close(self) -> None:
        """Stops reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float) -> bool:
        """Waits until all photos are read. Returns whether they are."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.num_read == len(self._rows)

    def _read_all(self, read: Callable[[str], PhotoMetadata]) -> None:
        for index in range(self.num_read, len(self._rows)):
            if index % PAUSE_EVERY == 0 and self._stop.wait(PAUSE_SECONDS):
                return
            file = self._files.file(int(self._rows[index]))
            self._dates[index] = _date(read(file)) if file is not None else ""
            self.num_read = index + 1

    def matches_text(self, text: str) -> NDArray[np.bool_]:
        """Returns for each image ``(U,)`` whether its date contains a text such as ``2024-05``."""
        if not any(character.isdecimal() for character in text):
            return np.zeros(len(self._dates), np.bool_)
        return np.asarray(np.char.find(self._dates, text.upper()) >= 0)

    def is_between(self, after: str, before: str) -> NDArray[np.bool_]:
        """Returns for each image ``(U,)`` whether its date is known and within two limits.

        Args:
            after: First day, month or year, such as ``2024-05``; empty without a limit.
            before: Last day, month or year, which is included; empty without a limit.
        """
        matches = self._dates != ""
        if after:
            matches &= self._dates >= after
        if before:
            matches &= self._dates.astype(f"U{len(before)}") <= before
        return np.asarray(matches)

    def describe(self, index: int, path: str) -> dict[str, Any]:
        """Returns file name, folder, date, place and size of an image as JSON values, read from the file now."""
        folder, name = os.path.split(path)
        file = self._files.file(int(self._rows[index]))
        metadata = None if file is None else read_photo_metadata(file)
        size = None if file is None else read_size(file)
        return {
            "file": name,
            "folder": folder,
            "date": (_date(metadata) if metadata else "") or None,
            "place": list(metadata.place) if metadata and metadata.place else None,
            "size": list(size) if size else None,
        }


def _date(metadata: PhotoMetadata) -> str:
    """The time of the camera's clock; empty if the camera did not write it."""
    return metadata.time.replace(tzinfo=None).isoformat(timespec="seconds") if metadata.is_camera_time else ""


def parse_date(text: str, name: str) -> str:
    """Checks the limit of a date filter.

    Example:
        >>> parse_date("2024-05", "after")
        '2024-05'
    """
    if text and not _DATE.fullmatch(text):
        raise UserError(f"'{name}' must be a date such as 2024, 2024-05 or 2024-05-06.")
    return text
