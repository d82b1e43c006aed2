"""A training opens its data set once, and reports problems of the data at the start and in the run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semifine.cli.main import main
from semifine.config import resolve
from semifine.data import dataset as dataset_module
from semifine.data.sources import all_sources
from semifine.training.fit import fit
from semifine.training.progress import Display


def picture(seed: int) -> Image.Image:
    """Returns an image of soft blobs."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((80, 60), Image.Resampling.BICUBIC)


def test_a_run_lists_test_images_that_look_like_training_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    for number, name in enumerate(
        ("labeled/a/1.png", "labeled/b/1.png", "unlabeled/1.png", "unlabeled/2.png", "test/a/other.png")
    ):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(photos / name)
    picture(1).save(photos / "test" / "a" / "seen before.jpg", quality=80)
    settings = resolve(
        [
            {"data.source": str(photos), "method.name": "supervised", "backbone": "test_resnet", "image_size": 32},
            {"iterations": 2, "batch_size": 2, "device": "cpu", "loggers": "none", "cache": str(tmp_path / "cache")},
        ]
    )
    fit(settings, tmp_path / "run", display=Display())
    output = " ".join("".join(capsys.readouterr()).split())
    sentence = "1 validation or test image looks the same as a training image"
    assert output.count(sentence) == 1
    noted = json.loads((tmp_path / "run" / "data.json").read_text())
    assert noted["near_duplicates"] == [["labeled/b/1.png", "test/a/seen before.jpg"]]
    assert sum(sentence in warning for warning in noted["warnings"]) == 1, "shown by the report"


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_training_opens_its_data_once(
    calibrated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reads the catalog and decodes the images once, for training, evaluation and calibration."""
    opened: list[str] = []
    source, open_store = all_sources()["synthetic"], dataset_module.open_store

    def load(*args: Any) -> Any:
        opened.append("catalog")
        return source.load(*args)

    def counting_open_store(*args: Any, **kwargs: Any) -> Any:
        opened.append("store")
        return open_store(*args, **kwargs)

    monkeypatch.setitem(all_sources(), "synthetic", replace(source, load=load))
    monkeypatch.setattr(dataset_module, "open_store", counting_open_store)
    out = tmp_path / "run"
    val_per_class = 6 if calibrated else 0
    command = f"train synthetic --out {out} --data.genera 2 --data.species 3 --data.val_per_class {val_per_class}"
    small = "--backbone test_resnet --image-size 32 --batch-size 4 --mu 1 --iterations 2 --device cpu --loggers none"
    assert main([*command.split(), *small.split()]) == 0
    assert opened == ["catalog", "store"]
    assert ("calibrated on" in capsys.readouterr().err) == calibrated
