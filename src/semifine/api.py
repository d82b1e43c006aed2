"""Training from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semifine.config import open_and_resolve, read_preset
from semifine.config.loading import flatten
from semifine.inference.model import TrainedModel, load
from semifine.training.fit import fit as fit_run
from semifine.training.progress import Display


def fit(
    data: str | Path | Mapping[str, Any] = "synthetic",
    method: str | Path | Mapping[str, Any] = "soc",
    *,
    out: str | Path,
    preset: str | Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> TrainedModel:
    """Trains a classifier in the folder ``out`` and opens the finished run.

    ``data``, ``method`` and ``settings`` are those of the command line: ``iterations=500``,
    ``method={"name": "soc", "alpha": 4}``, ``data={"source": "semi_cub:/data/cub", "unlabeled": "inout"}``.
    A method of your own is named by its file: ``method="my_method.py"``.
    """
    presets = [preset] if isinstance(preset, str) else preset
    own = flatten({"data": str(data) if isinstance(data, Path) else data, "method": method, **settings})
    resolved, dataset = open_and_resolve([*(read_preset(name) for name in presets), own])
    fit_run(resolved, Path(out), dataset=dataset, resume=resume, display=Display(quiet=quiet))
    return load(out, device=resolved.train.device)
