"""Checks of the run folder before a run starts or resumes."""

from __future__ import annotations

from pathlib import Path

from semifine.config import RunSettings, read_run_settings
from semifine.config.loading import first_difference
from semifine.errors import UserError
from semifine.files import read_json
from semifine.methods.registry import is_method_file, method_file_hash
from semifine.runs.folder import LOCK, RunFolder
from semifine.training.budget import adopt_plan

METHOD_HASH = "method_sha256"
"""Key of ``environment.json`` with the SHA-256 of the method file, if the method is a file."""
FILES_BEFORE_SETTINGS = ("classes.json", "data.json", "environment.json", "weights.json")
"""Files of a run that was stopped before ``settings.yaml`` was written."""


def check_folder(out: Path, resume: bool) -> None:
    """Raises ``UserError`` unless ``out`` is new, or holds a run to resume."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder with --out.")
    _check_no_links(out)
    if _has_no_run(out):
        return
    if not RunFolder(out).settings.exists():
        raise UserError(f"{out} is not empty and not a run folder; choose another --out.")
    if not resume:
        raise UserError(f"{out} already holds a run; continue it with --resume, or choose another --out.")


def _check_no_links(out: Path) -> None:
    """Raises ``UserError`` if a folder in ``out`` is a link: checkpoints of another run could be overwritten there."""
    for path in sorted(out.iterdir()):
        if path.is_symlink() and path.is_dir():
            raise UserError(f"{path} is a link, and a training writes to no other folder: replace it by the folder.")


def _has_no_run(out: Path) -> bool:
    """Returns whether the folder is empty, or contains only the files of a run that stopped before it started."""
    log = RunFolder(out).log.name
    partial = {path.name for path in out.glob(".*.partial")}
    names = {path.name for path in out.iterdir()} - {LOCK}
    return not names or (log in names and names <= {log, *FILES_BEFORE_SETTINGS, *partial})


def check_same_settings(settings: RunSettings, folder: RunFolder) -> RunSettings:
    """Returns the settings, with the plan of a run with a time budget.

    Raises:
        UserError: If a setting differs that may not change when a run is resumed.
    """
    stored = read_run_settings(folder.settings, named_method=settings.method)
    _check_method_file(settings.method, folder)
    if settings.train.time:
        settings = adopt_plan(settings, stored.train)
    difference = first_difference(stored, settings)
    if difference:
        key, before, now = difference
        raise UserError(
            f"The run in {folder.path} was started with {key} = {before}, not {now}; "
            "a resumed run keeps its settings: omit the option, or choose another --out."
        )
    return settings


def _check_method_file(method: str, folder: RunFolder) -> None:
    """Raises ``UserError`` if the method file has changed since the run was started; it may be in another folder."""
    recorded = read_json(folder.environment).get(METHOD_HASH) if folder.environment.is_file() else None
    if recorded is not None and is_method_file(method) and method_file_hash(method) != recorded:
        raise UserError(
            f"The run in {folder.path} was started with another content of {method} (SHA-256 {recorded}); restore the "
            "file, or choose another --out."
        )
