"""Decoding in processes: order, equal images, bounded memory, and errors if a process is killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semifine.data import decode_pool
from semifine.data.decode import try_decode_file
from semifine.data.decode_pool import PackedImages, Reasons, decode_in_processes, pack_images, supports_processes
from semifine.errors import UserError

pytestmark = pytest.mark.skipif(not supports_processes(), reason="this system has no memory for processes to share")
SIDE, FULL_SIZE_PIXELS = 16, 40 * 30
WORKERS = 2
PATIENCE = 60
"""Seconds after which a test fails. Processes need much less, even on a loaded machine."""
Taken = tuple[list[np.ndarray | None], Reasons]

decode = partial(
    decode_in_processes, shorter_side=SIDE, full_size_pixels=FULL_SIZE_PIXELS, group_size=3, workers=WORKERS
)


def take(packed: PackedImages, reasons: Reasons) -> Taken:
    """Returns the images of a group in the order of their files."""
    readable: dict[int, np.ndarray] = {}
    start = 0
    for place, (height, width) in zip(packed.order, packed.shapes, strict=True):
        end = start + height * width * 3
        readable[place] = packed.pixels[start:end].reshape(height, width, 3).copy()
        start = end
    images = iter(readable[place] for place in sorted(readable))
    return [next(images) if reason is None else None for reason in reasons], reasons


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of many sizes and names, including the largest that fits into the memory; some are unreadable."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    names = [f"{number}.png" for number in range(10)] + ["Grünspecht ♀.png", 'quoted "name"\nof two lines.png']
    sizes = [(40, 30), (30, 40), (200, 50), (17, 400), (5, 5), (64, 64), (16, 64), (64, 16), (31, 40), (90, 80)] + [
        (20, 20)
    ] * 2
    for name, (width, height) in zip(names, sizes, strict=True):
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(folder / name)
    (folder / "3.5.png").write_bytes(b"no image")
    with open(os.fsencode(folder) + b"/no utf-8 \xff.png", "wb") as strange:
        strange.write((folder / "0.png").read_bytes())
    return [*sorted(str(file) for file in folder.iterdir()), str(folder / "missing.png")]


def in_groups(files: list[str], count: int = 3) -> list[list[str]]:
    return [files[start : start + count] for start in range(0, len(files), count)]


def test_images_equal_those_of_try_decode_file(files: list[str]) -> None:
    expected = [try_decode_file(file, SIDE, FULL_SIZE_PIXELS) for file in files]
    groups = list(decode(in_groups(files), take))
    images = [image for group, _ in groups for image in group]
    reasons = [reason for _, group in groups for reason in group]
    assert len(images) == len(files)
    assert sum(reason is not None for reason in reasons) == 2
    for wanted, image, reason in zip(expected, images, reasons, strict=True):
        if isinstance(wanted, str):
            assert (image, reason) == (None, wanted)
        else:
            np.testing.assert_array_equal(image, wanted)


def test_order_is_kept_over_many_groups(files: list[str]) -> None:
    def content(groups: Iterator[Taken]) -> list[bytes | str | None]:
        return [reason or image.tobytes() for group in groups for image, reason in zip(*group, strict=True)]  # type: ignore[union-attr]

    once = content(decode(in_groups(files), take))
    assert content(decode(in_groups(files) * 20, take)) == once * 20
    assert list(decode([], take)) == []


def test_an_endless_stream_is_read_a_bounded_number_of_groups_ahead(files: list[str]) -> None:
    started = 0

    def endless() -> Iterator[list[str]]:
        nonlocal started
        while True:
            started += 1
            yield files[:1]

    results = decode(endless(), take)
    for done in range(1, 20):
        next(results)
        assert started <= done + 2 * WORKERS
    results.close()  # type: ignore[attr-defined]


def test_errors_in_collate_are_raised(files: list[str]) -> None:
    def fail(packed: PackedImages, reasons: Reasons) -> Taken:
        raise ValueError(f"{len(packed.order)} of {len(reasons)} files")

    with pytest.raises(ValueError, match="3 of 3 files"):
        list(decode(in_groups(files), fail))


def test_no_process_remains(files: list[str]) -> None:
    results = decode(in_groups(files), take)
    next(results)
    program, *processes = decoding()
    gc.collect()  # memory of earlier tests, which may be referenced by their exceptions
    open_before = len(os.listdir("/proc/self/fd"))
    results.close()  # type: ignore[attr-defined]
    assert not any(is_alive(process) for process in (program, *processes))
    assert len(os.listdir("/proc/self/fd")) == open_before - 2 * len(processes), "a socket and memory each"


@pytest.mark.parametrize("victim", ["a process", "all processes", "the program"])
def test_a_killed_worker_is_reported(files: list[str], victim: str) -> None:
    killed: list[int] = []
    lock = threading.Lock()  # two threads collate at the same time

    def kill(packed: PackedImages, reasons: Reasons) -> Taken:
        with lock:
            if not killed:
                program, *processes = decoding()
                killed.extend({"a process": processes[:1], "all processes": processes}.get(victim, [program]))
                for process in killed:
                    os.kill(process, signal.SIGKILL)
        return take(packed, reasons)

    results = decode(in_groups(files) * 20, kill)
    if victim == "the program":  # the workers continue without it
        assert len(list(results)) == 20 * len(in_groups(files))
    else:
        with pytest.raises(UserError, match="--resume"):
            list(results)
    assert not any(map(is_alive, killed))


def decoding(parent: int | None = None) -> list[int]:
    """Waits for the program and its two workers; returns their process ids."""
    (program,) = [child for child in children(parent or os.getpid()) if b"decode_pool" in command_of(child)]
    wait_until(lambda: len(children(program)) == 2)  # the program forks the second while the first one decodes
    return [program, *children(program)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def command_of(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_processes_end_where_sigterm_is_ignored(files: list[str]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert len(list(decode(in_groups(files), take))) == len(in_groups(files))
    finally:
        signal.signal(signal.SIGTERM, before)


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_processes_end_with_their_parent(files: list[str]) -> None:
    program = f"""
from semifine.data.decode_pool import decode_in_processes
settings = dict(shorter_side=8, full_size_pixels=0, group_size=1, workers=2)
results = decode_in_processes([{files[:1]!r}] * 50, lambda *_: None, **settings)
print(next(results), flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        processes = decoding(other.pid)
        other.kill()
    # the other ends of their sockets are closed now
    wait_until(lambda: not any(map(is_alive, processes)))


def test_without_shared_memory_there_are_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(decode_pool.os, "memfd_create")
    assert not supports_processes()


def test_no_more_processes_than_there_are_descriptors(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (decode_pool.RESERVED_DESCRIPTORS + 7, -1))
    assert decode_pool._max_processes() == 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 10))
    assert len(list(decode(in_groups(files), take, workers=300))) == len(in_groups(files))


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=12)


@given(SIZES)
def test_packed_images_are_sorted_by_shape(sizes: list[tuple[int, int]]) -> None:
    images = [np.full((*size, 3), number, np.uint8) for number, size in enumerate(sizes)]
    packed = pack_images(images)
    assert sorted(packed.order) == list(range(len(sizes)))
    assert packed.shapes == sorted(sizes)
    start = 0
    for place, (height, width) in zip(packed.order, packed.shapes, strict=True):
        end = start + height * width * 3
        np.testing.assert_array_equal(packed.pixels[start:end].reshape(height, width, 3), images[place])
        start = end
    assert len(packed.pixels) == start


def test_images_are_packed_into_given_memory() -> None:
    memory = np.zeros(100, np.uint8)
    packed = pack_images([np.full((2, 2, 3), 7, np.uint8)], out=memory)
    assert packed.pixels.base is memory
    assert memory.tolist() == [7] * 12 + [0] * 88
