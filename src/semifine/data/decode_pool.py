"""Decodes image files in processes, because Python threads would compete for the interpreter.

:func:`decode_in_processes` starts this module as a program. The program imports NumPy and Pillow but not PyTorch, so
it starts fast, and forks into the workers. It is not forked from the calling process, so it shares no locks and no GPU
with it, only a block of memory and a socket per worker. A worker reads JSON lists of photos from the socket, writes the
pixels to the memory, and answers with their shapes, their order and the reasons of unreadable files.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from itertools import chain
from queue import SimpleQueue
from socket import socket, socketpair
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.boxes import Box, Crop, Photo
from semifine.data.decode import MAX_ASPECT, Pixels, try_decode_file
from semifine.data.parallel import map_in_order
from semifine.errors import UserError
from semifine.processes import child_environment, end_with_parent

ResultT = TypeVar("ResultT")
Reasons = list[str | None]
"""Why a file is unreadable, for each file of a group; None for readable files."""

RESERVED_DESCRIPTORS = 200
"""File descriptors that are left to the rest of the process."""
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # forking a process that has several threads is not safe
    # The C library keeps up to 64 MB of freed memory for the next image. Requesting new memory from the system each
    # time takes a tenth of the decoding time.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}


class PackedImages(NamedTuple):
    """Images in one array of bytes, sorted by shape."""

    pixels: NDArray[np.uint8]
    """`(bytes,)` pixels of all images."""
    shapes: list[tuple[int, int]]
    """Height and width of each packed image."""
    order: list[int]
    """Position of each packed image before sorting."""


def pack_images(images: Sequence[Pixels], out: NDArray[np.uint8] | None = None) -> PackedImages:
    """Sorts images by shape and concatenates their pixels.

    Args:
        images: `(height, width, 3)` images.
        out: Memory to write the pixels to; by default new memory.

    Example:
        >>> packed = pack_images([np.zeros((2, 2, 3), np.uint8), np.ones((1, 2, 3), np.uint8)])
        >>> packed.shapes, packed.order
        ([(1, 2), (2, 2)], [1, 0])
        >>> packed.pixels.shape
        (18,)
    """
    order = sorted(range(len(images)), key=lambda index: images[index].shape)
    parts = [images[index].reshape(-1) for index in order]
    size = sum(map(len, parts))
    pixels = np.empty(size, np.uint8) if out is None else out[:size]
    if parts:
        np.concatenate(parts, out=pixels)
    return PackedImages(pixels, [(images[index].shape[0], images[index].shape[1]) for index in order], order)


def supports_processes() -> bool:
    """Whether the system can share anonymous memory between processes, as Linux can.

    Unlike ``/dev/shm``, which Docker limits to 64 MB, this memory has no limit.
    """
    try:
        os.close(os.memfd_create("test"))
    except (AttributeError, OSError):
        return False
    return bool(sys.executable)


def decode_in_processes(
    groups: Iterable[Sequence[Photo]],
    collate: Callable[[PackedImages, Reasons], ResultT],
    *,
    shorter_side: int,
    full_size_pixels: int,
    group_size: int,
    workers: int,
) -> Iterator[ResultT]:
    """Decodes groups of files as :func:`~semifine.data.decode.try_decode_file` does, and keeps their order.

    Args:
        groups: Lists of at most ``group_size`` files or crops.
        collate: Called with the readable images of a group and the reasons of the unreadable ones. It must copy the
            pixels, because their memory is reused.
        shorter_side: Larger images are shrunk to this shorter side.
        full_size_pixels: See :func:`~semifine.data.decode.decode_pixels`.
        group_size: The largest number of files in a group.
        workers: Number of processes.

    Raises:
        UserError: If a worker process is killed.
    """
    workers = min(workers, _max_processes())
    in_flight = workers + workers // 2 + 1  # includes finished groups that wait for an earlier one
    memory_bytes = group_size * max(full_size_pixels, MAX_ASPECT * shorter_side**2) * 3
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def decode(photos: Sequence[Photo]) -> ResultT:
        worker = idle.get()
        try:
            return collate(*worker.decode(photos))
        finally:
            idle.put(worker)

    with _start_workers(workers, memory_bytes, shorter_side, full_size_pixels) as pool:
        for worker in pool:
            idle.put(worker)
        yield from map_in_order(decode, groups, workers, in_flight=in_flight)


def _max_processes() -> int:
    """The number of processes that the limit of file descriptors allows; each process takes three while it starts."""
    import resource  # does not exist on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, (limit - RESERVED_DESCRIPTORS) // 3)


class _Worker:
    """The memory shared with a worker process, and the socket to it."""

    def __init__(self, memory: FileIO, memory_bytes: int, socket: socket) -> None:
        self._pixels = np.frombuffer(mmap.mmap(memory.fileno(), memory_bytes), np.uint8)
        self._socket = socket
        self._responses = socket.makefile("rb")

    def decode(self, photos: Sequence[Photo]) -> tuple[PackedImages, Reasons]:
        try:
            self._socket.sendall(json.dumps(photos).encode() + b"\n")
            shapes, order, reasons = json.loads(self._responses.readline())
        except (OSError, ValueError) as error:
            raise UserError(
                "A process that decodes images was killed, perhaps because the memory was exhausted. Continue with "
                "--resume, and with fewer --workers if it happens again."
            ) from error
        size = sum(height * width * 3 for height, width in shapes)
        return PackedImages(self._pixels[:size], [(height, width) for height, width in shapes], order), reasons

    def close(self) -> None:
        """Closes the socket, which ends the process."""
        self._responses.close()
        self._socket.close()


@contextmanager
def _start_workers(count: int, memory_bytes: int, shorter_side: int, full_size_pixels: int) -> Iterator[list[_Worker]]:
    """Starts worker processes, and ends them when the block ends."""
    with ExitStack() as stack:
        with ExitStack() as child_stack:  # descriptors that only the child processes keep
            ends = []
            for _ in range(count):
                parent_socket, child_socket = socketpair()
                stack.enter_context(parent_socket)
                child_stack.enter_context(child_socket)
                memory = child_stack.enter_context(FileIO(os.memfd_create("decoded images"), "r+"))
                memory.truncate(memory_bytes)  # the system allocates pages when they are written
                ends.append((parent_socket, child_socket, memory))
            process = _start_program(
                shorter_side, full_size_pixels, [(memory.fileno(), socket.fileno()) for _, socket, memory in ends]
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGTERM)
            workers = []
            for parent_socket, child_socket, memory in ends:
                workers.append(_Worker(memory, memory_bytes, parent_socket))
                stack.callback(workers[-1].close)  # ends the process even if it ignores SIGTERM
                child_socket.close()
                memory.close()  # in this loop, because each memory map takes a descriptor, too
        yield workers


def _start_program(
    shorter_side: int, full_size_pixels: int, ends: Sequence[tuple[int, int]]
) -> subprocess.Popen[bytes]:
    arguments = [str(shorter_side), str(full_size_pixels), *(f"{memory}:{socket}" for memory, socket in ends)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "semifine.data.decode_pool", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=list(chain.from_iterable(ends)),
        process_group=0,  # Ctrl-C reaches only the calling process, which ends the workers
        env={**child_environment(), **_ENVIRONMENT},
    )


def main() -> None:
    """Runs the program ``decode_pool SHORTER_SIDE FULL_SIZE_PIXELS MEMORY:SOCKET ...``, one worker per pair."""
    shorter_side, full_size_pixels = map(int, sys.argv[1:3])
    ends = [tuple(map(int, pair.split(":"))) for pair in sys.argv[3:]]
    Image.init()  # loads Pillow's formats once instead of in each worker
    for index, (memory, connection) in enumerate(ends):
        if os.fork() == 0:
            for _, other in ends[index + 1 :]:
                os.close(other)  # otherwise the calling process would not detect that the other worker ended
            _serve(memory, connection, shorter_side, full_size_pixels)
            return
        os.close(connection)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SIGTERM is for the workers; this process waits for them
    # The workers end when their sockets are closed, but one that decodes a large file would notice it late. This call
    # starts a thread, so it comes after the forks.
    end_with_parent(lambda: os.killpg(0, signal.SIGKILL))
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _serve(memory: int, connection: int, shorter_side: int, full_size_pixels: int) -> None:
    pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    with (
        open(connection, encoding="utf-8") as requests,
        open(connection, "w", encoding="utf-8", closefd=False) as responses,
    ):
        for line in requests:
            decoded = [try_decode_file(_photo(sent), shorter_side, full_size_pixels) for sent in json.loads(line)]
            packed = pack_images([image for image in decoded if not isinstance(image, str)], out=pixels)
            reasons = [image if isinstance(image, str) else None for image in decoded]
            print(json.dumps([packed.shapes, packed.order, reasons]), file=responses, flush=True)


def _photo(sent: str | list[Any]) -> Photo:
    """The file or crop that JSON represents as text or as a list."""
    return sent if isinstance(sent, str) else Crop(sent[0], Box(*sent[1]))


if __name__ == "__main__":
    main()
