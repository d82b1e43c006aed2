"""Images that belong together: of one folder, one burst of a camera, or one value of a column."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.reading import FileReader, read_exif

Groups = NDArray[np.int64]
"""(rows,) images with the same number belong together."""

FOLDER = "folder"
BURST = "exif-burst"

_MODEL, _EXIF, _TAKEN, _SERIAL, _SUBSECOND = 0x0110, 0x8769, 0x9003, 0xA431, 0x9291


def groups_of(keys: Sequence[Hashable | None]) -> Groups:
    """Equal keys belong together; None belongs to nobody."""
    numbers: dict[Hashable, int] = {}
    return np.array(
        [numbers.setdefault(row if key is None else (key,), len(numbers)) for row, key in enumerate(keys)], np.int64
    )


def alone(rows: int) -> Groups:
    """Every image by itself."""
    return np.arange(rows, dtype=np.int64)


def burst_groups(reader: FileReader, gap_seconds: float) -> Groups:
    """Photos of one camera that follow each other within the gap; without a time each is alone."""
    rows = len(reader.paths)
    shots = list(map_in_order(lambda row: _shot(reader.file(row)), range(rows), usable_cores()))
    keys: list[Hashable | None] = [None] * rows
    timed = sorted((shot, row) for row, shot in enumerate(shots) if shot is not None)
    burst = 0
    for place, ((camera, time), row) in enumerate(timed):
        if place:
            (camera_before, time_before), _ = timed[place - 1]
            burst += camera != camera_before or time - time_before > gap_seconds
        keys[row] = burst
    return groups_of(keys)


def taken_at(exif: Image.Exif) -> datetime | None:
    """When a photo was taken, by the clock of the camera; None where it does not say."""
    details = exif.get_ifd(_EXIF)
    try:
        time = datetime.strptime(str(details[_TAKEN]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        fraction = float(f"0.{int(str(details.get(_SUBSECOND, 0)).strip())}")
    except (KeyError, ValueError):
        return None
    return time.replace(microsecond=int(fraction * 1e6))


def _shot(file: str) -> tuple[str, float] | None:
    """The camera and the moment, in seconds."""
    exif = read_exif(file)
    time = taken_at(exif) if exif is not None else None
    if exif is None or time is None:
        return None
    return f"{exif.get(_MODEL, '')} {exif.get_ifd(_EXIF).get(_SERIAL, '')}", time.timestamp()
