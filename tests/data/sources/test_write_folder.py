"""A written folder is read as the same data set."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.sources import folder, load_catalog, synthetic
from semifine.data.sources.folder import write_folder
from semifine.errors import UserError

from ..conftest import MakeCatalog, SaveImage


def test_classes_splits_and_pixels_are_kept(tmp_path: Path) -> None:
    settings = synthetic.Settings(genera=2, species=2, unlabeled_per_class=3, val_per_class=1, test_per_class=2)
    catalog = load_catalog("synthetic", settings)
    write_folder(catalog, tmp_path / "photos")
    again = folder.load(tmp_path / "photos", folder.Settings())
    assert set(again.class_names) == set(catalog.class_names)
    for split in Split:
        assert len(again.rows(split)) == len(catalog.rows(split))
    assert (again.truth[again.rows(Split.UNLABELED)] == UNKNOWN).all()
    for row in range(len(again)):
        original = int(Path(again.paths[row]).stem)
        assert np.array_equal(again.reader.read(row), catalog.reader.read(original))
        if catalog.label[original] != UNKNOWN:
            assert again.class_names[again.label[row]] == catalog.class_names[catalog.label[original]]
    with pytest.raises(UserError, match="exists already"):
        write_folder(catalog, tmp_path / "photos")


@pytest.fixture
def broken(tmp_path: Path, save_image: SaveImage, make_catalog: MakeCatalog) -> Catalog:
    """Two classes of two labeled images and two unlabeled ones, one of which is broken."""
    paths = [f"{number}.png" for number in range(6)]
    for path in paths:
        save_image(path)
    (tmp_path / "5.png").write_bytes(b"rubbish")
    return make_catalog(paths, label=[0, 0, 1, 1, -1, -1], split=[Split.LABELED] * 4 + [Split.UNLABELED] * 2)


def files_in(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_unreadable_unlabeled_images_are_left_out(broken: Catalog, tmp_path: Path) -> None:
    ((path, reason),) = write_folder(broken, tmp_path / "out")
    assert path == "5.png"
    assert "not a supported image format" in reason
    assert files_in(tmp_path / "out") == [
        *("labeled/class 0/000000.png", "labeled/class 0/000001.png"),
        *("labeled/class 1/000002.png", "labeled/class 1/000003.png", "unlabeled/000004.png"),
    ]


def test_unreadable_labeled_images_are_left_out(broken: Catalog, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"rubbish")
    assert [path for path, _ in write_folder(broken, tmp_path / "out")] == ["1.png", "5.png"]
    assert len(files_in(tmp_path / "out")) == 4


@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize(
    ("unreadable", "message"),
    [
        ([2, 3], "All labeled images of class 'class 1' are unreadable"),
        ([0, 1, 2], r"3 of 4 labeled images of test cannot be read \(0\.png"),
        ([4], r"2 of 2 unlabeled images of test cannot be read \(4\.png"),
    ],
)
def test_nothing_is_written_if_too_many_images_are_unreadable(
    broken: Catalog, tmp_path: Path, was_there: bool, unreadable: list[int], message: str
) -> None:
    for number in unreadable:
        (tmp_path / f"{number}.png").write_bytes(b"rubbish")
    out = tmp_path / "out"
    if was_there:
        out.mkdir()
    with pytest.raises(UserError, match=message):
        write_folder(broken, out)
    assert list(out.iterdir()) == [] if was_there else not out.exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_folder_of_an_interrupted_process_is_not_read_as_complete(
    broken: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """The process is killed after each rename. The folder is either absent, refused, or complete."""
    out, states = tmp_path / "out", []
    if was_there:
        out.mkdir()
    rename = Path.rename

    def rename_and_copy(path: Path, target: Path) -> Path:
        states.append(Path(shutil.copytree(out, tmp_path / f"state-{len(states)}")) if out.exists() else None)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_and_copy)
    write_folder(broken, out)
    assert len(folder.load(out, folder.Settings())) == 5
    if not was_there:
        assert states == [None]
    for state in filter(None, states):
        with pytest.raises(UserError, match=f"{state} is incomplete, .* remove it and repeat"):
            folder.load(state, folder.Settings())
    assert not was_there or len(states) == 2
