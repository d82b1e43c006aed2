"""Published lists, if they are available."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def published_lists(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the lists of Semi-Aves and Semi-Fungi, one folder each."""
    archive = shared_data / "split_lists.tar.gz"
    if not archive.is_file():
        pytest.skip(f"published lists not found: put split_lists.tar.gz into {shared_data}")
    folder = tmp_path_factory.mktemp("lists")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / "split_lists"


@pytest.fixture(scope="session")
def cub_lists(shared_data: Path) -> Path:
    folder = shared_data / "semi_cub"
    if not (folder / "splits" / "test.txt").is_file():
        pytest.skip(f"Semi-CUB lists not found: put them into {folder / 'splits'}")
    return folder
