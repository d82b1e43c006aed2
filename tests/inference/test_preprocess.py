"""The view without torch is the view that evaluation uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.store import open_store
from semifine.inference.preprocess import center_crop_array


class Arrays:
    in_memory = True

    def __init__(self, images: list[np.ndarray]) -> None:
        self.images = images

    def read(self, row: int) -> np.ndarray:
        return self.images[row]

    def fingerprint(self) -> list[str]:
        return [str(row) for row in range(len(self.images))]


@pytest.mark.parametrize(
    ("height", "width", "size"), [(36, 36, 32), (37, 61, 32), (64, 40, 32), (9, 14, 32), (1, 3, 8), (120, 90, 32)]
)
def test_levels_agree_with_the_view_maker(height: int, width: int, size: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    catalog = Catalog("one", (), [str(Path("a"))], [-1], [Split.UNLABELED], [-1], Arrays([image]))
    plain = AugmentSettings(size=size, mean=(0, 0, 0), std=(1 / 255,) * 3)
    maker = AugmentPipeline(open_store(catalog, 4096), plain, seed=0)
    wanted = maker("test", np.array([0]), 0, "evaluation")[0].permute(1, 2, 0).numpy()
    found = center_crop_array(image, size)
    assert found.shape == (size, size, 3)
    assert np.abs(found - wanted).max() <= 0.501
