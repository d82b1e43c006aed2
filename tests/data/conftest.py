"""Small images on disk, and small catalogs of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader

SaveImage = Callable[..., Path]
MakeCatalog = Callable[..., Catalog]


@pytest.fixture
def save_image(tmp_path: Path) -> SaveImage:
    """Returns a function that saves an image of random pixels and creates its folders."""
    random = np.random.default_rng(0)

    def save(path: str | Path, width: int = 12, height: int = 10) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(file)
        return file

    return save


@pytest.fixture
def make_catalog(tmp_path: Path) -> MakeCatalog:
    """Returns a function that creates a catalog of files; by default, rows are labeled with two classes in turn."""

    def make(
        paths: list[str], label: list[int] | None = None, split: list[Split] | None = None, classes: int = 2
    ) -> Catalog:
        labels = np.array([i % classes for i in range(len(paths))] if label is None else label, np.int64)
        splits = np.array([Split.LABELED] * len(paths) if split is None else split, np.uint8)
        return Catalog(
            name="test",
            class_names=tuple(f"class {i}" for i in range(classes)),
            paths=paths,
            label=labels,
            split=splits,
            truth=labels.copy(),
            reader=FileReader(paths, [tmp_path]),
            root=tmp_path,
        )

    return make
