"""Small photos with EXIF metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_photo(file: Path, seed: int, time: str | None = None, place: tuple[float, float] | None = None) -> None:
    """Writes a photo of noise with a capture time such as ``2024:05:06 07:08:09`` and a place in degrees."""
    file.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if time is not None:
        exif.get_ifd(0x8769)[0x9003] = time
    if place is not None:
        north, east = place
        exif.get_ifd(0x8825).update({1: "N" if north >= 0 else "S", 2: (abs(north), 0.0, 0.0)})
        exif.get_ifd(0x8825).update({3: "E" if east >= 0 else "W", 4: (abs(east), 0.0, 0.0)})
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(file, exif=exif)


def write_photos(folder: Path, unlabeled: int = 6) -> Path:
    """Writes a data set of two classes with six photos each, and of unlabeled photos taken on different days."""
    for number, name in enumerate(("robin", "wren")):
        for photo in range(6):
            write_photo(folder / name / f"{photo}.jpg", 100 * number + photo)
    for photo in range(unlabeled):
        write_photo(
            folder / "unlabeled" / f"{photo}.jpg", 1000 + photo, f"2024:05:{photo + 1:02d} 07:08:09", (48.5, -9.25)
        )
    return folder
