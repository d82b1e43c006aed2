"""Checkpoints: complete or absent, never half-written, and read without running any code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from semifine.errors import UserError
from semifine.files import sync_to_disk, write_atomically

WEIGHTS = "model.safetensors"
TRAINING = "training.pt"
CHECKSUMS = "checksums.json"
BEST = "best_val"
KEPT = 2


def save_checkpoint(folder: Path, step: int, weights: dict[str, Tensor], training: dict[str, Any]) -> None:
    """Writes ``step-N`` beside the others, then points ``last`` at it, then drops the oldest.

    A run that found its newest checkpoints damaged goes on from before them: these are dropped, too.
    """
    name = f"step-{step:08d}"
    _save(folder, name, "last", weights, training)
    others = sorted(folder.glob("step-*"))
    old = [path for path in others if path.name <= name][:-KEPT]
    for path in (*old, *(path for path in others if path.name > name and _damage(path)), *folder.glob(".step-*")):
        shutil.rmtree(path)
    _drop_former_bests(folder)


def save_best(folder: Path, step: int, weights: dict[str, Tensor]) -> None:
    """Writes ``best-N``, then points ``best_val`` at it, then drops former ones; training cannot go on from it."""
    _save(folder, f"best-{step:08d}", BEST, weights, None)
    _drop_former_bests(folder)


def _drop_former_bests(folder: Path) -> None:
    """Keeps those since the oldest checkpoint and the one before, the best of a run that goes on from there."""
    oldest = min(map(_step_of, folder.glob("step-*")), default=0)
    before = [path for path in sorted(folder.glob("best-*")) if _step_of(path) <= oldest]
    for old in (*before[:-1], *folder.glob(".best-*")):
        shutil.rmtree(old)


def forget_best_after(folder: Path, step: int) -> None:
    """For a run that goes on from this step: what was best later will come again, or will not."""
    bests = sorted(folder.glob("best-*"))
    kept = [path for path in bests if _step_of(path) <= step]
    if bests == kept:
        return
    if kept:
        _point_at(folder / BEST, kept[-1].name)
    else:
        (folder / BEST).unlink(missing_ok=True)
    for path in bests[len(kept) :]:
        shutil.rmtree(path)


def _step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _save(folder: Path, name: str, link: str, weights: dict[str, Tensor], training: dict[str, Any] | None) -> None:
    partial = folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, weights, training)
    except (OSError, RuntimeError) as error:  # torch.save has its own kind
        shutil.rmtree(partial, ignore_errors=True)
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        reason = " ".join(str(error).split())
        raise UserError(
            f"The checkpoint {folder / name} could not be written ({reason}; {free / 1e6:.0f} MB are free there); the "
            "one before it is intact: make room and go on with --resume."
        ) from error
    aside = folder / f".{name}.aside"
    shutil.rmtree(aside, ignore_errors=True)
    if (folder / name).exists():  # damaged, or of a run that died before it could point at it
        os.replace(folder / name, aside)
    os.replace(partial, folder / name)
    _point_at(folder / link, name)
    sync_to_disk(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _write(folder: Path, weights: dict[str, Tensor], training: dict[str, Any] | None) -> None:
    save_weights(weights, folder / WEIGHTS)
    if training is not None:
        torch.save(training, folder / TRAINING)
    checksums = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    for file in folder.iterdir():
        sync_to_disk(file)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a sentence about each newer one that is not."""
    checkpoints, notes = _from_last_on(folder)
    for checkpoint in checkpoints:
        damage = _damage(checkpoint)
        if not damage:
            return checkpoint, notes
        notes.append(f"The checkpoint {checkpoint} is damaged ({damage}) and left aside.")
    return None, notes


def point_last_at(checkpoint: Path) -> None:
    """For a run whose link to its newest whole checkpoint was lost, or led to a damaged one."""
    last = checkpoint.with_name("last")
    if checkpoint != last and (not last.exists() or last.resolve() != checkpoint.resolve()):
        _point_at(last, checkpoint.name)


def _from_last_on(folder: Path) -> tuple[list[Path], list[str]]:
    """The checkpoint that ``last`` points at and all before it, newest first; without that link, all that there are."""
    last, steps = folder / "last", sorted(folder.glob("step-*"), reverse=True)
    if last.is_dir() and not last.is_symlink():  # a copy that followed links
        return [last, *steps], []
    if last.exists():
        return [path for path in steps if path.name <= last.resolve().name], []
    lost = "leads nowhere" if last.is_symlink() else "is missing"
    return steps, [f"The link {last} {lost}: the newest checkpoint beside it counts."] if steps else []


def _damage(checkpoint: Path, names: Collection[str] = (WEIGHTS, TRAINING)) -> str:
    """What is wrong with these files of a checkpoint; nothing where they are as they were written."""
    try:
        checksums = json.loads((checkpoint / CHECKSUMS).read_text(encoding="utf-8"))
        asked = ((name, checksum) for name, checksum in checksums.items() if name in names)
        return next((f"{name} has changed" for name, known in asked if _checksum(checkpoint / name) != known), "")
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError):
        return f"{CHECKSUMS} cannot be read"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Weights alone, as safetensors; written beside and moved, so that a reader never sees half a file."""
    # Through Python's own files: what the system refuses then is an OSError that names the file.
    data = save({name: value.detach().cpu().contiguous() for name, value in weights.items()})
    write_atomically(path, data, exclusive=True)


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The evaluated model's weights of a checkpoint."""
    path = folder / WEIGHTS
    if not path.is_file():
        way_out = "" if folder.name == BEST else ": 'semifine train --out RUN --resume' makes it anew"
        raise UserError(f"There is no checkpoint {path}{way_out}.")
    check_weights(folder)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise _damaged(path, " ".join(str(error).split())) from error


def check_weights(folder: Path) -> None:
    """Raises where a checkpoint's weights are not as they were written; without checksums nobody can tell."""
    if (folder / CHECKSUMS).exists() and (damage := _damage(folder, (WEIGHTS,))):
        raise _damaged(folder / WEIGHTS, damage)


def _damaged(path: Path, damage: str) -> UserError:
    is_best = path.parent.name == BEST
    way_out = "use --checkpoint last instead" if is_best else "go on with --resume from before it"
    return UserError(f"The checkpoint {path} is damaged ({damage}): {way_out}.")


def load_training_state(folder: Path) -> dict[str, Any]:
    """What training needs to go on, besides the evaluated weights."""
    try:
        return dict(torch.load(folder / TRAINING, map_location="cpu", weights_only=True))
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{folder / TRAINING} is no training state of ours, and nothing in it is run.") from error


def _point_at(link: Path, name: str) -> None:
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(name)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # runs of before kept their best weights in a folder of this name
    os.replace(partial, link)
