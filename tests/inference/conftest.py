"""One small run that all tests of this folder share, and photos for it; no test writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from semifine.data.catalog import Split
from semifine.inference.export import export
from semifine.inference.model import TrainedModel, load
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


@pytest.fixture(scope="session")
def soc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short SoC run with enough validation images to calibrate it."""
    out = tmp_path_factory.mktemp("runs") / "soc"
    settings = tiny_settings("soc", iterations=40, save_every=40, evaluate_every=40, data__val_per_class=6)
    fit(settings, out, display=Display(quiet=True))
    return out


@pytest.fixture(scope="session")
def soc_model(soc_folder: Path) -> TrainedModel:
    return load(soc_folder, device="cpu")


@pytest.fixture(scope="session")
def photos(soc_model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's test images as files with names that people give, and two files that are no images."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "wet day").mkdir()
    catalog = soc_model.run.dataset.catalog
    for number, row in enumerate(catalog.rows(Split.TEST).tolist()):
        Image.fromarray(catalog.reader.read(row)).save(folder / "wet day" / f"mésange {number:02d}.PNG")
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "wet day" / "empty.png").touch()
    return folder


@pytest.fixture(scope="session")
def onnx_file(soc_model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(soc_model, out, "onnx")
    return out
