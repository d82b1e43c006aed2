"""Telling the folders that semifine itself writes from those of photos, beside which people put them."""

from __future__ import annotations

import os
from pathlib import Path

from semifine.data.sources.scan import images_below, is_image, subfolders
from semifine.run_folder import RunFolder

LOCK = ".lock"
"""As the engine calls it, which this room must not know."""


def is_run(folder: Path) -> bool:
    """Whether a training has been there: one that began, or one that ended before and left its lock and its log."""
    run = RunFolder(folder)
    has_begun = run.settings.is_file() and run.checkpoints.is_dir()
    return has_begun or (run.log.is_file() and (folder / LOCK).is_file())


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
