"""A process that decodes image files for another: ``python -m semifine.data.decode_process MEMORY SIDE LEFT_ALONE``.

A line of standard input names some files, a line of standard output says what is in the shared memory then; both are
JSON. It ends with its input, however the other process ends.
"""

from __future__ import annotations

import json
import mmap
import sys

import numpy as np

from semifine.data.packing import pack
from semifine.data.reading import decode_or_reason


def main() -> None:
    descriptor, shorter_side, left_alone = map(int, sys.argv[1:])
    memory = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    for line in sys.stdin:
        decoded = [decode_or_reason(file, shorter_side, left_alone) for file in json.loads(line)]
        packed = pack([found for found in decoded if not isinstance(found, str)], into=memory)
        reasons = [found if isinstance(found, str) else None for found in decoded]
        print(json.dumps([packed.shapes, packed.places, reasons]), flush=True)


if __name__ == "__main__":
    main()
