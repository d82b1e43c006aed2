"""One training at a time in a run folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semifine.errors import UserError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; the system frees it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another training is running in {folder}; wait for it, or choose another --out.") from None
        yield
