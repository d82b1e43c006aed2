"""The published data sets: real lists if they are available, and small copies with images."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import UNKNOWN, Split
from semifine.data.sources import load_catalog, semi_aves, semi_cub, semi_fungi, semi_inat
from semifine.data.sources.lists import Listed, Settings, read_list
from semifine.errors import UserError

from ..conftest import SaveImage
from .test_lists import write

L, U, V, T = Split.LABELED, Split.UNLABELED, Split.VAL, Split.TEST
READ = {"semi_aves": semi_aves.read, "semi_fungi": semi_fungi.read, "semi_cub": semi_cub.read}


def sizes(listed: Listed) -> list[tuple[Split, int]]:
    return [(part.split, len(part.listed.paths)) for part in listed.parts]


def per_class(listed: Listed, position: int) -> tuple[int, int]:
    counts = Counter(listed.parts[position].truth.tolist())
    return min(counts.values()), max(counts.values())


def test_semi_aves(published_lists: Path) -> None:
    root = published_lists / "semi_aves"
    listed = semi_aves.read(root, Settings(unlabeled="inout"))
    assert sizes(listed) == [(L, 5959), (T, 8000), (U, 26640), (U, 122208)]
    assert [per_class(listed, position) for position in range(3)] == [(15, 53), (40, 40), (16, 229)]
    assert sizes(semi_aves.read(root, Settings(labels="l_train"))) == [(L, 3959), (V, 2000), (T, 8000), (U, 26640)]
    assert (listed.parts[2].truth < 200).all()
    assert len(np.unique(listed.parts[3].truth)) == 800
    assert listed.parts[3].truth.min() == 200
    assert listed.class_names[0] == "Charadrius semipalmatus"
    assert listed.class_groups is not None
    assert listed.class_groups[0] == "Charadrius"
    # the oracle file is grouped by class, so its lines have another order
    assert listed.parts[2].truth[listed.parts[2].listed.paths.index("u_train_in/8636.jpg")] == 0


def test_semi_fungi(published_lists: Path) -> None:
    root = published_lists / "semi_fungi"
    listed = semi_fungi.read(root, Settings(unlabeled="inout"))
    assert sizes(listed) == [(L, 4141), (T, 4000), (U, 13166), (U, 64871)]
    assert [per_class(listed, position) for position in range(3)] == [(6, 78), (20, 20), (16, 276)]
    assert sizes(semi_fungi.read(root, Settings(labels="l_train"))) == [(L, 4141), (T, 4000), (U, 13166)]
    assert len(np.unique(listed.parts[3].truth)) == 1194
    with_spaces = [sum(" " in path for path in part.listed.paths) for part in listed.parts]
    assert with_spaces == [121, 120, 372, 1355]
    folders = {path.rpartition("/")[0] for part in listed.parts for path in part.listed.paths}
    assert sum(" " in folder for folder in folders) == 42
    assert sum(folder.endswith(" ") for folder in folders) == 12
    assert "images/21142_Tricholoma_saponaceum var. saponaceum " in folders
    assert all(path.endswith(".JPG") for part in listed.parts for path in part.listed.paths)
    assert listed.class_names[23] == "Tricholoma saponaceum var. saponaceum"
    assert listed.class_groups is not None
    assert listed.class_groups[23] == "Tricholoma"


def test_semi_cub(cub_lists: Path) -> None:
    listed = semi_cub.read(cub_lists, Settings(unlabeled="inout"))
    assert sizes(listed) == [(L, 1000), (T, 1000), (U, 3885), (U, 5903)]
    assert [per_class(listed, position) for position in range(3)] == [(10, 10), (10, 10), (24, 40)]
    with_val = semi_cub.read(cub_lists, Settings(labels="l_train"))
    assert sizes(with_val) == [(L, 500), (V, 500), (T, 1000), (U, 3885)]
    truth = listed.parts[2].truth
    np.testing.assert_array_equal(truth, read_list(cub_lists / "splits" / "u_train_in.txt").labels)
    assert sorted(set(listed.parts[3].truth.tolist())) == list(range(100, 200))
    assert sum(len(part.listed.paths) for part in listed.parts) == 11788
    assert listed.class_names[0] == "Black footed Albatross"
    assert listed.class_groups is not None
    assert listed.class_groups[0] == "Albatross"


@pytest.mark.parametrize(("name", "size"), [("semi_aves", 32599), ("semi_fungi", 17307)])
def test_oracle_set_sizes(name: str, size: int, published_lists: Path, tmp_path: Path) -> None:
    """The oracle trains on all labeled images and all unlabeled images of known classes."""
    settings = Settings(unlabeled="inout", images=str(tmp_path))
    for part in READ[name](published_lists / name, settings).parts:  # a catalog asks for one image of each list
        image = tmp_path / part.listed.paths[0]
        image.parent.mkdir(parents=True, exist_ok=True)
        image.touch()
    catalog = load_catalog(f"{name}:{published_lists / name}", settings)
    revealed = catalog.with_truth_revealed()
    assert len(revealed.rows(L)) == size
    assert (revealed.truth[revealed.rows(U)] >= catalog.num_classes).all()
    assert len(revealed.rows(T)) == len(catalog.rows(T))


@pytest.mark.parametrize("name", READ)
def test_unlabeled_images_carry_no_label_and_splits_do_not_overlap(name: str, request: pytest.FixtureRequest) -> None:
    root = (
        request.getfixturevalue("cub_lists")
        if name == "semi_cub"
        else request.getfixturevalue("published_lists") / name
    )
    for labels in ("l_train_val", "l_train"):
        listed = READ[name](root, Settings(unlabeled="inout", labels=labels))  # type: ignore[arg-type]
        for part in listed.parts:
            assert (part.label == UNKNOWN).all() == (part.split == U)
            assert len(set(part.listed.paths)) == len(part.listed.paths)
        for one, other in combinations(listed.parts, 2):
            assert set(one.listed.paths).isdisjoint(other.listed.paths)


@pytest.mark.parametrize("name", ["semi_aves", "semi_fungi"])
@pytest.mark.parametrize("side", ["in", "out"])
def test_lists_and_oracles_contain_the_same_images(published_lists: Path, name: str, side: str) -> None:
    listed = read_list(published_lists / name / f"u_train_{side}.txt")
    oracle = read_list(published_lists / name / f"u_train_{side}_oracle.txt")
    assert set(listed.paths) == set(oracle.paths)
    assert listed.paths != oracle.paths
    assert (listed.labels == -1).all()


def test_the_joint_list_is_the_union_of_labeled_and_val(published_lists: Path, cub_lists: Path) -> None:
    for folder in (published_lists / "semi_aves", cub_lists / "splits"):
        parts = [read_list(folder / f"{name}.txt") for name in ("l_train", "val")]
        assert {*parts[0].paths, *parts[1].paths} == set(read_list(folder / "l_train_val.txt").paths)


def small_fungi(root: Path, save_image: SaveImage) -> None:
    lists = {
        "l_train_val": ["images/1_A_a var. x /1 1.JPG 0", "images/2_B_b/1.JPG 1"],
        "u_train_in": ["images/1_A_a var. x /2.JPG -1", "images/2_B_b/2.JPG -1"],
        "test": ["images/2_B_b/3.JPG 1"],
    }
    oracle = ["images/2_B_b/2.JPG 1", "images/1_A_a var. x /2.JPG 0"]
    for name, lines in (lists | {"u_train_in_oracle": oracle}).items():
        write(root / f"{name}.txt", *lines)
    for line in {line for lines in lists.values() for line in lines}:
        save_image(root / line.rpartition(" ")[0])


def test_small_copy_with_images(tmp_path: Path, save_image: SaveImage) -> None:
    small_fungi(tmp_path, save_image)
    write(tmp_path / "fungi_species_names.txt", "0 1_A_a var. x ", "1 2_B_b")
    catalog = load_catalog(f"semi_fungi:{tmp_path}")  # does not need u_train_out
    assert catalog.name == "semi_fungi"
    assert catalog.class_names == ("A a var. x", "B b")
    assert catalog.class_groups == ("A", "B")
    assert catalog.split.tolist() == [L, L, U, U, T]
    assert catalog.label.tolist() == [0, 1, UNKNOWN, UNKNOWN, 1]
    assert catalog.truth.tolist() == [0, 1, 0, 1, 1]
    assert catalog.paths[0] == "images/1_A_a var. x /1 1.JPG"
    assert all(catalog.reader.read(row).shape == (10, 12, 3) for row in range(5))


def test_replacing_the_oracle_changes_nothing_but_the_truth(tmp_path: Path, save_image: SaveImage) -> None:
    small_fungi(tmp_path, save_image)
    before = load_catalog(f"semi_fungi:{tmp_path}")
    write(tmp_path / "u_train_in_oracle.txt", "images/2_B_b/2.JPG 0", "images/1_A_a var. x /2.JPG 1")
    poisoned = load_catalog(f"semi_fungi:{tmp_path}")
    (tmp_path / "u_train_in_oracle.txt").unlink()
    without = load_catalog(f"semi_fungi:{tmp_path}")
    for other, truth in ((poisoned, [1, 0]), (without, [UNKNOWN, UNKNOWN])):
        assert (other.label == before.label).all()
        assert (other.split == before.split).all()
        assert list(other.paths) == list(before.paths)
        assert other.truth[other.split == U].tolist() == truth


def test_missing_out_list_is_named(tmp_path: Path, save_image: SaveImage) -> None:
    small_fungi(tmp_path, save_image)
    with pytest.raises(UserError, match=r"u_train_out\.txt is missing"):
        load_catalog(f"semi_fungi:{tmp_path}", Settings(unlabeled="inout"))


def small_aves(root: Path) -> list[str]:
    lists = {
        "l_train_val": ["trainval_images/0/0.jpg 0", "trainval_images/1/0.jpg 1"],
        "u_train_in": ["u_train_in/0.jpg -1"],
        "u_train_out": ["u_train_out/0.jpg -1"],
        "test": ["test/0.jpg 0"],
    }
    for name, lines in lists.items():
        write(root / f"{name}.txt", *lines)
    return [line.rpartition(" ")[0] for lines in lists.values() for line in lines]


def test_nested_archives_are_found_list_by_list(tmp_path: Path, save_image: SaveImage) -> None:
    for path in small_aves(tmp_path / "semi_aves"):
        nested = path if path.startswith("test") else f"{path.partition('/')[0]}/{path}"
        save_image(nested)
    catalog = load_catalog(f"semi_aves:{tmp_path}", Settings(unlabeled="inout"))
    assert all(catalog.reader.read(row).shape == (10, 12, 3) for row in range(5))
    assert catalog.paths[2] == "u_train_in/0.jpg"  # the published path, independent of the location of the file


def test_images_may_be_in_another_folder(tmp_path: Path, save_image: SaveImage) -> None:
    for path in small_aves(tmp_path / "lists"):
        save_image(f"photos/{path}")
    with pytest.raises(UserError, match=r"data\.images"):
        load_catalog(f"semi_aves:{tmp_path / 'lists'}")
    catalog = load_catalog(f"semi_aves:{tmp_path / 'lists'}", Settings(images=str(tmp_path / "photos")))
    assert catalog.reader.read(3).shape == (10, 12, 3)


def test_small_cub_hides_its_labels(tmp_path: Path, save_image: SaveImage) -> None:
    lists = {
        "l_train_val": ["001.Black_footed_Albatross/1.jpg 0", "003.Blue_Jay/1.jpg 1"],
        "u_train_in": ["003.Blue_Jay/2.jpg 1"],
        "u_train_out": ["002.Laysan_Albatross/1.jpg -1", "004.Groove_billed_Ani/1.jpg -1"],
        "test": ["003.Blue_Jay/3.jpg 1"],
    }
    for name, lines in lists.items():
        write(tmp_path / "splits" / f"{name}.txt", *lines)
        for line in lines:
            save_image(tmp_path / "images" / line.rpartition(" ")[0])
    catalog = load_catalog(f"semi_cub:{tmp_path}", Settings(unlabeled="inout"))
    assert catalog.class_groups == ("Albatross", "Jay")
    assert catalog.label.tolist() == [0, 1, UNKNOWN, UNKNOWN, UNKNOWN, 1]
    assert catalog.truth.tolist() == [0, 1, 1, 2, 3, 1]
    assert catalog.reader.read(2).shape == (10, 12, 3)


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "message"),
    [
        ("003.Blue_Jay", "Blue_Jay", r"u_train_in\.txt: Blue_Jay/2\.jpg is not in the folder of a class"),
        ("003.Blue_Jay", "000.Blue_Jay", r"u_train_in\.txt: 000\.Blue_Jay/2\.jpg is not in the folder of a class"),
        ("003.Blue_Jay", f"{10**30}.Jay", r"u_train_in\.txt: 10+\.Jay/2\.jpg is not in the folder of a class"),
        ("Blue_Jay", "003.Blue_Jay", r"l_train_val\.txt: Blue_Jay/1\.jpg is not in the folder of a class"),
        ("003._", "003.Blue_Jay", r"l_train_val\.txt: class 1 has no name"),
        ("003.Albatross", "003.Albatross", r"the classes 0 and 1 have the same name 'Albatross'"),
    ],
)
def test_cub_folders_without_a_class_are_refused(labeled: str, unlabeled: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "l_train_val.txt", "001.Albatross/1.jpg 0", f"{labeled}/1.jpg 1")
    write(tmp_path / "u_train_in.txt", f"{unlabeled}/2.jpg 1")
    write(tmp_path / "test.txt", "001.Albatross/3.jpg 0")
    with pytest.raises(UserError, match=message):
        semi_cub.read(tmp_path, Settings())


def small_inat(root: Path, save_image: SaveImage) -> None:
    lists = {
        "l_train": ["l_train/0/0.jpg 0", "l_train/1/0.jpg 1"],
        "val": ["val/0/0.jpg 0"],
        "test": ["test/9af3.jpg 1"],
    }
    lists["l_train_val"] = lists["l_train"] + lists["val"]
    for name, lines in lists.items():
        write(root / f"{name}.txt", *lines)
        for line in lines:
            save_image(root / line.rpartition(" ")[0])


def test_semi_inat_scans_its_unlabeled_images(tmp_path: Path, save_image: SaveImage) -> None:
    small_inat(tmp_path, save_image)
    with pytest.raises(UserError, match="unpack u_train there"):
        load_catalog(f"semi_inat:{tmp_path}")
    for number in range(3):
        save_image(f"u_train/{number}.jpg")
    write(
        tmp_path / "all_taxa_info.json",
        '{"0": {"genus": "Parus", "species": "Parus major"}, "1": {"genus": "Pica", "species": "Pica pica"}, "2": {}}',
    )
    catalog = load_catalog(f"semi_inat:{tmp_path}", semi_inat.Settings(labels="l_train"))
    assert catalog.split.tolist() == [L, L, U, U, U, V, T]
    assert (catalog.truth[catalog.split == U] == UNKNOWN).all()
    assert catalog.class_names == ("Parus major", "Pica pica")
    assert catalog.class_groups == ("Parus", "Pica")
    assert all(catalog.reader.read(row).shape == (10, 12, 3) for row in range(7))
    for taxa in ("{}", '{"0": {"genus": 1, "species": 2}, "1": {"genus": "Pica", "species": "p"}}', "[" * 100_000):
        write(tmp_path / "all_taxa_info.json", taxa)
        with pytest.raises(UserError, match="does not name species and genus"):
            load_catalog(f"semi_inat:{tmp_path}")
    taxon = '{"genus": "Pica", "species": "Pica pica"}'
    write(tmp_path / "all_taxa_info.json", f'{{"0": {taxon}, "1": {taxon}}}')
    with pytest.raises(UserError, match="the same name 'Pica pica'"):
        load_catalog(f"semi_inat:{tmp_path}")


def test_semi_inat_has_no_in_setting() -> None:
    with pytest.raises(UserError, match="inout"):
        semi_inat.Settings(unlabeled="in")
