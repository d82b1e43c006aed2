"""Near-duplicates between training and test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from semifine.data.catalog import Split
from semifine.data.checks import MAX_CANDIDATES, MAX_DISTANCE, _close_pairs, find_near_duplicates, inspect
from semifine.data.selection import select_images
from semifine.data.store import open_store

from .conftest import MakeCatalog


def picture(seed: int) -> Image.Image:
    """Returns an image of soft blobs."""
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
    Image.new("RGB", (60, 50), "gray").save(tmp_path / "gray.png")
    train = [f"{number}.png" for number in range(12)] + ["same side.jpg", "white.png"]
    test = ["recompressed.jpg", "smaller.png", "brighter.png", "mirrored.png", "gray.png"]
    catalog = make_catalog([*train, *test], split=[Split.LABELED] * len(train) + [Split.TEST] * len(test))
    store = open_store(catalog, 64, tmp_path / "cache")
    report = inspect(select_images(catalog, store), near_duplicates=True)
    found = {("3.png", "recompressed.jpg"), ("4.png", "smaller.png"), ("5.png", "brighter.png")}
    assert set(report.near_duplicates) == found
    assert any("3 validation or test images look the same" in warning for warning in report.warnings)
    assert [bits for _, _, bits in find_near_duplicates(catalog, store)] == sorted(
        bits for _, _, bits in find_near_duplicates(catalog, store)
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
        if sum(int(x ^ y).bit_count() for x, y in zip(first[a], second[b], strict=True)) <= MAX_DISTANCE
    }
    found = [np.stack(pairs, axis=1)[:, :2] for pairs in _close_pairs(first, second)]
    assert set(map(tuple, np.concatenate(found).tolist())) == slow
    assert 20 < len(slow) < 120


def test_each_test_image_is_listed_once_with_the_most_similar_image(tmp_path: Path, make_catalog: MakeCatalog) -> None:
    picture(1).save(tmp_path / "good.jpg", quality=95)
    picture(1).resize((40, 30)).save(tmp_path / "poor.jpg", quality=30)
    picture(1).save(tmp_path / "copy.png")
    for number in (1, 2):
        picture(number).save(tmp_path / f"{number}.png")
    paths = ["poor.jpg", "good.jpg", "copy.png", "1.png", "2.png"]
    catalog = make_catalog(paths, split=[Split.LABELED] * 3 + [Split.VAL] * 2)
    ((train, measured, bits),) = find_near_duplicates(catalog, open_store(catalog, 64, tmp_path / "cache"))
    assert (paths[train], paths[measured]) == ("good.jpg", "1.png"), "exact copies are not listed"
    assert bits < 5


def test_comparisons_of_a_fixed_camera_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    scene = random.integers(0, 2**16, 16).astype(np.uint16)
    shots = np.tile(scene, (3000, 1))
    shots[np.arange(3000), random.integers(0, 16, 3000)] ^= (1 << random.integers(0, 16, 3000)).astype(np.uint16)
    monkeypatch.setattr("semifine.data.checks.CHUNK_SIZE", 10_000)
    found = [targets for _, targets, _ in _close_pairs(shots[:2000], shots[2000:])]
    sizes = [len(targets) for targets in found]
    assert max(sizes) <= 10_000 + MAX_CANDIDATES
    assert sum(sizes) <= 16 * 1000 * MAX_CANDIDATES
    assert np.unique(np.concatenate(found)).tolist() == list(range(1000))
