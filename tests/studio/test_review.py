"""Agreement statistics against published examples and slow references."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semifine.data.label_log import LABEL, NONE_OF_THESE, UNDO, UNSURE, Event
from semifine.studio.review import cohen_kappa, krippendorff_alpha, measure_agreement, ratings_of


def slow_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """The coincidence matrix of Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", section D."""
    paired = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in paired for value in unit})
    matrix = dict.fromkeys(product(values, values), 0.0)
    for unit in paired:
        for first, second in permutations(unit, 2):
            matrix[first, second] += 1 / (len(unit) - 1)
    margin = {value: sum(matrix[value, other] for other in values) for value in values}
    total = sum(margin.values())
    observed = sum(number for (first, second), number in matrix.items() if first != second)
    expected = sum(margin[a] * margin[b] for a, b in product(values, values) if a != b) / max(total - 1, 1)
    return None if not expected else 1 - observed / expected


def slow_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Chance agreement as the share of equal categories among all combinations of both people's answers."""
    if not pairs:
        return None
    observed = sum(first == second for first, second in pairs) / len(pairs)
    chance = sum(first == second for (first, _), (_, second) in product(pairs, pairs)) / len(pairs) ** 2
    return None if chance == 1 else (observed - chance) / (1 - chance)


# The reliability data of Krippendorff (2011), section C: four observers, twelve units; a dot is a missing value.
OBSERVERS = (
    "1 2 3 3 2 1 4 1 2 . . .".split(),
    "1 2 3 3 2 2 4 1 2 5 . 3".split(),
    ". 3 3 3 2 3 4 2 2 5 1 .".split(),
    "1 2 3 3 2 4 4 1 2 5 1 .".split(),
)


def test_alpha_of_krippendorffs_example() -> None:
    units = [[value for value in unit if value != "."] for unit in zip(*OBSERVERS, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=0.0005)
    assert slow_alpha(units) == pytest.approx(0.743, abs=0.0005)


def test_kappa_of_a_textbook_example() -> None:
    """Two readers of 50 proposals agree on 20 times yes and 15 times no; chance agreement is 0.5."""
    counts = {("yes", "yes"): 20, ("yes", "no"): 5, ("no", "yes"): 10, ("no", "no"): 15}
    pairs = [pair for pair, number in counts.items() for _ in range(number)]
    assert cohen_kappa(pairs) == pytest.approx(0.4)


categories = st.sampled_from("abc")


@given(st.lists(st.lists(categories, max_size=5), max_size=12))
def test_alpha_equals_the_reference(units: list[list[str]]) -> None:
    expected = slow_alpha(units)
    found = krippendorff_alpha(units)
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected)


@given(st.lists(st.tuples(categories, categories), max_size=12))
def test_kappa_equals_the_reference(pairs: list[tuple[str, str]]) -> None:
    expected = slow_kappa(pairs)
    found = cohen_kappa(pairs)
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected)


def test_undone_and_withdrawn_verdicts_do_not_count() -> None:
    events = [
        Event("Ada", "1.jpg", LABEL, "robin", number=1),
        Event("Ada", "1.jpg", LABEL, "wren", number=2),
        Event("Ada", "1.jpg", UNDO, undoes=2, number=3),
        Event("Bo", "1.jpg", NONE_OF_THESE, seen=1, number=4),
        Event("Cleo", "1.jpg", LABEL, "wren", number=5),
        Event("Cleo", "1.jpg", UNSURE, number=6),
    ]
    assert ratings_of(events) == {"1.jpg": {"Ada": "robin", "Bo": NONE_OF_THESE}}


def test_pairs_count_common_images() -> None:
    ratings = {
        "1.jpg": {"Ada": "robin", "Bo": "robin", "Cleo": "wren"},
        "2.jpg": {"Ada": "wren", "Bo": "wren"},
        "3.jpg": {"Dan": "wren"},
    }
    agreement = measure_agreement(ratings)
    assert (agreement.images, agreement.people) == (2, 3)
    assert [(pair.first, pair.second, pair.images) for pair in agreement.pairs] == [
        ("Ada", "Bo", 2),
        ("Ada", "Cleo", 1),
        ("Bo", "Cleo", 1),
    ]
    assert agreement.pairs[0].kappa == 1
    assert agreement.alpha == pytest.approx(slow_alpha([["robin", "robin", "wren"], ["wren", "wren"]]))
