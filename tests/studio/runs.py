"""A run that trains in seconds, for the studio to look at."""

from __future__ import annotations

from pathlib import Path

from semifine.engine.display import Display
from semifine.engine.training import train
from tests.conftest import tiny_settings


def small_run(out: Path, **more: object) -> Path:
    """Six classes, ten unlabelled images of each, a barely trained network."""
    settings = tiny_settings("soc", backbone="test_resnet", data__unlabelled_per_class=10, **more)
    train(settings, out, display=Display(quiet=True))
    return out
