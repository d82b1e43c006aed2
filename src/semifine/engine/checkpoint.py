"""Checkpoints: complete or absent, never half-written, and read without running any code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from semifine.errors import UserError

WEIGHTS = "model.safetensors"
TRAINING = "training.pt"
KEPT = 2


def save_checkpoint(folder: Path, step: int, weights: dict[str, Tensor], training: dict[str, Any]) -> None:
    """Writes ``step-N`` beside the others, then points ``last`` at it, then drops the oldest."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{step:08d}"
    partial = folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_weights(weights, partial / WEIGHTS)
    torch.save(training, partial / TRAINING)
    for file in partial.iterdir():
        _sync(file)
    shutil.rmtree(folder / name, ignore_errors=True)  # a run that died before it could point at this one
    os.replace(partial, folder / name)
    _point_at(folder / "last", name)
    _sync(folder)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Weights alone, as safetensors; written beside and moved, so that a reader never sees half a file."""
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, partial)
    os.replace(partial, path)


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The evaluated model's weights of a checkpoint."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    return load_file(path)


def load_training_state(folder: Path) -> dict[str, Any]:
    """What training needs to go on, besides the evaluated weights."""
    return dict(torch.load(folder / TRAINING, map_location="cpu", weights_only=True))


def _point_at(link: Path, name: str) -> None:
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(name)
    os.replace(partial, link)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
