from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.left_out import LeftOut, describe_left_out
from semifine.data.selection import select_images
from semifine.data.sources.folder import Settings, load
from semifine.data.store import open_store, unreadable_reasons
from semifine.errors import UserError

from ..conftest import SaveImage


def rows(catalog: Catalog, split: Split) -> dict[str, int]:
    return {catalog.paths[row]: int(catalog.label[row]) for row in catalog.rows(split)}


def test_the_whole_layout(tmp_path: Path, save_image: SaveImage) -> None:
    for path in (
        *("labeled/zebra finch/1.JPG", "labeled/zebra finch/deep/er/2.jpeg", "labeled/Ärger 鳥 /1 .png"),
        *("unlabeled/1.png", "unlabeled/some/day/2.webp", "val/zebra finch/1.png", "test/Ärger 鳥 /1.PNG"),
    ):
        save_image(path)
    for path in ("labeled/notes.txt", "labeled/zebra finch/.hidden.jpg", "unlabeled/.cache/1.png", "unlabeled/x.csv"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    catalog = load(tmp_path, Settings())
    assert catalog.class_names == ("zebra finch", "Ärger 鳥"), "spaces around folder names are removed"
    assert rows(catalog, Split.LABELED) == {
        "labeled/zebra finch/1.JPG": 0,
        "labeled/zebra finch/deep/er/2.jpeg": 0,
        "labeled/Ärger 鳥 /1 .png": 1,
    }
    assert rows(catalog, Split.UNLABELED) == {"unlabeled/1.png": UNKNOWN, "unlabeled/some/day/2.webp": UNKNOWN}
    assert rows(catalog, Split.VAL) == {"val/zebra finch/1.png": 0}
    assert rows(catalog, Split.TEST) == {"test/Ärger 鳥 /1.PNG": 1}
    assert all(catalog.reader.read(row).shape == (10, 12, 3) for row in range(len(catalog)))


def test_folder_names_of_unlabeled_images_do_not_leak(tmp_path: Path, save_image: SaveImage) -> None:
    british = ("labelled/a/1.png", "labelled/b/1.png", "unlabelled/a/2.png")  # codespell:ignore labelled,unlabelled
    for path in (*british, "unlabelled/b/2.png"):  # codespell:ignore unlabelled
        save_image(path)
    catalog = load(tmp_path, Settings())
    hidden = catalog.rows(Split.UNLABELED)
    assert len(hidden) == 2
    assert (catalog.label[hidden] == UNKNOWN).all()
    assert (catalog.truth[hidden] == UNKNOWN).all()


def test_accents_are_one_class_in_both_forms(tmp_path: Path, save_image: SaveImage) -> None:
    save_image(f"labeled/{unicodedata.normalize('NFC', 'fée')}/1.png")
    save_image("labeled/b/1.png")
    save_image(f"test/{unicodedata.normalize('NFD', 'fée')}/1.png")
    catalog = load(tmp_path, Settings())
    assert catalog.class_names == ("b", "fée")
    assert list(rows(catalog, Split.TEST).values()) == [1]
    assert catalog.reader.read(2).shape == (10, 12, 3)


def test_links_are_followed_and_cycles_are_detected(tmp_path: Path, save_image: SaveImage) -> None:
    for path in ("data/labeled/a/1.png", "data/labeled/b/1.png", "elsewhere/1.png"):
        save_image(path)
    root = tmp_path / "data"
    (root / "unlabeled").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(root / "unlabeled")
    assert list(rows(load(root, Settings()), Split.UNLABELED)) == ["unlabeled/1.png"]


def test_a_link_to_a_missing_photo_is_an_unreadable_photo(tmp_path: Path, save_image: SaveImage) -> None:
    for path in ("labeled/a/1.png", "labeled/b/1.png", "unlabeled/1.png"):
        save_image(path)
    (tmp_path / "unlabeled" / "2.png").symlink_to(tmp_path / "missing.png")
    catalog = load(tmp_path, Settings())
    assert list(rows(catalog, Split.UNLABELED)) == ["unlabeled/1.png", "unlabeled/2.png"]
    ((row, reason),) = unreadable_reasons(open_store(catalog, 8, tmp_path / "cache")).items()
    assert catalog.paths[row] == "unlabeled/2.png"
    assert reason.endswith("2.png cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train/a/1.png"], r"neither a folder 'labeled' nor one folder per class. Expected:\n +labeled/<class name>"),
        (["train/a/1.png", "valid/a/1.png"], "neither a folder 'labeled' nor"),
        (["a/1.png", "b/1.png", "1.png"], r"1\.png is not in a class folder"),
        (["labeled/a/1.png"], "at least two folders"),
        (["labeled/a/1.png", "labeled/b/1.png", "test/c/1.png"], "test/c is a class without labeled images"),
        (["labeled/a/1.png", "labeled/b/1.png", "val/c/1.png"], "val/c is a class without labeled images"),
        (["labeled/a/1.png", "labeled/b/x.txt"], "labeled/b contains no image"),
        (["labeled/a/1.png", "labeled/b/1.png", "labeled/1.png"], r"labeled/1\.png is not in a class folder"),
        (
            ["labeled/a/1.png", "labelled/b/1.png"],  # codespell:ignore labelled
            "both labeled and labelled, which mean the same: keep one",  # codespell:ignore labelled
        ),
        (["a/1.png", "b/1.png", "Test/a/1.png", "test/a/2.png"], "both Test and test, which mean the same"),
        (["labeled/a/1.png", "labeled/b/1.png", "val/a/1.png", "Validation/a/2.png"], "both Validation and val"),
        (["labeled/a/1.png", "labeled/  /1.png"], "labeled/  ' has a blank name"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, save_image: SaveImage, files: list[str], message: str) -> None:
    for file in files:
        if file.endswith(".txt"):
            (tmp_path / file).parent.mkdir(parents=True)
            (tmp_path / file).write_text("")
        else:
            save_image(file)
    with pytest.raises(UserError, match=message):
        load(tmp_path, Settings())


def test_held_out_validation_is_stratified_and_seeded(tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 2), ("c", 1)):
        for number in range(count):
            file = tmp_path / "labeled" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    catalog = load(tmp_path, Settings(val_share=0.3, seed=1))
    val = catalog.label[catalog.split == Split.VAL]
    assert np.bincount(val, minlength=3).tolist() == [3, 0, 0]
    assert np.bincount(catalog.label[catalog.split == Split.LABELED]).tolist() == [7, 2, 1]
    again = load(tmp_path, Settings(val_share=0.3, seed=1))
    assert (again.split == catalog.split).all()
    assert any((load(tmp_path, Settings(val_share=0.3, seed=s)).split != catalog.split).any() for s in range(2, 6))


def test_a_given_validation_split_is_kept(tmp_path: Path, save_image: SaveImage) -> None:
    for path in ("labeled/a/1.png", "labeled/a/2.png", "labeled/b/1.png", "labeled/b/2.png", "val/a/3.png"):
        save_image(path)
    assert list(rows(load(tmp_path, Settings(val_share=0.5)), Split.VAL)) == ["val/a/3.png"]


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_split_folders_are_found_in_any_case(tmp_path: Path) -> None:
    touch(tmp_path, "Labeled/a/1.jpg", "Labeled/b/1.jpg", "UNLABELED/x.jpg", "Validation/a/2.jpg", "TEST/b/2.jpg")
    catalog = load(tmp_path, Settings())
    assert catalog.class_names == ("a", "b")
    assert [list(rows(catalog, split)) for split in (Split.UNLABELED, Split.VAL, Split.TEST)] == [
        ["UNLABELED/x.jpg"],
        ["Validation/a/2.jpg"],
        ["TEST/b/2.jpg"],
    ]


def test_split_folders_in_any_case_are_not_classes(tmp_path: Path) -> None:
    touch(tmp_path, "a/here/1.jpg", "b/there/1.jpg", "Test/a/here/1.jpg", "Test/b/there/1.jpg", "Unlabeled/x.jpg")
    catalog = load(tmp_path, Settings(group_by="folder"))
    assert catalog.class_names == ("a", "b")
    assert np.bincount(catalog.split).tolist() == [2, 1, 0, 2]
    assert "1 of 5 photos have no folder below the folder of their class" in catalog.notes[0]


def test_ignored_folders_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "labeled/a/1.jpg", "labeled/b/1.jpg", "unlabelled/1.jpg", "unlabeled photos/2.jpg", "tset/a/3.jpg")
    touch(tmp_path, "runs/one/settings.yaml", "runs/one/checkpoints/last")
    assert load(tmp_path, Settings()).notes[0] == (
        "folders that are ignored, because their names are not names of splits: tset, unlabeled photos"
    )


@pytest.mark.parametrize("inside", ["", "labeled/"])
@pytest.mark.parametrize("run", ["run", "runs/one"])
def test_a_run_among_the_photos_is_not_a_class(tmp_path: Path, inside: str, run: str) -> None:
    touch(tmp_path, *(f"{inside}{file}" for file in ("a/1.jpg", "b/1.jpg", f"{run}/.lock", f"{run}/log.jsonl")))
    assert load(tmp_path, Settings()).class_names == ("a", "b")


def test_files_of_other_formats_are_counted(tmp_path: Path) -> None:
    touch(tmp_path, "labeled/a/1.jpg", "labeled/a/1.NEF", "labeled/b/1.jpg", "unlabeled/2.nef", "unlabeled/2.xmp")
    notes = load(tmp_path, Settings()).notes
    assert "2 files are skipped, because the suffix is not of a supported image format: .nef 2" in notes
    touch(tmp_path, "labeled/c/3.NEF")
    catalog = load(tmp_path, Settings())
    assert catalog.class_names == ("a", "b")
    reason = "labeled/c contains no image in a supported format, only other files (.nef 1)"
    assert catalog.left_out == (LeftOut("c", "labeled", "class", reason),)


@pytest.mark.parametrize("inside", ["", "labeled/"])
def test_empty_class_folders_are_left_out(tmp_path: Path, inside: str) -> None:
    touch(tmp_path, *(f"{inside}{name}/{number}.jpg" for name in "bd" for number in range(3)), "test/c/1.jpg")
    touch(tmp_path, "test/d/2.jpg", "val/a/3.jpg", "unlabeled/c/4.jpg")
    for name in "ac":
        (tmp_path / inside / name).mkdir()
    catalog = load(tmp_path, Settings())
    assert catalog.class_names == ("b", "d")
    assert rows(catalog, Split.TEST) == {"test/d/2.jpg": 1}
    assert rows(catalog, Split.UNLABELED) == {"unlabeled/c/4.jpg": UNKNOWN}
    assert [(item.path, item.split, item.kind, item.reason) for item in catalog.left_out] == [
        ("a", "labeled", "class", f"{inside}a contains no image"),
        ("c", "labeled", "class", f"{inside}c contains no image"),
        ("val/a/3.jpg", "val", "no_class", "class 'a' has no labeled image"),
        ("test/c/1.jpg", "test", "no_class", "class 'c' has no labeled image"),
    ]


def test_a_class_in_two_folders_needs_one_image(tmp_path: Path) -> None:
    """A file system can contain one name in two Unicode forms."""
    composed, decomposed = (unicodedata.normalize(form, "fée") for form in ("NFC", "NFD"))
    touch(tmp_path, f"labeled/{decomposed}/1.jpg", "labeled/b/1.jpg")
    (tmp_path / "labeled" / composed).mkdir(exist_ok=True)
    catalog = load(tmp_path, Settings())
    assert (catalog.class_names, catalog.left_out) == (("b", "fée"), ())


def test_one_folder_per_class_with_some_labels(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/{number:02d}.JPG" for name in ("a b", "ü") for number in range(30)))
    touch(tmp_path, "unlabeled/x.jpg", "test/ü/t.jpg", ".thumbnails/no.jpg")
    catalog = load(tmp_path, Settings(labels_per_class=10))
    assert catalog.class_names == ("a b", "ü")
    assert np.bincount(catalog.split).tolist() == [16, 41, 4, 1], "two of ten labels per class are for validation"
    hidden = catalog.rows(Split.UNLABELED)
    assert (catalog.label[hidden] == UNKNOWN).all()
    folder_class = [catalog.class_names.index(path.split("/")[0]) for path in catalog.paths[: len(catalog) - 2]]
    assert catalog.truth[: len(catalog) - 2].tolist() == folder_class, "the true classes remain available for metrics"
    assert "4 labeled images are held out" in catalog.notes[0]
    other = load(tmp_path, Settings(labels_per_class=10, seed=1))
    assert (other.split != catalog.split).any()


def test_a_site_is_not_split(tmp_path: Path) -> None:
    """Each site has images of both classes and unlabeled ones."""
    sites = [f"site {number}" for number in range(10)]
    touch(tmp_path, *(f"labeled/{name}/{site}/{n}.jpg" for name in "ab" for site in sites for n in range(3)))
    touch(tmp_path, *(f"unlabeled/{site}/{n}.jpg" for site in sites for n in range(5)))
    catalog = load(tmp_path, Settings(group_by="folder", val_share=0.2))
    site_of = np.array([path.split("/")[-2] for path in catalog.paths])
    validating = set(site_of[catalog.rows(Split.VAL)])
    assert len(validating) == 2
    assert validating.isdisjoint(site_of[catalog.split != Split.VAL])
    assert np.bincount(catalog.label[catalog.rows(Split.VAL)]).tolist() == [6, 6]
    assert "10 unlabeled images of the same groups" in catalog.notes[1]


def test_a_class_of_one_site_keeps_labeled_images(tmp_path: Path) -> None:
    touch(tmp_path, *(f"labeled/a/only/{n}.jpg" for n in range(9)))
    touch(tmp_path, *(f"labeled/b/{site}/{n}.jpg" for site in "xyz" for n in range(3)))
    catalog = load(tmp_path, Settings(group_by="folder", val_share=0.5))
    assert set(catalog.label[catalog.rows(Split.LABELED)]) == {0, 1}
    assert set(catalog.label[catalog.rows(Split.VAL)]) == {1}


def shoot(file: Path, time: str, camera: str = "Trap 1") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0110] = camera
    exif.get_ifd(0x8769)[0x9003] = time
    Image.new("RGB", (8, 8)).save(file, exif=exif)


def test_a_burst_is_not_split(tmp_path: Path) -> None:
    for name in "ab":
        for burst in range(5):
            for second in (0, 2, 58):
                time = f"2024:05:0{1 + burst} 10:00:{second:02d}"
                shoot(tmp_path / "labeled" / name / f"{burst}-{second}.jpg", time, f"Trap {name}")
    catalog = load(tmp_path, Settings(group_by="exif-burst", val_share=0.2))
    held_out = [Path(catalog.paths[row]).name for row in catalog.rows(Split.VAL)]
    assert len(held_out) == 6, "one burst of three of each class"
    assert len({name.split("-")[0] for name in held_out[:3]}) == 1
    several = load(tmp_path, Settings(group_by="exif-burst", burst_seconds=10, val_share=0.2))
    assert len(several.rows(Split.VAL)) in (5, 6), "the third photo of each burst is a group now"
    with pytest.raises(UserError, match="folder or exif-burst"):
        load(tmp_path, Settings(group_by="site"))


def test_photos_without_a_time_are_counted(tmp_path: Path) -> None:
    for number in range(6):
        shoot(tmp_path / "labeled" / "a" / f"{number}.jpg", f"2024:05:0{1 + number} 10:00:00")
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "labeled" / "a" / f"{number}.png")
        touch(tmp_path, f"labeled/b/{number}.jpg")
    notes = load(tmp_path, Settings(group_by="exif-burst")).notes
    assert notes[0] == "--group-by: 12 of 18 photos have no time in their EXIF, so each of them forms a group"


@pytest.mark.parametrize(
    ("settings", "held_out"),
    [
        (Settings(), ["a/site1/5", "a/site3/3", "b/site2/2"]),
        (Settings(seed=3), ["a/site0/0", "a/site3/11", "b/site2/6"]),
        (Settings(seed=3, labels_per_class=6), ["a/site0/8", "b/site0/0"]),
        (
            Settings(group_by="folder", val_share=0.4),
            ["a/site2/10", "a/site2/2", "a/site2/6", "b/site2/2", "b/site2/6", "c/site2/2"],
        ),
    ],
)
def test_the_split_without_copies_is_fixed(tmp_path: Path, settings: Settings, held_out: list[str]) -> None:
    """A resumed run needs the same validation images."""
    for name, count in (("a", 12), ("b", 7), ("c", 3)):
        for number in range(count):
            file = tmp_path / "labeled" / name / f"site{number % 4}" / f"{number}.jpg"
            touch(tmp_path, str(file.relative_to(tmp_path)))
            file.write_text(f"{name}{number}")
    found = rows(load(tmp_path, settings), Split.VAL)
    assert list(found) == [f"labeled/{path}.jpg" for path in held_out]


def test_exact_copies_are_not_split(tmp_path: Path, save_image: SaveImage) -> None:
    for name in "ab":
        for number in range(10):
            file = save_image(f"labeled/{name}/{number}.png")
            shutil.copy(file, file.with_name(f"{number} (1).png"))
    for seed in range(5):
        catalog = load(tmp_path, Settings(seed=seed))
        validating = [catalog.paths[row] for row in catalog.rows(Split.VAL)]
        assert len(validating) == 8
        assert len({path.removesuffix(".png").removesuffix(" (1)") for path in validating}) == 4


def test_unlabeled_copies_of_held_out_photos_are_left_out(tmp_path: Path, save_image: SaveImage) -> None:
    """Labeled photos are often copies of unlabeled ones."""
    unlabeled = [save_image(f"unlabeled/{number}.png") for number in range(30)]
    for number in range(20):
        folder = tmp_path / "labeled" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(unlabeled[number], folder)
    every_photo = load(tmp_path, Settings())
    selection = select_images(every_photo, open_store(every_photo, 8, tmp_path / "cache"))
    names = {split: {Path(path).name for path in rows(selection.catalog, split)} for split in Split}
    assert len(names[Split.VAL]) == 4
    assert names[Split.VAL].isdisjoint(names[Split.LABELED] | names[Split.UNLABELED])
    assert len(names[Split.UNLABELED]) == 10
    parts = describe_left_out(selection.left_out).split(", ")
    assert set(parts) == {"4 unlabeled images (also in val)", "16 unlabeled images (also in labeled)"}
    for copied in unlabeled:
        copied.unlink()
    assert names[Split.VAL] == {Path(path).name for path in rows(load(tmp_path, Settings()), Split.VAL)}


def test_copies_merge_their_groups(tmp_path: Path, save_image: SaveImage) -> None:
    for name in "ab":
        for site in range(6):
            for number in range(2):
                save_image(f"labeled/{name}/{name}{site}/{number}.png")
    shutil.copy(tmp_path / "labeled/a/a0/0.png", tmp_path / "labeled/a/a1/copy.png")
    for seed in range(20):
        catalog = load(tmp_path, Settings(group_by="folder", seed=seed, val_share=0.4))
        sites = {path.split("/")[2] for path in rows(catalog, Split.VAL)}
        assert sites
        assert ("a0" in sites) == ("a1" in sites)


def test_a_missing_validation_split_is_noted(tmp_path: Path) -> None:
    touch(tmp_path, *(f"labeled/{name}/site/{number}.jpg" for name in "ab" for number in range(4)))
    consequence = "so confidences will not be calibrated"
    few = f"no validation images: no class has 5 labeled images (--data.val_share), {consequence}"
    assert load(tmp_path, Settings()).notes == (few,)
    touch(tmp_path, *(f"labeled/{name}/site/{number}.jpg" for name in "ab" for number in range(10)))
    large = f"no validation images: no group of images is small enough for --data.val_share, {consequence}"
    assert load(tmp_path, Settings(group_by="folder")).notes == (large,)
    assert load(tmp_path, Settings(val_share=0.0)).notes == ()
    touch(tmp_path, "val/a/1.jpg")
    assert load(tmp_path, Settings()).notes == ()
