"""The lowest taxon with a sufficient probability is predicted."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from semifine.errors import UserError
from semifine.inference.taxonomy import Taxon, read_taxonomy

Form = Literal["NFC", "NFD"]
CLASSES = ("Parus major", "Parus minor", "Poecile palustris", "Turdus merula")
TABLE = """class,genus,family
Parus major,Parus,Paridae
Parus minor,Parus,Paridae
Poecile palustris,Poecile,Paridae
Turdus merula,Turdus,Turdidae
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "taxa.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_uncertain_species_get_a_higher_rank(tmp_path: Path) -> None:
    taxonomy = read_taxonomy(write(tmp_path, TABLE), CLASSES)
    probs = np.array([[0.95, 0.03, 0.01, 0.01], [0.5, 0.45, 0.03, 0.02], [0.4, 0.3, 0.25, 0.05], [0.4, 0.1, 0.1, 0.4]])
    predicted = taxonomy.predict(probs, 0.9)
    assert predicted[0] == Taxon("Parus major", "class", pytest.approx(0.95))
    assert predicted[1] == Taxon("Parus", "genus", pytest.approx(0.95))
    assert predicted[2] == Taxon("Paridae", "family", pytest.approx(0.95))
    assert predicted[3] is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("class,genus\nParus major,Parus\n", "Parus minor"),
        ("class\nParus major\n", "higher rank"),
        ("", "empty"),
        ("class,class\nParus major,Aves\n", "two columns with the same name"),
        (TABLE + "Corvus corax,Corvus\n", "Corvus corax"),
    ],
)
def test_errors_name_the_mistake(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        read_taxonomy(write(tmp_path, text), CLASSES)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_separators_of_spreadsheets_are_accepted(tmp_path: Path, mark: str) -> None:
    for text in (TABLE, f"\ufeff{TABLE}", f"\n{TABLE}"):
        taxonomy = read_taxonomy(write(tmp_path, text.replace(",", mark)), CLASSES)
        assert [level.rank for level in taxonomy.levels] == ["class", "genus", "family"]
        assert taxonomy.levels[1].taxa == ("Parus", "Poecile", "Turdus")


@pytest.mark.parametrize("of_file", ["NFC", "NFD"])
@pytest.mark.parametrize("of_model", ["NFC", "NFD"])
def test_composed_and_decomposed_accents_match(tmp_path: Path, of_file: Form, of_model: Form) -> None:
    table = unicodedata.normalize(of_file, "species,genus\nMésange bleue,Mésange\nMerle,Merle\n")
    names = [unicodedata.normalize(of_model, "Mésange bleue"), "Merle"]
    taxonomy = read_taxonomy(write(tmp_path, table), names)
    assert taxonomy.levels[1].taxa == (unicodedata.normalize("NFC", "Mésange"), "Merle")


def test_contradicting_lines_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "taxa.csv"
    file.write_text("species,genus\na,A\nb,B\na,A\n")
    assert len(read_taxonomy(file, ["a", "b"]).levels) == 2
    file.write_text("species,genus\na,A\nb,B\na,B\n")
    with pytest.raises(UserError, match="two different lines for 'a'"):
        read_taxonomy(file, ["a", "b"])


def test_an_endless_taxonomy_is_refused() -> None:
    with pytest.raises(UserError, match=r"The taxonomy /dev/zero is too large"):
        read_taxonomy(Path("/dev/zero"), ("a", "b"))
