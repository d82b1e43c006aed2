"""New photos in a folder are found once they are complete, and appended without changing any number."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.label_log import LABEL, Event, LabelLog
from semifine.data.store import open_store
from semifine.errors import UserError
from semifine.studio.app import Studio
from semifine.studio.growth import grow_catalog, grow_store, new_photos
from semifine.studio.snapshot import take_snapshot
from semifine.studio.watch import FolderWatch, PhotoWatcher, watched_folder
from tests.studio.photos import write_photo, write_photos
from tests.studio.runs import run_on


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


def label_event(path: str, name: str) -> Event:
    return Event("Ada", path, LABEL, name)


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    return run_on(write_photos(folder / "photos"), folder / "run")


def test_a_running_studio_shows_new_photos(photo_run: Path, tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    studio = Studio(take_snapshot(photo_run, "cpu"), log, "cpu")
    before = studio.label_queue
    photos = before.snapshot.catalog.root
    assert photos is not None
    log.append([label_event(before.path(2), "robin")])
    watcher = PhotoWatcher(
        watched_folder(before.snapshot.catalog, photos / "unlabeled"), studio.add_photos, seconds=0.05
    )
    watcher.start()
    try:
        write_photo(photos / "unlabeled" / "new" / "a.jpg", 50, "2025:01:02 03:04:05")
        (photos / "unlabeled" / "half.jpg").write_bytes((photos / "unlabeled" / "0.jpg").read_bytes()[:500])
        wait_until(lambda: len(studio.label_queue.snapshot.rows) == len(before.snapshot.rows) + 1)
        after = studio.current_queue()
        count = len(before.snapshot.rows)
        assert [after.path(index) for index in range(count)] == [before.path(index) for index in range(count)]
        assert after.path(count) == "unlabeled/new/a.jpg"
        assert after.current_label(2).label == "robin"
        assert sorted(after.snapshot.orders["informative"].tolist()) == list(range(count + 1))
        assert after.snapshot.version > before.snapshot.version
        assert studio.photos.jpeg(int(after.snapshot.rows[count]), "small").startswith(b"\xff\xd8")
        wait_until(lambda: studio.label_queue.metadata.is_between("2025-01", "2025-01").tolist()[count:] == [True])
        shutil.copy(photos / "unlabeled" / "1.jpg", photos / "unlabeled" / "half.jpg")
        wait_until(lambda: len(studio.label_queue.snapshot.rows) == count + 2)
    finally:
        watcher.close()
        studio.close()
        log.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
