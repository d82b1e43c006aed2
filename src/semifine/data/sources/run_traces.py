"""Telling the folders that semifine itself writes from those of photos, beside which people put them."""

from __future__ import annotations

from pathlib import Path

from semifine.data.sources.scan import images_below, images_directly_in, subfolders
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
        inside = subfolders(folder)
        others = [name for name in inside if not is_run(folder / name)]
        has_runs = len(others) < len(inside)
        return has_runs and not images_directly_in(folder) and not any(images_below(folder, name) for name in others)
    except PermissionError:  # is told where its images are wanted
        return False
