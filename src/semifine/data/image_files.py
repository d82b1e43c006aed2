"""Finds image files in folders."""

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
IGNORED_SUFFIXES = (
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".xmp", ".yaml", ".yml", ".html", ".log"),
    *(".db", ".ini", ".aae", ".lnk", ".url"),
)
"""Text files and metadata of other programs, which are skipped without a note."""
IGNORED_FOLDERS = ("@eaDir", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that operating systems and network storage create."""

SkippedFiles = Counter[str]
"""Number of skipped files by suffix, without ``IGNORED_SUFFIXES``."""


@dataclass
class FolderContent:
    """The names in a folder, without hidden and ignored ones.

    Args:
        images: Image files. A broken link counts as an image, which is reported as unreadable later.
        folders: Subfolders.
        skipped: Other files.
    """

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    skipped: SkippedFiles = field(default_factory=Counter)


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image, in any case, and is not hidden.

    Example:
        >>> is_image("robin.JPG"), is_image(".robin.jpg"), is_image("robin.txt")
        (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def list_folder(folder: Path) -> FolderContent:
    """Lists the images and subfolders of a folder, sorted, and counts other files."""
    content = FolderContent()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in IGNORED_FOLDERS:
                continue
            is_broken_link = entry.is_symlink() and not os.path.exists(entry.path)
            if not is_broken_link and entry.is_dir():
                content.folders.append(entry.name)
            elif is_broken_link or entry.is_file():
                suffix = os.path.splitext(entry.name)[1].lower()
                if is_image(entry.name):
                    content.images.append(entry.name)
                elif suffix not in IGNORED_SUFFIXES:
                    content.skipped[suffix] += 1
    content.images.sort()
    content.folders.sort()
    return content


def find_images(
    root: Path, inside: str, keep_unreadable_folders: bool = False, skipped: SkippedFiles | None = None
) -> list[str]:
    """Finds all images in a folder and its subfolders. Follows links, and visits each folder once.

    Args:
        root: The folder that the returned paths are relative to.
        inside: The folder below ``root`` to search.
        keep_unreadable_folders: Return a folder without read permission in place of its images, instead of raising
            PermissionError.
        skipped: Receives the number of files that are not images.

    Returns:
        Sorted paths relative to ``root``.
    """
    counter = Counter() if skipped is None else skipped
    return sorted(_walk(root, inside, set(), keep_unreadable_folders, counter))


def _walk(
    root: Path, inside: str, visited: set[tuple[int, int]], keep_unreadable_folders: bool, skipped: SkippedFiles
) -> Iterator[str]:
    folder = root / inside
    status = folder.stat()
    if (status.st_dev, status.st_ino) in visited:
        return  # a cycle of links
    visited.add((status.st_dev, status.st_ino))
    try:
        content = list_folder(folder)
    except PermissionError:
        if not keep_unreadable_folders:
            raise
        yield inside
        return
    skipped.update(content.skipped)
    for name in content.images:
        yield f"{inside}/{name}"
    for name in content.folders:
        yield from _walk(root, f"{inside}/{name}", visited, keep_unreadable_folders, skipped)


def describe_skipped(skipped: SkippedFiles) -> str:
    """Suffixes with their number of files, the most frequent first.

    Example:
        >>> describe_skipped(Counter({".nef": 12, "": 1}))
        '.nef 12, no suffix 1'
    """
    return ", ".join(f"{suffix or 'no suffix'} {count}" for suffix, count in skipped.most_common())


def skipped_notes(skipped: SkippedFiles) -> list[str]:
    """A note on skipped files; empty if there are none."""
    if not skipped:
        return []
    files = "1 file is" if skipped.total() == 1 else f"{skipped.total()} files are"
    return [f"{files} skipped, because the suffix is not of a supported image format: {describe_skipped(skipped)}"]


def check_path(path: str, where: str) -> str:
    """Returns a path of a list or table; raises UserError if no file can have this name."""
    if "\0" in path:
        raise UserError(f"{where}: the path {path!r} contains a null character.")
    return path


def find_image_folder(folders: Sequence[Path], paths: Sequence[str], samples: int = 8) -> Path | None:
    """The first folder that contains one of the paths; None if no folder does.

    A few paths, spread over the list, are tried in all folders first, which is fast for lists of any length.
    """
    for subset in (paths[:: max(1, len(paths) // samples)], paths):
        for folder in folders:
            if any(os.path.isfile(os.path.join(folder, path)) for path in subset):
                return folder
    return None


RUN_SETTINGS, RUN_CHECKPOINTS, RUN_LOG, RUN_LOCK = "settings.yaml", "checkpoints", "log.jsonl", ".lock"
"""Names in a run folder, see ``semifine.runs.folder``; a test compares both."""


def is_run(folder: Path) -> bool:
    """Whether a folder is a run, or was created by a training that failed before its first step."""
    is_started = (folder / RUN_SETTINGS).is_file() and (folder / RUN_CHECKPOINTS).is_dir()
    return is_started or ((folder / RUN_LOG).is_file() and (folder / RUN_LOCK).is_file())


def contains_only_runs(folder: Path) -> bool:
    """Whether a folder is a run, or contains runs and no other images, such as ``runs`` with ``runs/one``."""
    try:
        if is_run(folder):
            return True
        if _contains_image(folder):
            return False
        names = list_folder(folder).folders
        others = [name for name in names if not is_run(folder / name)]
        return len(others) < len(names) and not any(find_images(folder, name) for name in others)
    except PermissionError:  # reported when the images of the folder are listed
        return False


def _contains_image(folder: Path) -> bool:
    """Whether there is an image in the folder itself; stops at the first one, which is fast for class folders."""
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)
