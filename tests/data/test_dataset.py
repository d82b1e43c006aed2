"""What is wrong with the data is said when a run begins, and kept for its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.config import resolve
from semifine.training.fit import fit
from semifine.training.progress import Display


def picture(seed: int) -> Image.Image:
    """Soft blobs, as photos have them."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((80, 60), Image.Resampling.BICUBIC)


def test_a_run_says_which_test_images_look_like_training_images(
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
    said = " ".join("".join(capsys.readouterr()).split())
    sentence = "1 validation or test image looks the same as a training image"
    assert said.count(sentence) == 1
    noted = json.loads((tmp_path / "run" / "data.json").read_text())
    assert noted["near_duplicates"] == [["labeled/b/1.png", "test/a/seen before.jpg"]]
    assert sum(sentence in warning for warning in noted["warnings"]) == 1, "which is what the page shows"
