"""Photos that look the same are found, others are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from semifine.data.catalog import Split
from semifine.data.inspection import inspect
from semifine.data.near_duplicates import MOST_BITS, _close_pairs, near_duplicates
from semifine.data.store import open_store

from .conftest import MakeCatalog


def picture(seed: int) -> Image.Image:
    """Soft blobs, as photos have them."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((200, 150), Image.Resampling.BICUBIC)


def test_changed_copies_across_splits_are_found(tmp_path: Path, make_catalog: MakeCatalog) -> None:
    for number in range(12):
        picture(number).save(tmp_path / f"{number}.png")
    picture(3).save(tmp_path / "recompressed.jpg", quality=60)
    picture(4).resize((120, 90)).save(tmp_path / "smaller.png")
    ImageEnhance.Brightness(picture(5)).enhance(1.2).save(tmp_path / "brighter.png")
    picture(6).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "mirrored.png")
    picture(7).save(tmp_path / "same side.jpg")
    Image.new("RGB", (50, 50), "white").save(tmp_path / "white.png")
    Image.new("RGB", (60, 50), "grey").save(tmp_path / "grey.png")
    train = [f"{number}.png" for number in range(12)] + ["same side.jpg", "white.png"]
    test = ["recompressed.jpg", "smaller.png", "brighter.png", "mirrored.png", "grey.png"]
    catalog = make_catalog([*train, *test], split=[Split.LABELLED] * len(train) + [Split.TEST] * len(test))
    store = open_store(catalog, 64, tmp_path / "cache")
    report = inspect(catalog, store, look_alikes=True)
    found = {("3.png", "recompressed.jpg"), ("4.png", "smaller.png"), ("5.png", "brighter.png")}
    assert set(report.near_duplicates) == found
    assert any("3 pairs" in warning for warning in report.warnings)
    assert [bits for _, _, bits in near_duplicates(catalog, store)] == sorted(
        bits for _, _, bits in near_duplicates(catalog, store)
    )


def test_no_pair_within_the_limit_is_missed() -> None:
    random = np.random.default_rng(0)
    first = random.integers(0, 2**16, (60, 16)).astype(np.uint16)
    second = np.repeat(first, 2, axis=0)
    for row in second:  # up to 25 bits flipped
        for bit in random.choice(256, random.integers(0, 26), replace=False):
            row[bit // 16] ^= np.uint16(1 << (bit % 16))
    slow = {
        (a, b)
        for a in range(len(first))
        for b in range(len(second))
        if sum(int(x ^ y).bit_count() for x, y in zip(first[a], second[b], strict=True)) <= MOST_BITS
    }
    assert {(a, b) for a, b, _ in _close_pairs(first, second)} == slow
    assert 20 < len(slow) < 120
