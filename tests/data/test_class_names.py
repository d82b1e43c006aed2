"""One class has one name, however it is written."""

from __future__ import annotations

import unicodedata

import pytest

from semifine.data.text_table import class_name, names_that_differ_in_case


@pytest.mark.parametrize("written", [unicodedata.normalize(form, "fée") for form in ("NFC", "NFD")])
def test_accents_and_blanks_make_no_other_class(written: str) -> None:
    assert class_name(f" {written}\t") == "f\u00e9e"


def test_classes_that_differ_in_case_are_named() -> None:
    assert names_that_differ_in_case(["Wren", "robin", "Robin", "wrens"]) == [
        "learned as classes of their own, though only capital letters differ: 'robin' and 'Robin'"
    ]
    assert names_that_differ_in_case(["wren", "robin"]) == []
    (note,) = names_that_differ_in_case([*"abcd", *"ABCD"])
    assert note.endswith("'b' and 'B', 'c' and 'C', …")
