from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semifine.errors import UserError
from semifine.fields import build, convert, describe_type, setting


@dataclass(frozen=True)
class Example:
    count: int = setting(3, "how many", low=1, high=10)
    rate: float = setting(0.5, "how fast")
    mode: Literal["in", "inout"] = setting("in", "which")
    flag: bool = setting(False, "whether")
    file: str | None = setting(None, "where")
    span: tuple[float, float] = setting((0.0, 1.0), "from, to")


def test_text_and_typed_values_give_the_same_settings() -> None:
    text = {"count": "4", "rate": "1e-3", "mode": "inout", "flag": "yes", "file": "x", "span": "0.2,0.8"}
    typed = {"count": 4, "rate": 0.001, "mode": "inout", "flag": True, "file": "x", "span": [0.2, 0.8]}
    assert build(Example, text) == build(Example, typed) == Example(4, 0.001, "inout", True, "x", (0.2, 0.8))


def test_none() -> None:
    assert build(Example, {"file": "none"}).file is None
    assert build(Example, {"file": None}).file is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"cuont": 1}, "Unknown setting 'x.cuont'. Did you mean 'x.count'?"),
        ({"count": "many"}, "x.count must be a whole number, not 'many'."),
        ({"count": 2.5}, "x.count must be a whole number, not '2.5'."),
        ({"count": 0}, "x.count must be at least 1, not 0."),
        ({"count": 11}, "x.count must be at most 10, not 11."),
        ({"count": True}, "x.count must be a whole number"),
        ({"rate": "nan"}, "x.rate must be a number, not 'nan'."),
        ({"mode": "out"}, "x.mode must be one of in, inout, not 'out'."),
        ({"flag": "perhaps"}, "x.flag must be true or false, not 'perhaps'."),
        ({"span": "0.3"}, "x.span must be 2 values"),
        ({"file": ["a"]}, "x.file must be text"),
        ({"file": "a\0b"}, "x.file must not contain a null character, not 'a\\x00b'."),
    ],
)
def test_errors_are_one_sentence_with_the_key(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Example, values, prefix="x.")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@given(st.integers(-(10**12), 10**12))
def test_integers_round_trip_through_text(number: int) -> None:
    assert convert("key", str(number), int) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_round_trip_through_text(number: float) -> None:
    assert convert("key", repr(number), float) == number


@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats() | st.integers(), st.lists))
def test_any_value_converts_or_raises_a_user_error(value: object) -> None:
    for kind in (int, float, bool, str, Literal["a", "b"], int | None, tuple[float, float], tuple[str, ...]):
        try:
            convert("key", value, kind)
        except UserError as error:
            assert "key" in str(error)  # noqa: PT017 - anything but a UserError must fail the test


def test_describe_type() -> None:
    assert describe_type(Literal["in", "inout"]) == "in|inout"
    assert describe_type(tuple[float, float]) == "float,float"
    assert describe_type(tuple[str, ...]) == "text,..."
    assert describe_type(int | None) == "int"


@pytest.mark.parametrize("value", ["a,b", ["a", "b"], ("a", "b"), "a, b"])
def test_lists_of_paths_are_absolute(value: object) -> None:
    @dataclass(frozen=True)
    class Runs:
        runs: tuple[str, ...] = setting((), "run folders", is_path=True)

    assert build(Runs, {"runs": value}) == Runs((os.path.abspath("a"), os.path.abspath("b")))
    assert build(Runs, {"runs": []}) == build(Runs, {"runs": ""}) == Runs(())
