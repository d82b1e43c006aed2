"""One small run that all tests of this folder share; none of them writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.engine.display import Display
from semifine.engine.training import train
from semifine.inference.run import Run, load
from tests.conftest import tiny_settings


@pytest.fixture(scope="session")
def soc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short SoC run."""
    out = tmp_path_factory.mktemp("runs") / "soc"
    train(tiny_settings("soc", iterations=40, save_every=40, evaluate_every=40), out, display=Display(quiet=True))
    return out


@pytest.fixture(scope="session")
def soc_run(soc_folder: Path) -> Run:
    return load(soc_folder, device="cpu")
