"""Image files decoded by processes: Python's threads would wait for each other, and others for them.

The processes know numpy and Pillow alone, so they start at once; as they are not forked they share neither locks nor a
GPU with this one, only a piece of memory each.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

import numpy as np

from semifine.data.in_order import map_in_order
from semifine.data.packing import Packed
from semifine.data.reading import MAX_ASPECT
from semifine.errors import UserError

ResultT = TypeVar("ResultT")
Reasons = list[str | None]
"""Of each file why it could not be read, if so."""

IN_FLIGHT_PER_PROCESS = 2


def processes_can_share() -> bool:
    """Linux can; its memory of this kind is not bounded as /dev/shm is, of which Docker gives 64 MB."""
    try:
        os.close(os.memfd_create("a trial"))
    except (AttributeError, OSError):
        return False
    return bool(sys.executable)


def decode_in_processes(
    groups: Iterable[Sequence[str]],
    take: Callable[[Packed, Reasons], ResultT],
    *,
    shorter_side: int,
    left_alone: int,
    most: int,
    workers: int,
) -> Iterator[ResultT]:
    """Groups of at most ``most`` files, as ``data.reading.decode_image`` decodes them, in their order.

    ``take`` gets the readable images of a group and makes a copy of them, since the memory is used again.
    """
    room = most * max(left_alone, MAX_ASPECT * shorter_side**2) * 3
    idle: SimpleQueue[_Decoder] = SimpleQueue()

    def decode(files: Sequence[str]) -> ResultT:
        decoder = idle.get()
        try:
            return take(*decoder.decode(files))
        finally:
            idle.put(decoder)

    with ExitStack() as open_ones:
        for _ in range(workers):
            idle.put(open_ones.enter_context(_Decoder(room, shorter_side, left_alone)))
        yield from map_in_order(decode, groups, workers, in_flight=workers * IN_FLIGHT_PER_PROCESS)


class _Decoder:
    """One process, and the memory that it shares with this one."""

    def __init__(self, room: int, shorter_side: int, left_alone: int) -> None:
        descriptor = os.memfd_create("decoded images")
        try:
            os.ftruncate(descriptor, room)  # takes memory where it is written to, not before
            self._levels = np.frombuffer(mmap.mmap(descriptor, room), np.uint8)
            arguments = [str(number) for number in (descriptor, shorter_side, left_alone)]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "semifine.data.decode_process", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                process_group=0,  # Ctrl-C is for this process, which ends the others
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            os.close(descriptor)

    def decode(self, files: Sequence[str]) -> tuple[Packed, Reasons]:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        try:
            questions.write(json.dumps(files).encode() + b"\n")
            questions.flush()
            shapes, places, reasons = json.loads(answers.readline())
        except (BrokenPipeError, ValueError) as error:
            raise UserError(
                "A process that decodes images was ended from outside, perhaps for want of memory. Go on with "
                "--resume, with fewer --workers if it happens again."
            ) from error
        used = sum(height * width * 3 for height, width in shapes)
        return Packed(self._levels[:used], [(height, width) for height, width in shapes], places), reasons

    def __enter__(self) -> _Decoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()
