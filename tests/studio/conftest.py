"""A small run and its snapshot, shared by the tests of the studio."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.studio.snapshot import ModelSnapshot, take_snapshot
from tests.studio.runs import small_run


@pytest.fixture(scope="session")
def studio_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("studio") / "birds")


@pytest.fixture(scope="session")
def snapshot(studio_run: Path) -> ModelSnapshot:
    return take_snapshot(studio_run, "cpu")
