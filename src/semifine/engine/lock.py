"""One training at a time in a run folder."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from semifine.errors import UserError
from semifine.file_lock import try_to_lock

LOCK = ".lock"
TRIES = 3
PAUSE = 0.05
"""Seconds between tries: somebody who only asks whether the folder is locked holds the lock for a moment."""


@contextmanager
def locked(folder: Path, say: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Holds the folder's lock; the system frees it when the process ends, however it ends.

    Some network file systems have no locks; that is said, and the training goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:  # what the holder wrote stays when another one is refused
        is_held = try_to_lock(file.fileno())
        for _ in range(TRIES - 1):
            if is_held is False:
                time.sleep(PAUSE)
                is_held = try_to_lock(file.fileno())
        if is_held is False:
            raise UserError(f"Another training is running in {folder}; wait for it, or choose another --out.")
        if is_held is None:
            say(f"The file system of {folder} has no locks: see to it that no other training is started there.")
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a training is running in the folder now."""
    try:
        with (folder / LOCK).open("rb") as file:
            return try_to_lock(file.fileno(), shared=True) is False
    except FileNotFoundError:
        return False


def holder(folder: Path) -> int | None:
    """The process id of the training that runs in the folder; None where none does, or it is of another machine."""
    if not is_locked(folder):
        return None
    process, _, machine = (folder / LOCK).read_text(encoding="utf-8").strip().partition(" ")
    return int(process) if process.isdigit() and machine == socket.gethostname() else None
