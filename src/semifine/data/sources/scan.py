"""Finds image files in folders, and recognizes folders that semifine wrote itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from semifine.errors import UserError

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".heic", ".heif"),
)
LITTER = (
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".xmp", ".yaml", ".yml", ".html", ".log"),
    *(".db", ".ini", ".aae", ".lnk", ".url"),
)
"""Files that nobody takes for photos: notes, lists, and what programs keep beside photos."""
NO_FOLDERS = ("@eaDir", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""What storage systems put beside people's photos."""

LeftOut = Counter[str]
"""How many files of each extension are neither images nor litter."""


@dataclass
class Listing:
    """What lies in a folder itself, by name, without what is hidden."""

    images: list[str] = field(default_factory=list)
    """A link to a missing file counts, and is unreadable later."""
    folders: list[str] = field(default_factory=list)
    """Without those of the system."""
    left_out: LeftOut = field(default_factory=Counter)


def is_image(name: str) -> bool:
    """Whether a file is to be taken for an image: by its extension, in any case; hidden files are not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def list_folder(folder: Path) -> Listing:
    """Images and folders, sorted, and how many other files there are."""
    found = Listing()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in NO_FOLDERS:
                continue
            leads_nowhere = _leads_nowhere(entry)
            if not leads_nowhere and entry.is_dir():
                found.folders.append(entry.name)
            elif leads_nowhere or entry.is_file():
                extension = os.path.splitext(entry.name)[1].lower()
                if is_image(entry.name):
                    found.images.append(entry.name)
                elif extension not in LITTER:
                    found.left_out[extension] += 1
    found.images.sort()
    found.folders.sort()
    return found


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, without hidden ones and those of the system."""
    return list_folder(folder).folders


def images_directly_in(folder: Path) -> list[str]:
    """Names of the image files in a folder itself, sorted."""
    return list_folder(folder).images


def in_words(left_out: LeftOut) -> str:
    """Extensions with their numbers, the most frequent first."""
    return ", ".join(f"{extension or 'without one'} {count}" for extension, count in left_out.most_common())


def left_out_note(left_out: LeftOut) -> list[str]:
    """What to say of files that are not looked at, where there are any."""
    if not left_out:
        return []
    files = "1 file is" if left_out.total() == 1 else f"{left_out.total()} files are"
    return [f"{files} left out, since the extension is of no image that can be read: {in_words(left_out)}"]


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Whether it is a link to something missing, or to itself."""
    return entry.is_symlink() and not os.path.exists(entry.path)


def images_below(root: Path, inside: str, with_closed: bool = False, left_out: LeftOut | None = None) -> list[str]:
    """Paths, relative to ``root``, of all images in its folder ``inside`` and the folders below, sorted.

    A folder that must not be looked into is an error; or, ``with_closed``, among the paths, and unreadable later. Other
    files are added to ``left_out``.
    """
    return sorted(_walk(root, inside, set(), with_closed, Counter() if left_out is None else left_out))


def _walk(root: Path, inside: str, seen: set[tuple[int, int]], with_closed: bool, left_out: LeftOut) -> Iterator[str]:
    folder = root / inside
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return  # links to folders are followed, but not in circles
    seen.add((status.st_dev, status.st_ino))
    try:
        found = list_folder(folder)
    except PermissionError:
        if not with_closed:
            raise
        yield inside
        return
    left_out.update(found.left_out)
    for name in found.images:
        yield f"{inside}/{name}"
    for name in found.folders:
        yield from _walk(root, f"{inside}/{name}", seen, with_closed, left_out)


def checked_path(path: str, where: str) -> str:
    """A path that a list or table gives, unless no file can have that name."""
    if "\0" in path:
        raise UserError(f"{where}: the path {path!r} holds a null character.")
    return path


def folder_of_images(folders: Sequence[Path], paths: Sequence[str], probes: int = 8) -> Path | None:
    """The first of some folders in which one of the paths is a file.

    A few paths, spread over all, are looked for in every folder before all are: cheap for any number of them.
    """
    for some in (paths[:: max(1, len(paths) // probes)], paths):
        for folder in folders:
            if any(os.path.isfile(os.path.join(folder, path)) for path in some):
                return folder
    return None


RUN_SETTINGS, RUN_CHECKPOINTS, RUN_LOG, RUN_LOCK = "settings.yaml", "checkpoints", "log.jsonl", ".lock"
"""Names in a run folder, as ``semifine.runs.folder`` has them; a test compares both."""


def is_run(folder: Path) -> bool:
    """Whether a training wrote this folder: one that began, or one that failed before and left its lock and log."""
    has_begun = (folder / RUN_SETTINGS).is_file() and (folder / RUN_CHECKPOINTS).is_dir()
    return has_begun or ((folder / RUN_LOG).is_file() and (folder / RUN_LOCK).is_file())


def holds_runs_alone(folder: Path) -> bool:
    """A run, or a folder of runs such as ``runs/one``: never one with an image that is not a run's own."""
    try:
        if is_run(folder):
            return True
        if _has_image(folder):
            return False
        inside = subfolders(folder)
        others = [name for name in inside if not is_run(folder / name)]
        return len(others) < len(inside) and not any(images_below(folder, name) for name in others)
    except PermissionError:  # is told where its images are wanted
        return False


def _has_image(folder: Path) -> bool:
    """Whether an image lies in the folder itself: most folders of classes are told from runs by their first file."""
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)
