"""Durable writes: the order of writing, syncing and renaming, and links that are planted in the place of a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from semifine.errors import UserError
from semifine.files import atomic_file, create_folder, open_regular, sync_to_disk, sync_tree, write_atomically


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user outside the folder."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """System calls of durable writing with the names of their files."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        calls.append(f"replace {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return calls


def test_content_is_synced_before_the_rename_and_the_folder_after_it(tmp_path: Path, calls: list[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_atomically(folder / "a.txt", "1", exclusive=True)
    assert calls == ["fsync .a.txt.partial", "replace a.txt", "fsync folder"]


def test_parents_of_created_folders_are_synced(tmp_path: Path, calls: list[str]) -> None:
    create_folder(tmp_path / "a" / "b")
    assert sorted(calls) == sorted([f"fsync {tmp_path.name}", "fsync a"])
    create_folder(tmp_path / "a" / "b")
    assert len(calls) == 2, "both exist already"


def test_a_tree_is_synced_from_its_files_to_its_root(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").touch()
    (tmp_path / "2.txt").touch()
    sync_tree(tmp_path)
    assert calls == ["fsync 1.txt", "fsync a", "fsync 2.txt", f"fsync {tmp_path.name}"]


def test_only_folders_may_be_impossible_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    sync_to_disk(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        sync_to_disk(tmp_path / "file")


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, victim: Path, exclusive: bool
) -> None:
    name = ".model.onnx.partial" if exclusive else f".model.onnx.{os.getpid()}.partial"
    (tmp_path / name).symlink_to(victim)
    with atomic_file(tmp_path / "model.onnx", exclusive=exclusive) as partial:
        assert partial.name == name
        partial.write_text("weights")
    assert victim.read_text() == "precious"
    assert (tmp_path / "model.onnx").read_text() == "weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "victim"]


def test_a_link_in_the_place_of_the_file_is_replaced(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "result.json").symlink_to(victim)
    write_atomically(tmp_path / "result.json", "{}")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "result.json").is_symlink()


def test_links_pipes_and_devices_are_not_opened_for_writing(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe"):
        with pytest.raises(UserError, match=f"{name} is a link or no regular file, and is not written to: remove it"):
            open_regular(tmp_path / name, "a")
    with pytest.raises(UserError, match="null is a link or no regular file"):
        open_regular(Path("/dev/null"), "a")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("named", [None, "partial"])
def test_errors_of_a_full_disk_name_the_file_instead_of_the_temporary_one(tmp_path: Path, named: str | None) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(OSError, match="No space left") as raised, atomic_file(out) as partial:
        raise OSError(errno.ENOSPC, "No space left on device", named and str(partial))
    assert raised.value.filename == str(out)
    assert not list(tmp_path.iterdir())


def test_other_errors_keep_their_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="photo") as raised, atomic_file(tmp_path / "table.csv"):
        raise OSError(errno.ENOSPC, "No space left on device", "photo.jpg")
    assert raised.value.filename == "photo.jpg"
