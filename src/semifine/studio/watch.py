"""Finds photos that are added to a folder while the studio runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.image_files import find_images
from semifine.errors import UserError
from semifine.studio.images import file_reader

POLL_SECONDS = 3.0
"""Pause between two looks into the folder; longer for folders whose listing takes long."""
LISTING_SHARE = 0.05
"""Share of the time that listing the folder may take."""
MAX_AT_ONCE = 500
"""Photos that are added in one step, so that the first ones appear soon."""

FileState = tuple[int, int]
"""Size and modification time of a file."""


class FolderWatch:
    """Lists new photos in a folder. It reads no file.

    Args:
        root: The folder that paths are relative to.
        inside: The watched folder below ``root``.
        known: Paths of the photos that are not new.

    Example:
        >>> watch = FolderWatch(Path(), "new", known=[])
        >>> Path("new").mkdir()
        >>> _ = Path("new/1.jpg").write_bytes(b"...")
        >>> watch.poll(), watch.poll()
        ([], ['new/1.jpg'])
    """

    def __init__(self, root: Path, inside: str, known: Iterable[str]) -> None:
        self._root = root
        self._inside = inside
        self._known = set(known)
        self._last: dict[str, FileState] = {}
        self._rejected: dict[str, FileState] = {}

    def poll(self) -> list[str]:
        """Returns new photos whose size and time did not change since the last call."""
        try:
            paths = find_images(self._root, self._inside)
        except OSError:  # the folder is moved or not mounted for a moment
            return []
        names = (path.removeprefix("./") for path in paths)  # in the folder itself
        found = {path: state for path in names if path not in self._known and (state := self._state(path))}
        ready = [path for path, state in found.items() if self._last.get(path) == state != self._rejected.get(path)]
        self._last = found
        return ready[:MAX_AT_ONCE]

    def accept(self, paths: Iterable[str]) -> None:
        """Photos that are no longer new."""
        self._known.update(paths)

    def reject(self, paths: Iterable[str]) -> None:
        """Files that could not be decoded: they are returned again if they change, because they were half-written."""
        self._rejected |= {path: self._last[path] for path in paths if path in self._last}

    def _state(self, path: str) -> FileState | None:
        try:
            status = os.stat(self._root / path)
        except OSError:  # deleted since it was listed
            return None
        return (status.st_size, status.st_mtime_ns) if status.st_size else None


class PhotoWatcher:
    """Looks for new photos in a thread and adds them.

    Args:
        watch: The folder.
        add: Adds photos and returns the paths of those that could not be decoded.
        seconds: Pause between two looks.
    """

    def __init__(
        self, watch: FolderWatch, add: Callable[[list[str]], Collection[str]], seconds: float = POLL_SECONDS
    ) -> None:
        self._watch = watch
        self._add = add
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            started = time.monotonic()
            ready = self._watch.poll()
            pause = max(self._seconds, (time.monotonic() - started) / LISTING_SHARE)
            if ready:
                rejected = set(self._add(ready))
                self._watch.reject(rejected)
                self._watch.accept(path for path in ready if path not in rejected)


def watched_folder(catalog: Catalog, folder: Path) -> FolderWatch:
    """Returns a watch of a folder of a data set.

    Raises:
        UserError: If the folder is not inside the data set, where later trainings would not find its photos.
    """
    reader, _ = file_reader(catalog)
    if catalog.root is None or reader is None:
        raise UserError(f"--watch {folder} needs a data set of photos in a folder.")
    root = catalog.root.resolve()
    if not folder.is_dir() or not folder.resolve().is_relative_to(root):
        raise UserError(f"--watch {folder} must be a folder inside {catalog.root}, so that trainings use its photos.")
    return FolderWatch(catalog.root, folder.resolve().relative_to(root).as_posix(), map(str, catalog.paths))
