"""Checkpoints: written completely or not at all, and read without executing code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from semifine.errors import UserError, short_reason
from semifine.files import create_folder, read_text, sync_to_disk, sync_tree, write_atomically
from semifine.models.pretrained import load_tensors

WEIGHTS = "model.safetensors"
TRAINING_STATE = "training.pt"
CHECKSUMS = "checksums.json"
BEST = "best_val"
PROBE = "probe"
INTERPOLATED = "interpolated"
_NUMBER = re.compile("[0-9]{8,15}")
NUM_KEPT = 2
"""Number of checkpoints that are kept for resuming."""


def save_checkpoint(folder: Path, step: int, weights: dict[str, Tensor], training: dict[str, Any]) -> None:
    """Writes the checkpoint ``step-N``, points the link ``last`` at it, and removes old checkpoints.

    Also removes damaged checkpoints of later steps, from which the run could not resume.

    Args:
        folder: Folder of all checkpoints of the run.
        step: Number of finished steps.
        weights: Weights of the evaluated network.
        training: Everything else that is needed to resume.
    """
    name = f"step-{step:08d}"
    _save(folder, name, "last", weights, training)
    others = _numbered(folder, "step")
    old = [path for path in others if path.name <= name][:-NUM_KEPT]
    for path in (*old, *(path for path in others if path.name > name and _find_damage(path)), *folder.glob(".step-*")):
        _remove(path)
    _remove_former_bests(folder)


def save_best(folder: Path, step: int, weights: dict[str, Tensor]) -> None:
    """Writes the weights ``best-N``, points the link ``best_val`` at them, and removes former best weights."""
    _save(folder, f"best-{step:08d}", BEST, weights, None)
    _remove_former_bests(folder)


def save_probe(folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes the network with the linear probe, and points the link ``probe`` at it."""
    _save(folder, "linear-probe", PROBE, weights, None)


def save_interpolated(folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes the weights between probe and trained network, and points the link ``interpolated`` at them."""
    _save(folder, "between-probe-and-last", INTERPOLATED, weights, None)


def _remove_former_bests(folder: Path) -> None:
    """Keeps the best weights since the oldest checkpoint, and the last ones before it, for a run that resumes there."""
    oldest = min(map(_step_of, _numbered(folder, "step")), default=0)
    before = [path for path in _numbered(folder, "best") if _step_of(path) <= oldest]
    for old in (*before[:-1], *folder.glob(".best-*")):
        _remove(old)


def remove_best_after(folder: Path, step: int) -> None:
    """Removes the best weights of later steps from a run that resumes from this step."""
    bests = _numbered(folder, "best")
    kept = [path for path in bests if _step_of(path) <= step]
    if bests == kept:
        return
    if kept:
        _point_at(folder / BEST, kept[-1].name)
    else:
        (folder / BEST).unlink(missing_ok=True)
    for path in bests[len(kept) :]:
        _remove(path)


def _numbered(folder: Path, kind: str) -> list[Path]:
    """The folders ``kind-N`` in the order of their names. Other names are not of semifine, and are left alone."""
    return sorted(path for path in folder.glob(f"{kind}-*") if _NUMBER.fullmatch(path.name.partition("-")[2]))


def _step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _save(folder: Path, name: str, link: str, weights: dict[str, Tensor], training: dict[str, Any] | None) -> None:
    partial = folder / f".{name}.partial"
    try:
        create_folder(folder)
        _remove(partial)
        partial.mkdir()
        _write(partial, weights, training)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError
        shutil.rmtree(partial, ignore_errors=True)
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        reason = " ".join(str(error).split())
        raise UserError(
            f"The checkpoint {folder / name} could not be written ({reason}; {free / 1e6:.0f} MB are free there); the "
            "previous checkpoint is intact: free disk space and continue with --resume."
        ) from error
    aside = folder / f".{name}.aside"
    _remove(aside)
    if (folder / name).exists():  # damaged, or written by a process that ended before it set the link
        os.replace(folder / name, aside)
    os.replace(partial, folder / name)
    sync_to_disk(folder)  # before the link, which must not outlive its target
    _point_at(folder / link, name)
    sync_to_disk(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _remove(path: Path) -> None:
    """Removes a folder, or a link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(folder: Path, weights: dict[str, Tensor], training: dict[str, Any] | None) -> None:
    save_weights(weights, folder / WEIGHTS)
    if training is not None:
        torch.save(training, folder / TRAINING_STATE)
    checksums = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    sync_tree(folder)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Returns the newest intact checkpoint, and a note about each newer one that is damaged.

    Args:
        folder: Folder of all checkpoints of the run.
    """
    checkpoints, notes = _list_checkpoints(folder)
    for checkpoint in checkpoints:
        damage = _find_damage(checkpoint)
        if not damage:
            return checkpoint, notes
        notes.append(f"The checkpoint {checkpoint} is damaged ({damage}) and is not used.")
    return None, notes


def repair_last_link(checkpoint: Path) -> None:
    """Points the link ``last`` at a checkpoint if it is missing or points elsewhere."""
    last = checkpoint.with_name("last")
    if checkpoint != last and (not last.exists() or last.resolve() != checkpoint.resolve()):
        _point_at(last, checkpoint.name)


def _list_checkpoints(folder: Path) -> tuple[list[Path], list[str]]:
    """Lists the checkpoint of the link ``last`` and all before it, newest first; all checkpoints without the link."""
    last, steps = folder / "last", _numbered(folder, "step")[::-1]
    if last.is_dir() and not last.is_symlink():  # a copy of the run that followed links
        return [last, *steps], []
    if last.exists():
        return [path for path in steps if path.name <= last.resolve().name], []
    problem = "is broken" if last.is_symlink() else "is missing"
    return steps, [f"The link {last} {problem}: the newest checkpoint in the folder is used."] if steps else []


def _find_damage(checkpoint: Path, names: Collection[str] = (WEIGHTS, TRAINING_STATE)) -> str:
    """Describes the damage to files of a checkpoint; empty if all match their checksums."""
    special = (name for name in (CHECKSUMS, *names) if _is_special(checkpoint / name))
    if (name := next(special, None)) is not None:
        return f"{name} is no regular file"
    try:
        checksums = json.loads(read_text(checkpoint / CHECKSUMS))
        expected = ((name, checksum) for name, checksum in checksums.items() if name in names)
        return next((f"{name} has changed" for name, value in expected if _checksum(checkpoint / name) != value), "")
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError, RecursionError):
        return f"{CHECKSUMS} cannot be read"


def _is_special(path: Path) -> bool:
    """Whether a path is a pipe or a device, whose reading may never end."""
    return path.exists() and not path.is_file()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Writes tensors to a safetensors file, completely or not at all."""
    # Python's file functions, unlike save_file, raise an OSError that names the file.
    data = save({name: value.detach().cpu().contiguous() for name, value in weights.items()})
    write_atomically(path, data, exclusive=True)


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Reads the weights of the evaluated network from a checkpoint."""
    path = folder / WEIGHTS
    if not path.is_file():
        remedy = "" if folder.name == BEST else ": 'semifine train --out RUN --resume' writes it again"
        raise UserError(f"There is no checkpoint {path}{remedy}.")
    check_weights(folder)
    try:
        return load_file(path)
    except Exception as error:  # unknown types and impossible shapes raise errors of torch and Python
        raise _damaged(path, short_reason(error)) from error


def check_weights(folder: Path) -> None:
    """Raises ``UserError`` if the weights of a checkpoint do not match their checksum, if there is one."""
    if (folder / CHECKSUMS).exists() and (damage := _find_damage(folder, (WEIGHTS,))):
        raise _damaged(folder / WEIGHTS, damage)


def _damaged(path: Path, damage: str) -> UserError:
    is_best = path.parent.name == BEST
    remedy = "use --checkpoint last instead" if is_best else "continue from the previous one with --resume"
    return UserError(f"The checkpoint {path} is damaged ({damage}): {remedy}.")


def load_training_state(folder: Path) -> dict[str, Any]:
    """Reads everything except the evaluated weights that is needed to resume."""
    try:
        return dict(load_tensors(folder / TRAINING_STATE))
    except Exception as error:  # pickle, zipfile and torch raise many kinds of errors for damaged files
        raise UserError(
            f"{folder / TRAINING_STATE} is not a training state of semifine: restore the file from a copy."
        ) from error


def _point_at(link: Path, name: str) -> None:
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(name)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # a copy of the run that followed links
    os.replace(partial, link)
