"""Clusters of planted families, orders, pairs, and what happens without anything to cluster."""

from __future__ import annotations

import numpy as np
import pytest

from semifine.runs.clusters import (
    agreement_with_groups,
    class_clusters,
    cluster_assignment,
    greedy_medoids,
    most_confused_pairs,
    separate_loose,
    share_within,
    similarity,
)
from tests.runs.fake_runs import make_groups, planted_counts

# Classes 0, 1, 2 belong together with 1 in the middle, 3 and 4 belong together, 5 is alone.
COUNTS = np.array(
    [
        [0, 9, 1, 0, 0, 0],
        [5, 0, 6, 0, 0, 0],
        [0, 5, 0, 0, 1, 0],
        [0, 0, 0, 0, 3, 0],
        [0, 0, 0, 4, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
)


@pytest.mark.parametrize(("num_groups", "size"), [(4, 5), (20, 10), (60, 5)])
def test_planted_families_are_found(num_groups: int, size: int) -> None:
    groups = list(np.random.default_rng(0).permutation(make_groups(num_groups, size)))
    assert agreement_with_groups(planted_counts(groups), groups) == 1.0


def test_unrelated_groups_do_not_agree() -> None:
    groups = make_groups(6, 8)
    shuffled = [str(group) for group in np.random.default_rng(1).permutation(groups)]
    agreement = agreement_with_groups(planted_counts(groups), shuffled)
    assert agreement is not None
    assert abs(agreement) < 0.15


def test_agreement_is_none_where_it_would_mean_nothing() -> None:
    groups = make_groups(2, 3)
    assert agreement_with_groups(None, groups) is None
    assert agreement_with_groups(COUNTS, None) is None
    assert agreement_with_groups(np.zeros((6, 6), int), groups) is None
    assert agreement_with_groups(COUNTS, ["one"] * 6) is None
    assert agreement_with_groups(COUNTS, list("abcdef")) is None


def test_clusters_are_ordered_by_size_then_by_transitions_with_the_medoid() -> None:
    clusters = class_clusters(COUNTS, 3)
    assert clusters == [[1, 0, 2], [3, 4], [5]]


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_clusters_are_a_partition(k: int) -> None:
    clusters = class_clusters(COUNTS, k)
    assert len(clusters) == k
    assert sorted(member for members in clusters for member in members) == list(range(6))
    assert [len(members) for members in clusters] == sorted(map(len, clusters), reverse=True)


def test_a_clustering_is_repeatable_and_ignores_the_diagonal() -> None:
    counts = planted_counts(make_groups(5, 4), within=3, between=1)
    with_diagonal = counts + 100 * np.eye(len(counts), dtype=int)
    np.testing.assert_array_equal(cluster_assignment(counts, 5), cluster_assignment(with_diagonal, 5))


def test_greedy_medoids_are_distinct_even_without_counts() -> None:
    assert sorted(greedy_medoids(np.zeros((5, 5), np.int64), 5)) == [0, 1, 2, 3, 4]
    assert sorted(greedy_medoids(similarity(COUNTS), 2)) == [1, 3]


def test_classes_without_transitions_in_their_cluster_are_loose() -> None:
    clusters, loose = separate_loose([[1, 0, 2, 5], [3], [4]], COUNTS)
    assert clusters == [[1, 0, 2]]
    assert loose == [3, 4, 5]
    assert separate_loose([[0, 1, 2, 3, 4, 5]], np.zeros((6, 6), int)) == ([], [0, 1, 2, 3, 4, 5])


def test_most_confused_pairs_count_both_directions() -> None:
    pairs = most_confused_pairs(COUNTS, limit=3)
    assert [(pair.first, pair.second, pair.there, pair.back) for pair in pairs] == [
        (0, 1, 9, 5),
        (1, 2, 6, 5),
        (3, 4, 3, 4),
    ]
    assert len(most_confused_pairs(COUNTS, limit=100)) == 5
    assert most_confused_pairs(np.eye(4, dtype=int)) == []


def test_share_within() -> None:
    assert share_within(COUNTS, ["a", "a", "a", "b", "b", "c"]) == pytest.approx(33 / 34)
    assert share_within(COUNTS, range(6)) == 0.0
    assert share_within(np.zeros((3, 3), int), "abc") is None
