"""Photos of a folder, and links to files outside of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.sources import load_catalog
from semifine.data.store import open_store
from semifine.studio.images import SIZES, PhotoEncoder, is_inside

RED, BLUE = (200, 30, 30), (30, 30, 200)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for folder in ("labeled/a", "labeled/b", "unlabeled"):
        (root / folder).mkdir(parents=True)
        for number in range(2):
            size = (900 + number, 700 + len(folder))
            Image.new("RGB", size, RED).save(root / folder / f"{number}.jpg", exif=_exif(f"secret {folder} {number}"))
    return root


def _exif(text: str) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010E] = text
    return exif


def open_photos(root: Path, cache: Path) -> tuple[PhotoEncoder, dict[str, int]]:
    catalog = load_catalog(str(root))
    return PhotoEncoder(catalog, open_store(catalog, 64, cache_dir=cache)), {
        p: row for row, p in enumerate(catalog.paths)
    }


def decode(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg))


def test_full_size_has_all_pixels_and_no_metadata(photos: Path, tmp_path: Path) -> None:
    full_size = (2200, 1300)
    Image.new("RGB", full_size, RED).save(photos / "unlabeled" / "0.jpg", exif=_exif("secret"))
    encoder, row_of = open_photos(photos, tmp_path / "cache")
    row = row_of["unlabeled/0.jpg"]
    assert min(decode(encoder.jpeg(row, "small")).size) == 64, "the size in the store"
    assert min(decode(encoder.jpeg(row, "large")).size) == 1000
    assert decode(encoder.jpeg(row, "full")).size == full_size
    for size in ("large", "full"):
        assert b"secret" not in encoder.jpeg(row, size)


def test_huge_photos_are_limited_in_size(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "full", 300)
    Image.new("RGB", (2200, 500), RED).save(photos / "unlabeled" / "0.jpg")
    encoder, row_of = open_photos(photos, tmp_path / "cache")
    assert decode(encoder.jpeg(row_of["unlabeled/0.jpg"], "full")).size == (1200, 300)


@pytest.mark.parametrize("size", ["large", "full"])
def test_links_out_of_the_folder_are_not_followed(photos: Path, tmp_path: Path, size: str) -> None:
    encoder, row_of = open_photos(photos, tmp_path / "cache")
    row = row_of["unlabeled/0.jpg"]
    Image.new("RGB", (500, 400), BLUE).save(tmp_path / "private.jpg")
    (photos / "unlabeled" / "0.jpg").unlink()
    (photos / "unlabeled" / "0.jpg").symlink_to(tmp_path / "private.jpg")
    shown = np.asarray(decode(encoder.jpeg(row, size)))
    assert shown[..., 0].mean() > shown[..., 2].mean(), "the stored image, not the target of the link"


def test_deleted_photos_are_shown_from_the_store(photos: Path, tmp_path: Path) -> None:
    encoder, row_of = open_photos(photos, tmp_path / "cache")
    (photos / "unlabeled" / "1.jpg").unlink()
    assert min(decode(encoder.jpeg(row_of["unlabeled/1.jpg"], "large")).size) == 64


def test_is_inside_resolves_links(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "data-private").mkdir()
    assert is_inside(str(folder / "a.jpg"), (str(folder),))
    assert not is_inside(str(tmp_path / "data-private" / "a.jpg"), (str(folder),))
    assert not is_inside(str(folder / ".." / "a.jpg"), (str(folder),))
    assert not is_inside(str(folder / "a.jpg"), ("",))
    (tmp_path / "link").symlink_to(folder)
    assert is_inside(str(tmp_path / "link" / "a.jpg"), (str(tmp_path / "link"),)), "the folder itself may be a link"
