"""JPEG files of which any decoder and any bicubic resize make the image that ``reading.decode_image`` makes."""

from __future__ import annotations

import io

from PIL import Image

from semifine.data.reading import MAX_ASPECT, draft_size, orientation_of

START = b"\xff\xd8\xff"
FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive ones."""
SCAN = 0xDA
HARMLESS = frozenset({0xC4, 0xDB, 0xDD, 0xE0, *range(0xE2, 0xF0), 0xFE})
"""Tables, comments, and the metadata (all but 0xE1) that never say how the camera was held."""


def is_whole_jpeg(data: bytes, shorter_side: int) -> bool:
    """Whether a file is an upright JPEG in RGB that is decoded in full size and then shrunk as a whole."""
    if not data.startswith(START):
        return False
    size = _plain_size(data) or _upright_size(data)
    if size is None or max(size) > MAX_ASPECT * min(size):
        return False
    # Pillow decodes at 1/2 where that is no smaller than the draft.
    return any(side // wanted < 2 for side, wanted in zip(size, draft_size(size, shorter_side), strict=True))


def _plain_size(data: bytes) -> tuple[int, int] | None:
    """Width and height by a walk over the header, at a tenth of what opening the file costs; None if in doubt."""
    place, size = 2, None
    while data[place : place + 1] == b"\xff":
        marker = int.from_bytes(data[place + 1 : place + 2])
        if marker == SCAN:
            return size
        if marker in FRAMES:
            depth, height, width, channels = (
                int.from_bytes(data[place + start : place + end]) for start, end in ((4, 5), (5, 7), (7, 9), (9, 10))
            )
            if (depth, channels) != (8, 3) or not width or not height:
                return None
            size = width, height
        elif marker not in HARMLESS:
            return None
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return None


def _upright_size(data: bytes) -> tuple[int, int] | None:
    """The same by Pillow, which also reads how the camera was held; None for another mode or a turned image."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size if image.mode == "RGB" and orientation_of(image) == 1 else None
    except Exception:  # a broken file can fail in a dozen ways
        return None
