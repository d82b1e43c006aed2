"""Image files in folders, skipped files, and run folders among them."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from semifine.data import image_files
from semifine.data.image_files import (
    IMAGE_SUFFIXES,
    SkippedFiles,
    contains_only_runs,
    find_image_folder,
    find_images,
    skipped_notes,
)
from semifine.runs import folder


def test_skipped_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = ["a.jpg", "a.NEF", "deep/b.nef", "c.tga", "noext", ".hidden.nef", "notes.txt", "a.xmp", "Thumbs.db"]
    for name in names:
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe.cr2")
    skipped: SkippedFiles = Counter()
    assert find_images(tmp_path, ".", skipped=skipped) == ["./a.jpg"]
    assert skipped == {".nef": 2, ".tga": 1, "": 1}


def test_the_documentation_names_every_extension() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text(encoding="utf-8")
    _, _, images = page.partition("## Images")
    assert re.findall(r"`(\.\w+)`", images) == list(IMAGE_SUFFIXES)


def test_note_on_skipped_files() -> None:
    note = "2 files are skipped, because the suffix is not of a supported image format: .nef 1, no suffix 1"
    assert skipped_notes(Counter({".nef": 1, "": 1})) == [note]
    assert skipped_notes(Counter()) == []


def test_one_existing_image_identifies_the_folder(tmp_path: Path) -> None:
    paths = [f"{number}.jpg" for number in range(100)]
    assert find_image_folder([tmp_path], paths) is None
    (tmp_path / "77.jpg").touch()
    assert find_image_folder([tmp_path], paths) == tmp_path
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").touch()
    assert find_image_folder([tmp_path, tmp_path / "images"], paths) == tmp_path / "images", "0.jpg is tried first"


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


STARTED = ("settings.yaml", "checkpoints/last/model.safetensors", "log.jsonl")
ATTEMPT = (".lock", "log.jsonl")


@pytest.mark.parametrize("files", [STARTED, ATTEMPT], ids=["started", "attempt"])
@pytest.mark.parametrize("inside", [".", "one", "two"])
def test_a_run_or_a_folder_of_runs(tmp_path: Path, files: tuple[str, ...], inside: str) -> None:
    touch(tmp_path / inside, *files)
    touch(tmp_path, "notes.txt", "empty/table.csv")
    assert contains_only_runs(tmp_path)


@pytest.mark.parametrize("photo", ["a.jpg", "site/a.jpg", "site/day/a.jpg"])
def test_a_folder_with_photos_and_a_run_does_not_contain_only_runs(tmp_path: Path, photo: str) -> None:
    touch(tmp_path / "run", *STARTED)
    touch(tmp_path, photo)
    assert not contains_only_runs(tmp_path)


@pytest.mark.parametrize("files", [("settings.yaml",), ("log.jsonl",), (".lock",), ("checkpoints/x",), ("notes.txt",)])
def test_a_single_file_of_a_run_is_not_a_run(tmp_path: Path, files: tuple[str, ...]) -> None:
    touch(tmp_path, *files)
    assert not contains_only_runs(tmp_path)


def test_names_match_the_layout_of_run_folders(tmp_path: Path) -> None:
    run = folder.RunFolder(tmp_path)
    assert image_files.RUN_LOCK == folder.LOCK
    assert (
        run.settings.name,
        run.checkpoints.name,
        run.log.name,
    ) == (image_files.RUN_SETTINGS, image_files.RUN_CHECKPOINTS, image_files.RUN_LOG)
