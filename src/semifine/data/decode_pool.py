"""Image files decoded by processes: Python's threads would wait for each other, and others for them.

The processes know numpy and Pillow alone, so they start at once; as they are not forked from this one they share
neither locks nor a GPU with it, only a piece of memory each.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from itertools import chain
from queue import SimpleQueue
from socket import socket, socketpair
from typing import TypeVar

import numpy as np

from semifine.data.decode import MAX_ASPECT
from semifine.data.decode_worker import Packed
from semifine.data.parallel import map_in_order
from semifine.errors import UserError

ResultT = TypeVar("ResultT")
Reasons = list[str | None]
"""Of each file why it could not be read, if so."""

DESCRIPTORS_LEFT = 200
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # as a process with several threads cannot safely divide
    # The C library keeps up to 64 MB for the next image: to ask the system for new memory each time takes as long as a
    # tenth of the decoding.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}


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
    """Groups of at most ``most`` files, as ``data.reading.decode_pixels`` decodes them, in their order.

    ``take`` gets the readable images of a group and makes a copy of them, since the memory is used again.
    """
    workers = min(workers, _most_processes())
    in_flight = workers + workers // 2 + 1  # with those that wait for an earlier group
    room = most * max(left_alone, MAX_ASPECT * shorter_side**2) * 3
    idle: SimpleQueue[_Decoder] = SimpleQueue()

    def decode(files: Sequence[str]) -> ResultT:
        decoder = idle.get()
        try:
            return take(*decoder.decode(files))
        finally:
            idle.put(decoder)

    with _started(workers, room, shorter_side, left_alone) as decoders:
        for decoder in decoders:
            idle.put(decoder)
        yield from map_in_order(decode, groups, workers, in_flight=in_flight)


def _most_processes() -> int:
    """Each takes three descriptors while it starts, and others need some."""
    import resource  # of the systems that can share memory

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, (limit - DESCRIPTORS_LEFT) // 3)


class _Decoder:
    """One process as it is seen from here: the memory that it shares, and a socket to talk to it."""

    def __init__(self, memory: FileIO, room: int, socket: socket) -> None:
        self._levels = np.frombuffer(mmap.mmap(memory.fileno(), room), np.uint8)
        self._socket = socket
        self._answers = socket.makefile("rb")

    def decode(self, files: Sequence[str]) -> tuple[Packed, Reasons]:
        try:
            self._socket.sendall(json.dumps(files).encode() + b"\n")
            shapes, places, reasons = json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            raise UserError(
                "A process that decodes images was ended from outside, perhaps for want of memory. Go on with "
                "--resume, with fewer --workers if it happens again."
            ) from error
        used = sum(height * width * 3 for height, width in shapes)
        return Packed(self._levels[:used], [(height, width) for height, width in shapes], places), reasons

    def close(self) -> None:
        """The process is at the end of its input then."""
        self._answers.close()
        self._socket.close()


@contextmanager
def _started(count: int, room: int, shorter_side: int, left_alone: int) -> Iterator[list[_Decoder]]:
    """So many processes, for as long as the block lasts."""
    with ExitStack() as ours:
        with ExitStack() as theirs:  # which the processes alone hold when they have started
            ends = []
            for _ in range(count):
                here, there = socketpair()
                ours.enter_context(here)
                theirs.enter_context(there)
                memory = theirs.enter_context(FileIO(os.memfd_create("decoded images"), "r+"))
                memory.truncate(room)  # takes memory where it is written to, not before
                ends.append((here, there, memory))
            process = _start(shorter_side, left_alone, [(memory.fileno(), there.fileno()) for _, there, memory in ends])
            ours.callback(process.wait)
            ours.callback(os.killpg, process.pid, signal.SIGTERM)
            decoders = []
            for here, there, memory in ends:
                decoders.append(_Decoder(memory, room, here))
                ours.callback(decoders[-1].close)  # ends them even where SIGTERM is ignored
                there.close()
                memory.close()  # one by one: a mapping takes a descriptor, too
        yield decoders


def _start(shorter_side: int, left_alone: int, ends: Sequence[tuple[int, int]]) -> subprocess.Popen[bytes]:
    arguments = [str(shorter_side), str(left_alone), *(f"{memory}:{socket}" for memory, socket in ends)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "semifine.data.decode_worker", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=list(chain.from_iterable(ends)),
        process_group=0,  # Ctrl-C is for this process, which ends the others
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **_ENVIRONMENT},
    )
