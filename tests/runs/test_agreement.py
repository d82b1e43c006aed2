"""The adjusted Rand index against hand-computed values, and against a loop over all pairs."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semifine.runs.analysis import adjusted_rand_index

two_partitions = st.integers(0, 12).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 4), min_size=size, max_size=size)] * 2)
)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], Fraction(1)),
        ([0, 0, 1, 1], [0, 0, 1, 2], Fraction(4, 7)),  # I = 1, a = 2, b = 1, T = 6
        ([0, 0, 1, 1], [0, 1, 0, 1], Fraction(-1, 2)),  # I = 0, a = b = 2
        ([1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 3, 3], Fraction(8, 33)),  # I = 2, a = 6, b = 3, T = 15
        ([0, 0, 0, 0], [0, 1, 2, 3], Fraction(0)),
        ([0, 0, 0], [5, 5, 5], Fraction(1)),
        ([0, 1, 2], ["a", "b", "c"], Fraction(1)),
        ([7], [8], Fraction(1)),
        ([], [], Fraction(1)),
    ],
)
def test_known_values(first: list[int], second: list[int | str], expected: Fraction) -> None:
    assert adjusted_rand_index(first, second) == float(expected)


@given(two_partitions)
def test_equals_a_loop_over_all_pairs(partitions: tuple[list[int], list[int]]) -> None:
    first, second = partitions
    pairs = [(first[i] == first[j], second[i] == second[j]) for i, j in combinations(range(len(first)), 2)]
    both, a, b = sum(x and y for x, y in pairs), sum(x for x, _ in pairs), sum(y for _, y in pairs)
    expected = Fraction(a * b, len(pairs)) if pairs else Fraction(0)
    largest = Fraction(a + b, 2)
    index = Fraction(1) if largest == expected else (both - expected) / (largest - expected)
    assert adjusted_rand_index(first, second) == pytest.approx(float(index), abs=1e-12)


@given(two_partitions, st.randoms(use_true_random=False))
def test_does_not_depend_on_order_or_names(partitions: tuple[list[int], list[int]], chance: random.Random) -> None:
    first, second = partitions
    index = adjusted_rand_index(first, second)
    assert adjusted_rand_index(second, first) == index
    order = list(range(len(first)))
    chance.shuffle(order)
    names = [f"name {value}" for value in chance.sample(range(100), 5)]
    renamed = [names[first[place]] for place in order]
    assert adjusted_rand_index(renamed, [second[place] for place in order]) == index


@given(st.lists(st.integers(0, 4), max_size=12))
def test_a_partition_agrees_with_itself(labels: list[int]) -> None:
    assert adjusted_rand_index(labels, labels) == 1.0


def test_independent_partitions_agree_by_chance_only() -> None:
    chance = random.Random(0)
    first = [chance.randrange(5) for _ in range(2000)]
    second = [chance.randrange(5) for _ in range(2000)]
    assert abs(adjusted_rand_index(first, second)) < 0.01


def test_partitions_of_different_things_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        adjusted_rand_index([0, 1, 2], [0, 1])
