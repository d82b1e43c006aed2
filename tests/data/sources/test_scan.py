"""What is found in folders, and what is left lying there."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from semifine.data.sources.scan import IMAGE_SUFFIXES, LeftOut, folder_of_images, images_below, left_out_note


def test_files_that_may_be_photos_are_counted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = ["a.jpg", "a.NEF", "deep/b.nef", "c.tga", "noext", ".hidden.nef", "notes.txt", "a.xmp", "Thumbs.db"]
    for name in names:
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe.cr2")
    left_out: LeftOut = Counter()
    assert images_below(tmp_path, ".", left_out=left_out) == ["./a.jpg"]
    assert left_out == {".nef": 2, ".tga": 1, "": 1}


def test_the_documentation_names_every_extension() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "data.md").read_text(encoding="utf-8")
    _, _, images = page.partition("## Images")
    assert re.findall(r"`(\.\w+)`", images) == list(IMAGE_SUFFIXES)


def test_what_is_said_of_them() -> None:
    said = "2 files are left out, since the extension is of no image that can be read: .nef 1, without one 1"
    assert left_out_note(Counter({".nef": 1, "": 1})) == [said]
    assert left_out_note(Counter()) == []


def test_one_image_is_enough_wherever_in_the_list_it_is(tmp_path: Path) -> None:
    paths = [f"{number}.jpg" for number in range(100)]
    assert folder_of_images([tmp_path], paths) is None
    (tmp_path / "77.jpg").touch()
    assert folder_of_images([tmp_path], paths) == tmp_path
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").touch()
    assert folder_of_images([tmp_path, tmp_path / "images"], paths) == tmp_path / "images", "which is quicker to find"
