"""The Python interface for training."""

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
    """Trains a classifier and opens the finished run.

    Args:
        data: A folder, a table or a data source; with its settings as a dictionary with the key ``source``.
        method: Name of a method or path of a method file; with its settings as a dictionary with the key ``name``.
        out: Folder of the run.
        preset: One or several presets, of which later ones override earlier ones.
        resume: Continues the run in ``out``.
        quiet: Prints no progress.
        settings: Training settings, such as ``iterations=500``.

    Returns:
        The trained model.

    Example:
        >>> model = fit("photos", {"name": "soc", "alpha": 4}, out="runs/birds", iterations=500)  # doctest: +SKIP
        >>> model.evaluate()["top1"]  # doctest: +SKIP
        61.2
    """
    presets = [preset] if isinstance(preset, str) else preset
    given = flatten({"data": str(data) if isinstance(data, Path) else data, "method": method, **settings})
    resolved, dataset = open_and_resolve([*(read_preset(name) for name in presets), given])
    fit_run(resolved, Path(out), dataset=dataset, resume=resume, display=Display(quiet=quiet))
    return load(out, device=resolved.train.device)
