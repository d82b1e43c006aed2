"""New photos in a folder are found once they are complete, and appended without changing any number."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.store import open_store
from semifine.errors import UserError
from semifine.studio.growth import grow_catalog, grow_store, new_photos
from semifine.studio.watch import FolderWatch, watched_folder
from tests.studio.photos import write_photo


def catalog_of(root: Path, paths: list[str]) -> Catalog:
    unknown = [-1] * len(paths)
    reader = FileReader(paths, [root])
    return Catalog("birds", ("robin",), paths, unknown, [Split.UNLABELED] * len(paths), unknown, reader, root=root)


def test_photos_are_returned_when_they_no_longer_change(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path, ".", known=["old.jpg"])
    write_photo(tmp_path / "old.jpg", 0)
    assert watch.poll() == []
    write_photo(tmp_path / "sub" / "new.jpg", 1)
    (tmp_path / "empty.jpg").touch()
    assert watch.poll() == [], "it may still be copied"
    assert watch.poll() == ["sub/new.jpg"]
    watch.accept(["sub/new.jpg"])
    assert watch.poll() == []


def test_half_written_files_are_tried_again(tmp_path: Path) -> None:
    write_photo(tmp_path / "whole.jpg", 2)
    content = (tmp_path / "whole.jpg").read_bytes()
    watch = FolderWatch(tmp_path, ".", known=["whole.jpg"])
    (tmp_path / "new.jpg").write_bytes(content[:100])
    assert [watch.poll(), watch.poll()] == [[], ["new.jpg"]]
    watch.reject(["new.jpg"])
    assert watch.poll() == [], "nothing changed"
    (tmp_path / "new.jpg").write_bytes(content)
    assert [watch.poll(), watch.poll()] == [[], ["new.jpg"]]


def test_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert FolderWatch(tmp_path, "missing", known=[]).poll() == []


def test_the_folder_must_belong_to_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "photos" / "new").mkdir(parents=True)
    write_photo(tmp_path / "photos" / "new" / "1.jpg", 0)
    catalog = catalog_of(tmp_path / "photos", ["new/1.jpg"])
    for folder in (tmp_path, tmp_path / "photos" / "missing"):
        with pytest.raises(UserError, match="must be a folder inside"):
            watched_folder(catalog, folder)
    watch = watched_folder(catalog, tmp_path / "photos")
    write_photo(tmp_path / "photos" / "2.jpg", 1)
    assert [watch.poll(), watch.poll()] == [[], ["2.jpg"]]


def test_rows_of_the_first_catalog_stay(tmp_path: Path) -> None:
    for number in range(4):
        write_photo(tmp_path / f"{number}.jpg", number)
    first = catalog_of(tmp_path, ["1.jpg", "0.jpg"])
    second = new_photos(first, ["3.jpg", "2.jpg"])
    stores = [open_store(catalog, 32, cache_dir=tmp_path / "cache") for catalog in (first, second)]
    catalog, store = grow_catalog(first, second), grow_store(*stores)
    assert [str(path) for path in catalog.paths] == ["1.jpg", "0.jpg", "3.jpg", "2.jpg"]
    assert (catalog.split == Split.UNLABELED).all()
    assert len(store) == 4
    for row, number in enumerate((1, 0, 3, 2)):
        with Image.open(tmp_path / f"{number}.jpg") as photo:
            assert (catalog.reader.read(row) == np.asarray(photo)).all()
        part, place = stores[row // 2], row % 2
        assert (store.image(row) == part.image(place)).all()
        assert (store.digest[row] == part.digest[place]).all()
    again = grow_store(store, stores[1])
    assert (again.image(5) == stores[1].image(1)).all()
    assert (again.image(2) == stores[1].image(0)).all()


def test_new_photos_need_no_cache_on_disk(tmp_path: Path) -> None:
    write_photo(tmp_path / "1.jpg", 1)
    catalog = new_photos(catalog_of(tmp_path, []), ["1.jpg"])
    open_store(catalog, 32, cache_dir=tmp_path / "cache")
    assert not os.path.exists(tmp_path / "cache")
