"""Images that belong together: of one folder, one burst of a camera, or one value of a column."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.photo_facts import camera_name, camera_serial, taken_at
from semifine.data.reading import FileReader, read_exif

Groups = NDArray[np.int64]
"""(rows,) images with the same number belong together."""

FOLDER = "folder"
BURST = "exif-burst"


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which images belong together, and what a person should know of it."""

    groups: Groups
    remarks: tuple[str, ...] = ()


def alone(rows: int) -> Grouping:
    """Every image by itself."""
    return Grouping(np.arange(rows, dtype=np.int64))


def grouped_by(keys: Sequence[Hashable | None], lack: str) -> Grouping:
    """Equal keys belong together; None belongs to nobody, and ``lack`` says what such an image has not."""
    numbers: dict[Hashable, int] = {}
    groups = [numbers.setdefault(row if key is None else (key,), len(numbers)) for row, key in enumerate(keys)]
    lacking = sum(key is None for key in keys)
    remarks = []
    if lacking:
        remarks.append(f"--group-by: {lacking} of {len(keys)} photos have {lack}, so each of them is by itself")
    elif len(numbers) == len(keys):
        remarks.append("--group-by changes nothing here: no two photos belong together")
    return Grouping(np.array(groups, np.int64), tuple(remarks))


def burst_groups(reader: FileReader, gap_seconds: float) -> Grouping:
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
    return grouped_by(keys, lack="no time in their EXIF")


def _shot(file: str) -> tuple[str, float] | None:
    """The camera and the moment, in seconds."""
    exif = read_exif(file)
    time = taken_at(exif) if exif is not None else None
    if exif is None or time is None:
        return None
    return f"{camera_name(exif)} {camera_serial(exif)}", (time - datetime(1970, 1, 1)).total_seconds()
