"""Runs for the studio that train in seconds."""

from __future__ import annotations

from pathlib import Path

from semifine.config import resolve
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def small_run(out: Path, **more: object) -> Path:
    """Trains for a few steps on six classes with ten unlabeled images each, and returns the run folder."""
    settings = tiny_settings("soc", backbone="test_resnet", data__unlabeled_per_class=10, **more)
    fit(settings, out, display=Display(quiet=True))
    return out


def run_on(data: Path, out: Path) -> Path:
    """Trains for two steps on own photos and returns the run folder."""
    settings = {"data.source": str(data), "backbone": "test_resnet", "image_size": 32, "iterations": 2}
    small = {"batch_size": 4, "mu": 2, "device": "cpu", "loggers": "none", "pretrained": False}
    fit(resolve([{**settings, **small}]), out, display=Display(quiet=True))
    return out
