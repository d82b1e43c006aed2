from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.data.sources import lists
from semifine.data.sources.lists import ListFile, Settings
from semifine.errors import UserError

from ..conftest import SaveImage


def write(file: Path, *lines: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(line + "\n" for line in lines).encode())
    return file


def test_paths_keep_their_spaces(tmp_path: Path) -> None:
    lines = ["images/1_A var. a /T B2017.JPG 7", " lead.jpg -1", "a\u2028b\x0b.jpg 0", "ends in space  3"]
    listed = lists.read_list(write(tmp_path / "x.txt", *lines))
    assert listed.paths == ["images/1_A var. a /T B2017.JPG", " lead.jpg", "a\u2028b\x0b.jpg", "ends in space "]
    assert listed.labels.tolist() == [7, -1, 0, 3]


def test_last_line_feed_is_optional_and_windows_lines_work(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"a.jpg 0\r\nb c.jpg 1")
    assert lists.read_list(file).paths == ["a.jpg", "b c.jpg"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a.jpg 0", "b.jpg"], r"x\.txt, line 2: expected 'path label', found 'b\.jpg'"),
        (["a.jpg 0", "", "b.jpg 1"], "line 2: expected 'path label'"),
        (["a.jpg one"], "line 1: the label 'one' is not a whole number"),
        (["a.jpg 0", "b\0.jpg 1"], r"line 2: the path 'b\\x00\.jpg' contains a null character"),
        ([" 3"], "line 1: expected 'path label'"),
        ([], "is empty"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, lines: list[str], message: str) -> None:
    file = write(tmp_path / "x.txt", *lines)
    with pytest.raises(UserError, match=message):
        lists.read_list(file)


def test_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.txt is missing"):
        lists.read_list(tmp_path / "x.txt")


@pytest.mark.parametrize("where", [".", "splits", "semi_aves"])
def test_lists_are_found(tmp_path: Path, where: str) -> None:
    write(tmp_path / where / "l_train.txt", "a 0")
    assert lists.find_lists(tmp_path, "semi_aves") == tmp_path / where


def test_missing_lists_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No list file .*splits.*put the published lists of semi_aves there"):
        lists.find_lists(tmp_path, "semi_aves")


def listed(name: str, paths: list[str], labels: list[int]) -> ListFile:
    return ListFile(Path(name), paths, np.array(labels))


def test_oracle_is_joined_on_the_path() -> None:
    joined = lists.join_oracle(listed("u.txt", ["a", "b", "c"], [-1] * 3), listed("o.txt", ["c", "a", "b"], [2, 0, 1]))
    assert joined.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("oracle", "message"),
    [(["a"], r"o\.txt does not contain b"), (["a", "b", "c"], r"o\.txt contains c, .*not in u\.txt")],
)
def test_oracle_of_other_images_is_refused(oracle: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lists.join_oracle(listed("u.txt", ["a", "b"], [-1, -1]), listed("o.txt", oracle, [0] * len(oracle)))


def test_oracle_classes_must_be_on_the_right_side(tmp_path: Path) -> None:
    write(tmp_path / "u_train_in.txt", "a -1")
    write(tmp_path / "u_train_in_oracle.txt", "a 5")
    with pytest.raises(UserError, match="true class 5 was found where 0 to 4 was expected"):
        lists.read_unlabeled_with_oracle(tmp_path, Settings(), 5)
    write(tmp_path / "u_train_in_oracle.txt", "a 4")
    write(tmp_path / "u_train_out.txt", "b -1")
    write(tmp_path / "u_train_out_oracle.txt", "b 4")
    with pytest.raises(UserError, match="true class 4 was found where 5 or more was expected"):
        lists.read_unlabeled_with_oracle(tmp_path, Settings(unlabeled="inout"), 5)


def test_labels_must_have_no_gap_and_test_no_other_class(tmp_path: Path) -> None:
    write(tmp_path / "l_train_val.txt", "a 0", "b 2")
    with pytest.raises(UserError, match="without gaps"):
        lists.read_labeled(tmp_path, Settings())
    write(tmp_path / "l_train_val.txt", "a 0", "b 1")
    write(tmp_path / "test.txt", "c 1", "d 2")
    with pytest.raises(UserError, match=r"test\.txt, line 2: label 2 has no labeled image"):
        lists.read_labeled(tmp_path, Settings())


def test_species_names(tmp_path: Path) -> None:
    file = write(tmp_path / "names.txt", "1 Corvus_corax", "0 Parus_major var. x ")
    assert lists.species_names([tmp_path / "no", file], 2) == ("Parus major var. x", "Corvus corax")
    assert lists.species_names([tmp_path / "no"], 2) == ("class 0", "class 1")
    assert lists.genus_names(["Parus major", "Corvus corax"]) == ("Parus", "Corvus")
    assert lists.genus_names(["class 0", "class 1"]) is None
    with pytest.raises(UserError, match="classes 0 to 2"):
        lists.species_names([file], 3)
    with pytest.raises(UserError, match=r"names\.txt, line 1"):
        lists.species_names([write(file, "Corvus_corax")], 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0 Parus_major", "1 "], r"names\.txt: class 1 has no name"),
        (["0 Parus_major", "1 _"], r"names\.txt: class 1 has no name"),
        (["0 Parus_major", "1 Parus major"], r"names\.txt: the classes 0 and 1 have the same name 'Parus major'"),
        (["0 Parus_major", f"{'9' * 5000} Corvus"], r"names\.txt, line 2: the label '9+' is not a whole number"),
    ],
)
def test_blank_and_repeated_names_are_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        lists.species_names([write(tmp_path / "names.txt", *lines)], 2)


@pytest.mark.parametrize("where", ["", "images/", "u_train_in/"])
def test_images_are_found_in_every_layout(tmp_path: Path, save_image: SaveImage, where: str) -> None:
    save_image(f"{where}u_train_in/0.jpg")
    paths = [f"u_train_in/{number}.jpg" for number in range(20)]  # the others may be missing
    assert lists.image_folder(tmp_path, listed("u.txt", paths, [-1] * 20)) == tmp_path / where


def test_missing_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No image of u\.txt was found, for example x/0\.jpg in .*data\.images"):
        lists.image_folder(tmp_path, listed("u.txt", ["x/0.jpg"], [-1]))


def test_finding_images_checks_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Path, "is_file", lambda self: bool(asked.append(self)))
    with pytest.raises(UserError):
        lists.image_folder(tmp_path, listed("u.txt", [f"{i}.jpg" for i in range(100_000)], [-1] * 100_000))
    assert len(asked) < 50
