"""Finding image files in folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from semifine.errors import UserError

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".heic", ".heif"),
)


NO_FOLDERS = ("@eaDir", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""What storage systems put beside people's photos."""


def is_image(name: str) -> bool:
    """Whether a file is to be taken for an image: by its extension, in any case; hidden files are not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, without hidden ones and those of the system."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".")
            and entry.name not in NO_FOLDERS
            and not _leads_nowhere(entry)
            and entry.is_dir()
        )


def images_directly_in(folder: Path) -> list[str]:
    """Names of the image files in a folder itself, sorted; a link to a missing file counts, and is unreadable later."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if is_image(entry.name) and (_leads_nowhere(entry) or entry.is_file())
        )


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Whether it is a link to something missing, or to itself."""
    return entry.is_symlink() and not os.path.exists(entry.path)


def images_below(root: Path, inside: str, with_closed: bool = False) -> list[str]:
    """Paths, relative to ``root``, of all images in its folder ``inside`` and the folders below, sorted.

    A folder that must not be looked into is an error; or, ``with_closed``, among the paths, and unreadable later.
    """
    return sorted(_walk(root, inside, set(), with_closed))


def _walk(root: Path, inside: str, seen: set[tuple[int, int]], with_closed: bool) -> Iterator[str]:
    folder = root / inside
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return  # links to folders are followed, but not in circles
    seen.add((status.st_dev, status.st_ino))
    try:
        images, folders = images_directly_in(folder), subfolders(folder)
    except PermissionError:
        if not with_closed:
            raise
        yield inside
        return
    for name in images:
        yield f"{inside}/{name}"
    for name in folders:
        yield from _walk(root, f"{inside}/{name}", seen, with_closed)


def checked_path(path: str, where: str) -> str:
    """A path that a list or table gives, unless no file can have that name."""
    if "\0" in path:
        raise UserError(f"{where}: the path {path!r} holds a null character.")
    return path


def any_exists(folder: Path, paths: Sequence[str], probes: int = 8) -> bool:
    """Whether one of a few paths, spread over all, is a file in the folder: cheap for any number of paths."""
    step = max(1, len(paths) // probes)
    return any((folder / paths[row]).is_file() for row in range(0, len(paths), step))
