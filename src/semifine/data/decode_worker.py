"""Worker process that decodes image files: ``decode_worker SIDE LEFT_ALONE MEMORY:SOCKET MEMORY:SOCKET ...``."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.decode import decode_or_reason

Levels = NDArray[np.uint8]


class Packed(NamedTuple):
    """Images, those of one size one after the other."""

    levels: Levels
    """Flat."""
    shapes: list[tuple[int, int]]
    """Heights and widths, in the order of the levels,"""
    places: list[int]
    """and where the images were before."""


def pack(images: Sequence[Levels], into: Levels | None = None) -> Packed:
    """(H, W, 3) images, written to the beginning of ``into`` where that is given."""
    places = sorted(range(len(images)), key=lambda place: images[place].shape)
    parts = [images[place].reshape(-1) for place in places]
    size = sum(map(len, parts))
    levels = np.empty(size, np.uint8) if into is None else into[:size]
    if parts:
        np.concatenate(parts, out=levels)
    return Packed(levels, [(images[place].shape[0], images[place].shape[1]) for place in places], places)


def main() -> None:
    shorter_side, left_alone = map(int, sys.argv[1:3])
    pairs = [tuple(map(int, pair.split(":"))) for pair in sys.argv[3:]]
    Image.preinit()  # loads Pillow's usual formats once, not in each process
    for place, (memory, socket) in enumerate(pairs):
        if os.fork() == 0:
            for _, of_another in pairs[place + 1 :]:
                os.close(of_another)  # else it would not be noticed when the other ends
            serve(memory, socket, shorter_side, left_alone)
            return
        os.close(socket)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the others, whose ends are awaited here
    with suppress(ChildProcessError):
        while True:
            os.wait()


def serve(memory: int, socket: int, shorter_side: int, left_alone: int) -> None:
    levels = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    with open(socket, encoding="utf-8") as questions, open(socket, "w", encoding="utf-8", closefd=False) as answers:
        for line in questions:
            decoded = [decode_or_reason(file, shorter_side, left_alone) for file in json.loads(line)]
            packed = pack([found for found in decoded if not isinstance(found, str)], into=levels)
            reasons = [found if isinstance(found, str) else None for found in decoded]
            print(json.dumps([packed.shapes, packed.places, reasons]), file=answers, flush=True)


if __name__ == "__main__":
    main()
