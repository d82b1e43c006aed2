"""A program that decodes image files for another: ``decode_process SIDE LEFT_ALONE MEMORY:SOCKET MEMORY:SOCKET ...``.

It divides into a process for each pair of descriptors, which is quicker than to start as many programs. A line from its
socket names some files, a line back says what is in the shared memory then; both are JSON. A process ends with its
input, however the other program ends.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from contextlib import suppress

import numpy as np
from PIL import Image

from semifine.data.packing import pack
from semifine.data.reading import decode_or_reason


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
