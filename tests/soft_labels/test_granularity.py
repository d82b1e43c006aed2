import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semifine.soft_labels.granularity import Granularity, exponential_k, linear_k
from tests.soft_labels import reference

CONFIDENCES = [tenth / 10 for tenth in range(11)]

LINEAR_TABLE = {
    5: [2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42],
    4: [2, 7, 12, 17, 22, 27, 32, 37, 42, 47, 52],
    2.5: [2, 10, 18, 26, 34, 42, 50, 58, 66, 74, 82],
    2: [2, 12, 22, 32, 42, 52, 62, 72, 82, 92, 102],
    10: [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22],
    200 / 198: [2, 22, 42, 61, 81, 101, 121, 141, 160, 180, 200],
}
DISTINCT_K = {5: 41, 4: 51, 2.5: 81, 2: 101, 10: 21, 200 / 198: 199}

EXPONENTIAL_TABLE = {
    1.2: [2, 6, 9, 13, 17, 21, 25, 29, 33, 38, 42],
    1.4: [2, 9, 16, 23, 31, 39, 47, 55, 64, 73, 82],
    1.8: [2, 14, 27, 41, 55, 70, 87, 104, 122, 141, 162],
    2 - 2 / 200: [2, 16, 32, 48, 65, 84, 104, 126, 149, 174, 200],
}


def maps(num_classes):
    """Returns one map of each kind."""
    return [
        Granularity(num_classes, "linear", alpha=max(5.0, num_classes / max(num_classes - 2, 1))),
        Granularity(num_classes, "linear", alpha=5.0, rounding="official"),
        Granularity(num_classes, "exponential", beta=math.log(1.2)),
        Granularity(num_classes, "fixed", k=1),
        Granularity(num_classes, "fixed", k=num_classes),
    ]


@pytest.mark.parametrize("alpha", LINEAR_TABLE)
@pytest.mark.parametrize("rounding", ["paper", "official"])
def test_linear_table_at_200_classes(alpha, rounding):
    conf = torch.tensor(CONFIDENCES, dtype=torch.float64)
    assert linear_k(conf, 200, alpha, rounding).tolist() == LINEAR_TABLE[alpha]


@pytest.mark.parametrize("alpha", DISTINCT_K)
def test_number_of_distinct_k(alpha):
    granularity = Granularity(200, alpha=alpha)
    k = granularity(torch.linspace(0, 1, 20_001, dtype=torch.float64))
    assert len(k.unique()) == DISTINCT_K[alpha] == granularity.k_max - granularity.k_min + 1


@pytest.mark.parametrize("base", EXPONENTIAL_TABLE)
def test_exponential_table_at_200_classes(base):
    conf = torch.tensor(CONFIDENCES, dtype=torch.float64)
    assert exponential_k(conf, 200, math.log(base)).tolist() == EXPONENTIAL_TABLE[base]
    assert Granularity(200, "exponential", beta=math.log(base)).k_max == EXPONENTIAL_TABLE[base][-1]


def test_halves_round_down_in_the_paper_and_to_even_in_the_official_code():
    halves = [Fraction(2 * i + 1, 80) for i in range(40)]  # 200 conf / 5 is a half-integer
    conf = torch.tensor([float(half) for half in halves], dtype=torch.float64)
    assert linear_k(conf, 200, 5.0).tolist() == [reference.linear_k(half, 200, 5) for half in halves]
    official = linear_k(conf, 200, 5.0, "official").tolist()
    assert official == [2 + round(half * 40) for half in halves]
    assert official != linear_k(conf, 200, 5.0).tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.data())
def test_k_is_monotone_and_in_range(num_classes, data):
    confidences = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=20)))
    conf = torch.tensor(confidences, dtype=torch.float64)
    for granularity in maps(num_classes):
        k = granularity(conf)
        assert (k.diff() >= 0).all()
        assert 1 <= granularity.k_min <= k.min() <= k.max() <= granularity.k_max <= num_classes


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 300), st.floats(0, 1, width=32), st.integers(1, 40))
def test_linear_k_equals_exact_fractions(num_classes, conf, alpha_times_4):
    alpha = max(alpha_times_4 / 4, num_classes / (num_classes - 2))
    exact = Fraction(num_classes) * Fraction(conf) / Fraction(alpha)
    if abs(exact % 1 - Fraction(1, 2)) < Fraction(1, 10**9):
        return  # a half-integer within the rounding error of K / alpha
    k = linear_k(torch.tensor(conf, dtype=torch.float64), num_classes, alpha)
    assert int(k) == reference.linear_k(Fraction(conf), num_classes, Fraction(alpha))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_k_is_at_most_the_number_of_classes_for_few_classes(num_classes):
    conf = torch.linspace(0, 1, 11)
    for granularity in maps(num_classes):
        assert granularity(conf).max() <= num_classes


def test_k_is_in_range_for_nan_and_confidence_above_one():
    granularity = Granularity(200, alpha=200 / 198)
    k = granularity(torch.tensor([1.01, float("nan"), -0.01]))
    assert ((k >= 2) & (k <= 200)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 200, "alpha": 1.0}, r"alpha must be at least K / \(K - 2\) = 1.0101"),
        ({"num_classes": 3, "alpha": 2.9}, "alpha must be at least"),
        ({"num_classes": 200, "alpha": -1.0}, "alpha must be above 0"),
        ({"num_classes": 200, "alpha": float("nan")}, "alpha must be above 0"),
        ({"num_classes": 200, "map": "exponential", "beta": 0.7}, r"beta must be at most ln\(2 - 2/K\)"),
        ({"num_classes": 200, "map": "exponential", "beta": 0.0}, "beta must be above 0"),
        ({"num_classes": 200, "map": "fixed"}, r"k must be an integer between 1 and 200"),
        ({"num_classes": 200, "map": "fixed", "k": 201}, "k must be an integer"),
        ({"num_classes": 200, "map": "cubic"}, "map must be one of 'linear', 'exponential', 'fixed'"),
        ({"num_classes": 200, "rounding": "up"}, "rounding must be one of"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
    ],
)
def test_invalid_settings_raise_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        Granularity(**arguments)
