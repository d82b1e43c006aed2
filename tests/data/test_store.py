from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from semifine.data import parallel
from semifine.data import store as store_module
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader, compute_digest
from semifine.data.store import (
    ImageStore,
    StoreFolder,
    default_cache_dir,
    open_store,
    unreadable_reasons,
)
from semifine.errors import UserError

from .conftest import MakeCatalog, SaveImage

PATHS = ["a b/eins .png", "Vögel/鳥.PNG", "big.png", "wide.png"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def catalog(save_image: SaveImage, make_catalog: MakeCatalog) -> Catalog:
    for path, (width, height) in zip(PATHS, [(12, 10), (9, 9), (60, 40), (90, 10)], strict=True):
        save_image(path, width, height)
    return make_catalog(PATHS)


@pytest.fixture
def decoded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the rows that are decoded."""
    rows: list[int] = []
    original = FileReader.decode

    def decode(self: FileReader, row: int, shorter_side: int | None) -> object:
        rows.append(row)
        return original(self, row, shorter_side)

    monkeypatch.setattr(FileReader, "decode", decode)
    return rows


def same(one: ImageStore, other: ImageStore) -> bool:
    return torch.equal(one.pixels, other.pixels) and torch.equal(one.offset, other.offset)


def test_holds_every_image(catalog: Catalog, cache: Path, tmp_path: Path) -> None:
    store = open_store(catalog, 20, cache, workers=2)
    assert len(store) == 4
    assert [tuple(store.image(row).shape) for row in range(4)] == [(10, 12, 3), (9, 9, 3), (20, 30, 3), (10, 40, 3)]
    expected = np.asarray(Image.open(tmp_path / PATHS[0]))
    np.testing.assert_array_equal(store.image(0).numpy(), expected)
    assert store.original_size.tolist() == [[10, 12], [9, 9], [40, 60], [10, 90]]
    assert store.nbytes == sum(store.image(row).numel() for row in range(4)) == store.pixels.numel()
    assert store.offset.tolist() == [0, 360, 603, 2403]
    assert (store.pixels.dtype, store.offset.dtype, store.height.dtype) == (torch.uint8, torch.int64, torch.int32)
    assert store.readable.all()
    assert store.to("cpu").image(2).shape == (20, 30, 3)


def test_is_reused(catalog: Catalog, cache: Path, decoded_rows: list[int]) -> None:
    seen: list[tuple[int, int]] = []
    first = open_store(catalog, 20, cache, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sorted(decoded_rows) == [0, 1, 2, 3]
    second = open_store(catalog, 20, cache)
    assert len(decoded_rows) == 4
    assert same(first, second)
    assert "taken from" in second.note
    assert (second.digest == first.digest).all()
    assert not list(cache.glob("building-*"))


def test_size_and_paths_have_their_own_folder(catalog: Catalog, cache: Path) -> None:
    open_store(catalog, 20, cache)
    open_store(catalog, 10, cache)
    open_store(catalog.take(np.array([1, 0])), 20, cache)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 3


def test_a_changed_file_is_detected(catalog: Catalog, cache: Path, save_image: SaveImage) -> None:
    old = open_store(catalog, 20, cache)
    before = old.image(0).clone()
    save_image(PATHS[0], 13, 10)
    store = open_store(catalog, 20, cache)
    assert f"1 image changed ({PATHS[0]})" in store.note
    assert store.image(0).shape == (10, 13, 3)
    assert torch.equal(old.image(0), before)  # an open store keeps its data


def test_same_size_but_newer_is_detected(catalog: Catalog, cache: Path, tmp_path: Path) -> None:
    open_store(catalog, 20, cache)
    os.utime(tmp_path / PATHS[0], ns=(5, 5))
    assert "1 image changed" in open_store(catalog, 20, cache).note


def test_missing_and_new_files_are_detected(catalog: Catalog, cache: Path, tmp_path: Path) -> None:
    open_store(catalog, 20, cache)
    (tmp_path / PATHS[1]).rename(tmp_path / "elsewhere")
    store = open_store(catalog, 20, cache)
    assert f"1 image missing ({PATHS[1]})" in store.note
    assert store.readable.tolist() == [True, False, True, True]
    assert tuple(store.image(1).shape) == (0, 0, 3)
    assert "taken from" in open_store(catalog, 20, cache).note
    (tmp_path / "elsewhere").rename(tmp_path / PATHS[1])
    store = open_store(catalog, 20, cache)
    assert f"1 image new ({PATHS[1]})" in store.note
    assert store.readable.all()


def test_a_file_that_can_be_read_again_is_detected(
    catalog: Catalog, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FileReader.decode

    def no_permission(self: FileReader, row: int, shorter_side: int | None) -> object:
        if row == 2:
            raise PermissionError("not allowed")
        return original(self, row, shorter_side)

    with monkeypatch.context() as patch:
        patch.setattr(FileReader, "decode", no_permission)
        store = open_store(catalog, 20, cache)
        assert unreadable_reasons(store) == {2: "not allowed"}
        assert "taken from" in open_store(catalog, 20, cache).note
    assert "1 image readable now (big.png)" in open_store(catalog, 20, cache).note


def truncate_pixels(folder: Path) -> None:
    os.truncate(folder / "pixels.bin", 100)


def overwrite_pixels(folder: Path) -> None:
    size = (folder / "pixels.bin").stat().st_size
    (folder / "pixels.bin").write_bytes(bytes(size))


def overwrite_index(folder: Path) -> None:
    content = bytearray((folder / "index.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (folder / "index.npz").write_bytes(content)


def other_format(folder: Path) -> None:
    about = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(about | {"format": 99}))


def break_metadata(folder: Path) -> None:
    (folder / "store.json").write_text("[]")


def nest_metadata(folder: Path) -> None:
    (folder / "store.json").write_text("[" * 100_000)


def pipe_instead_of_metadata(folder: Path) -> None:
    (folder / "store.json").unlink()
    os.mkfifo(folder / "store.json")


def change_index(folder: Path, **columns: Callable[[np.ndarray], np.ndarray]) -> None:
    """Changes columns as someone who wants to harm would, with a valid checksum."""
    with np.load(folder / "index.npz") as arrays:
        changed = {name: columns.get(name, np.copy)(arrays[name]) for name in arrays.files}
    np.savez(folder / "index.npz", **changed)
    about = json.loads((folder / "store.json").read_text())
    about["index"] = compute_digest((folder / "index.npz").read_bytes()).hex()
    (folder / "store.json").write_text(json.dumps(about))


def pixels_outside_of_the_file(folder: Path) -> None:
    change_index(folder, offset=lambda column: column + 10**9, checksum=np.zeros_like)


def negative_offsets(folder: Path) -> None:
    change_index(folder, offset=lambda column: column - 10**9, checksum=np.zeros_like)


def huge_images(folder: Path) -> None:
    change_index(folder, height=lambda column: column + 2**30, width=lambda column: column + 2**30)


def columns_of_other_length(folder: Path) -> None:
    change_index(folder, phash=lambda column: column[:1], original_size=lambda column: column[:, :1])


def no_numbers(folder: Path) -> None:
    change_index(folder, fingerprint=lambda column: column.astype("U"))


def nothing_there(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        *(truncate_pixels, overwrite_pixels, overwrite_index, other_format, break_metadata, nothing_there),
        *(nest_metadata, pipe_instead_of_metadata, pixels_outside_of_the_file, negative_offsets, huge_images),
        *(columns_of_other_length, no_numbers),
    ],
)
def test_a_damaged_store_is_built_again(catalog: Catalog, cache: Path, damage: Callable[[Path], None]) -> None:
    expected = open_store(catalog, 20, cache).pixels.clone()
    damage(next(path for path in cache.glob("images-*") if path.is_dir()))
    store = open_store(catalog, 20, cache)
    assert "are damaged (" in store.note  # the path contains the name of this test
    assert torch.equal(store.pixels, expected)
    assert "taken from" in open_store(catalog, 20, cache).note


def test_an_interrupted_build_leaves_nothing(catalog: Catalog, cache: Path) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_store(catalog, 20, cache, progress=stop)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_killed_build_is_removed(catalog: Catalog, cache: Path) -> None:
    folder = StoreFolder(cache, catalog, 20)
    leftover = cache / f"building-{folder.key}-dead"
    leftover.mkdir(parents=True)
    open_store(catalog, 20, cache)
    assert not leftover.exists()


def _open_in_process(catalog: Catalog, cache: Path, barrier: object, answers: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    store = open_store(catalog, 20, cache, workers=1)
    answers.put((store.note, int(store.pixels.long().sum())))  # type: ignore[attr-defined]


def test_two_processes_at_once(catalog: Catalog, cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_open_in_process, args=(catalog, cache, barrier, answers)) for _ in "ab"]
    for process in processes:
        process.start()
    notes, sums = zip(*(answers.get(timeout=60) for _ in processes), strict=True)
    for process in processes:
        process.join()
    assert sums[0] == sums[1] == int(open_store(catalog, 20, cache).pixels.long().sum())
    assert sorted("taken from" in note for note in notes) == [False, True]


def test_many_threads_without_locks(catalog: Catalog, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, as on some network file systems, all threads may build and the first store stays."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    stores: list[ImageStore] = []
    threads = [threading.Thread(target=lambda: stores.append(open_store(catalog, 20, cache))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 4
    assert all(same(store, stores[0]) for store in stores)
    assert not list(cache.glob("building-*"))


def test_a_full_disk_is_a_user_error(catalog: Catalog, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "sync_tree", full)
    with pytest.raises(UserError, match="disk is full"):
        open_store(catalog, 20, cache)
    assert not list(cache.glob("building-*"))


def test_a_cache_that_cannot_be_written_is_named(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="SEMIFINE_CACHE"):
        open_store(catalog, 20, tmp_path / "file")


def test_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEMIFINE_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("SEMIFINE_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "semifine"


def test_memory_is_bounded(
    save_image: SaveImage, make_catalog: MakeCatalog, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of images that are decoded ahead of writing is bounded."""
    ahead: list[int] = []
    started = 0
    original = store_module.try_decode_row

    def counted(*args: object) -> object:
        nonlocal started
        started += 1
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "try_decode_row", counted)
    paths = [f"{i}.png" for i in range(60)]
    for path in paths:
        save_image(path, 4, 4)
    open_store(make_catalog(paths), 4, cache, lambda done, _: ahead.append(started - done), workers=2)
    assert max(ahead) <= 2 * parallel.IN_FLIGHT_PER_WORKER


class Drawn:
    """Reads generated images."""

    in_memory = True

    def read(self, row: int) -> NDArray[np.uint8]:
        if row == 3:
            raise ValueError("not drawn")
        return np.full((8, 8 + row, 3), row, np.uint8)

    def fingerprint(self) -> list[str]:
        raise AssertionError("not needed for images in memory")


def test_images_in_memory_need_no_cache(tmp_path: Path) -> None:
    label = np.array([0, 1, 0, -1])
    split = np.array([0, 0, 0, 1], np.uint8)
    catalog = Catalog("drawn", ("a", "b"), list("abcd"), label, split, label, Drawn())
    store = open_store(catalog, 4, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert [tuple(store.image(row).shape) for row in range(3)] == [(4, 4, 3), (4, 4, 3), (4, 5, 3)]
    assert store.image(2).unique().tolist() == [2]
    assert unreadable_reasons(store) == {3: "not drawn"}
    smaller = catalog.take(np.arange(3))
    assert len(open_store(smaller, 4, tmp_path / "cache")) == 3  # a subset is also in memory
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def broken(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> Catalog:
    paths = ["l0.png", "u0.png", "u1.png", "l1.png", "l2.png", "t.png"]
    for path in paths:
        save_image(path)
    (tmp_path / "u0.png").write_bytes(b"rubbish")
    unlabeled = Split.UNLABELED
    split = [Split.LABELED, unlabeled, unlabeled, Split.LABELED, Split.LABELED, Split.TEST]
    return make_catalog(paths, label=[0, -1, -1, 1, 1, 0], split=split)


def test_selected_rows_share_the_pixels(broken: Catalog, cache: Path) -> None:
    store = open_store(broken, 8, cache)
    assert store.reasons.keys() == {1}
    kept = np.flatnonzero(store.readable)
    part = store.take(kept)
    assert len(part) == 5
    for row, original in enumerate(kept.tolist()):
        assert torch.equal(part.image(row), store.image(original))
    assert part.readable.all()
    assert not part.reasons
    assert part.pixels is store.pixels
    assert "taken from" in open_store(broken, 8, cache).note  # broken files do not invalidate the cache


def test_size_must_be_positive(catalog: Catalog, cache: Path) -> None:
    with pytest.raises(UserError, match="shorter side of 0"):
        open_store(catalog, 0, cache)


def test_only_unreadable_images_make_an_empty_store(make_catalog: MakeCatalog, cache: Path) -> None:
    catalog = make_catalog(["none.png", "nil.png"])
    store = open_store(catalog, 8, cache)
    assert store.nbytes == 0
    assert "taken from" in open_store(catalog, 8, cache).note
