"""Lemma 1 and Theorem 1 of the paper: restricting a soft label lowers its entropy."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semifine.soft_labels import select_candidates

WORST_MASS = 1 - math.sqrt(2) / 2
MAX_CANDIDATES = 11


def entropy(probs):
    """H(p) = -sum p log p with 0 log 0 = 0. Shapes: (rows, K) -> (rows,)."""
    return -torch.xlogy(probs, probs).sum(dim=1)


def entropy_bound(y):
    """Upper bound of log(|C| - 1) if one unselected class has the same probability y as the prediction."""
    return (
        y * math.log(y) / (1 - 2 * y)
        + math.log(1 - 2 * y)
        - (1 - y) * (y * math.log(y) + math.log(1 - y)) / (y * (1 - 2 * y))
    )


def worst_case(size):
    """(1, size + 1) probabilities: the prediction, equal selected classes, and one unselected class as likely as it."""
    rest = (1 - 2 * WORST_MASS) / (size - 1)
    return torch.tensor([[WORST_MASS] + [rest] * (size - 1) + [WORST_MASS]], dtype=torch.float64)


def first_selected(probs, size):
    candidates = torch.arange(probs.shape[1]) < size
    return select_candidates(probs, candidates.expand_as(probs))


@st.composite
def labels_and_sets(draw, max_candidates):
    """Random probabilities, and a candidate set that contains the prediction."""
    num_classes = draw(st.integers(3, 60))
    size = draw(st.integers(1, min(max_candidates, num_classes - 1)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    sharpness = draw(st.floats(0, 6))
    logits = sharpness * torch.randn(1, num_classes, generator=generator, dtype=torch.float64)
    probs = logits.softmax(dim=1)
    others = torch.randperm(num_classes, generator=generator)
    prediction = probs.argmax(dim=1)
    order = torch.cat([prediction, others[others != prediction]])
    return probs[:, order], size


def test_entropy_bound_has_its_minimum_between_log_10_and_log_11():
    assert entropy_bound(WORST_MASS) == pytest.approx(2.36655, abs=1e-5)
    grid = [i / 10_000 for i in range(1, 5000)]
    assert min(map(entropy_bound, grid)) >= entropy_bound(WORST_MASS) - 1e-12
    assert math.log(MAX_CANDIDATES - 1) < entropy_bound(WORST_MASS) < math.log(MAX_CANDIDATES)


@pytest.mark.parametrize(("size", "gap"), [(10, 0.02905), (11, 0.01098), (12, -0.00538), (13, -0.02031)])
def test_worst_case_gap_of_the_lemma(size, gap):
    probs = worst_case(size)
    found = entropy(probs) - entropy(first_selected(probs, size))
    assert found.item() == pytest.approx(gap, abs=1e-5)


@settings(max_examples=300, deadline=None)
@given(labels_and_sets(MAX_CANDIDATES))
def test_lemma_entropy_does_not_increase_up_to_11_candidates(case):
    probs, size = case
    assert entropy(first_selected(probs, size)) <= entropy(probs) + 1e-12


def test_lemma_holds_near_its_worst_case_up_to_11_candidates():
    generator = torch.Generator().manual_seed(0)
    for size in range(2, MAX_CANDIDATES + 1):
        noise = 1 + 0.3 * torch.rand(2000, size + 1, generator=generator, dtype=torch.float64)
        probs = worst_case(size) * noise
        probs[:, 0] = probs.amax(dim=1)  # the prediction stays selected
        probs /= probs.sum(dim=1, keepdim=True)
        assert (entropy(first_selected(probs, size)) <= entropy(probs) + 1e-12).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 2**32))
def test_lemma_holds_for_any_size_with_uniform_candidates(size, num_others, seed):
    generator = torch.Generator().manual_seed(seed)
    others = torch.rand(num_others, generator=generator, dtype=torch.float64)
    probs = torch.cat([torch.ones(size, dtype=torch.float64), others])[None]
    probs /= probs.sum()
    assert entropy(first_selected(probs, size)) <= entropy(probs) + 1e-12


@settings(max_examples=200, deadline=None)
@given(labels_and_sets(MAX_CANDIDATES), st.data())
def test_theorem_entropy_decreases_along_nested_sets(case, data):
    """Applies Lemma 1 repeatedly: each smaller set has at most 11 classes, the largest set any number."""
    probs, size = case
    sizes = sorted(data.draw(st.sets(st.integers(1, size), min_size=1)), reverse=True)
    entropies = [entropy(probs)] + [entropy(first_selected(probs, smaller)) for smaller in sizes]
    for wider, narrower in pairwise(entropies):
        assert narrower <= wider + 1e-12
