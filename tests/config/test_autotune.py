"""Settings chosen from the data, where nobody gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from semifine.config import RunSettings, open_and_resolve, read_settings_file, write_settings


def tuned(layers: list[dict[str, Any]]) -> RunSettings:
    return open_and_resolve(layers)[0]


def photos(root: Path, side: int, labeled: int, unlabeled: int) -> Path:
    for number in range(labeled):
        for name in ("labeled/a", "labeled/b"):
            (root / name).mkdir(parents=True, exist_ok=True)
            color = (number, number, 255 * (name == "labeled/a"))  # else they were copies, which are held together
            Image.new("RGB", (side + 20, side), color).save(root / name / f"{number}.png")
    (root / "unlabeled").mkdir()
    for number in range(unlabeled):
        (root / "unlabeled" / f"{number}.jpg").touch()
    return root


@pytest.mark.parametrize(
    ("side", "labeled", "unlabeled", "wanted"),
    [
        (400, 10, 30, (224, 16, 500, 0.98)),
        (150, 50, 400, (224, 32, 700, 0.9857)),  # not below the size of the pretraining
        (10, 2, 10_000, (32, 4, 50_000, 0.999)),
    ],
)
def test_size_batch_length_and_average_follow_the_data(
    tmp_path: Path, side: int, labeled: int, unlabeled: int, wanted: tuple[float, ...]
) -> None:
    settings = tuned([{"data.source": str(photos(tmp_path, side, labeled, unlabeled))}])
    train = settings.train
    assert (train.image_size, train.batch_size, train.iterations, train.ema) == wanted
    (note,) = settings.notes
    assert all(str(value) in note for value in wanted)


def test_what_is_given_wins_and_written_settings_say_nothing_more(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 100, 10, 640)
    settings = tuned([{"data.source": str(root), "batch_size": "8", "mu": 2, "image_size": 64}])
    assert (settings.train.image_size, settings.train.batch_size) == (64, 8)
    assert settings.train.iterations == 100 * 640 // 16
    assert tuned([{"data.source": str(root), "iterations": 1000}]).train.ema == 0.99
    assert tuned([{"data.source": str(root), "ema": 0}]).train.ema == 0
    write_settings(settings, tmp_path / "settings.yaml")
    again = tuned([read_settings_file(tmp_path / "settings.yaml")])
    assert again == settings
    assert again.notes == ()


def test_labels_that_groups_hold_back_do_not_count(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 40, 10, 10)
    assert "(16 labeled images)" in tuned([{"data.source": str(root)}]).notes[0]
    for name in ("a", "b"):
        (root / "labeled" / name).rename(root / "site")
        (root / "labeled" / name).mkdir()
        (root / "site").rename(root / "labeled" / name / "site")
    one_group_a_class = tuned([{"data.source": str(root), "data.group_by": "folder"}])
    assert "(20 labeled images)" in one_group_a_class.notes[0], "no class can give its only group"


def test_known_data_sets_are_left_alone() -> None:
    assert tuned([]).notes == ()
