"""The class tree compared with a slow average linkage."""

from __future__ import annotations

import numpy as np

from semifine.report.sections.tree import class_tree
from semifine.runs.analysis import symmetric_counts
from tests.runs.fake_runs import make_groups, planted_counts


def slow_joins(counts: np.ndarray) -> list[tuple[set[int], float]]:
    """Returns the classes of each join and the mean transitions between its halves, from all pairs of classes."""
    between = symmetric_counts(counts)
    groups = [{label} for label in range(len(between))]
    joins = []
    while len(groups) > 1:
        strength, one, other = max(
            (np.mean([between[m, n] for m in first for n in second]), -a, -b)
            for a, first in enumerate(groups)
            for b, second in enumerate(groups[:a])
        )
        joined = groups[-one] | groups[-other]
        groups = [group for place, group in enumerate(groups) if place not in (-one, -other)] + [joined]
        joins.append((joined, float(strength)))
    return joins


def test_tree_equals_slow_average_linkage() -> None:
    random = np.random.default_rng(3)
    counts = random.integers(0, 1000, (9, 9))
    tree = class_tree(counts)
    expected = slow_joins(counts)
    found = [(set(tree.leaves[node.first : node.last + 1]), node.strength) for node in tree.nodes]
    assert [members for members, _ in found] == [members for members, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected])


def test_planted_families_join_first() -> None:
    groups = make_groups(6, 4)
    tree = class_tree(planted_counts(groups))
    assert sorted(tree.leaves) == list(range(24))
    groups_joined = [tree.leaves[node.first : node.last + 1] for node in tree.nodes]
    within = [len({member // 4 for member in members}) == 1 for members in groups_joined]
    assert within == [True] * 18 + [False] * 5, "three joins make a family of four"


def test_tree_without_transitions() -> None:
    tree = class_tree(np.zeros((4, 4), int))
    assert sorted(tree.leaves) == [0, 1, 2, 3]
    assert [node.strength for node in tree.nodes] == [0.0] * 3
