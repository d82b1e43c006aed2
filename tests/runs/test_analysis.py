"""Clusters of planted families, confused pairs, and rankings of images."""

from __future__ import annotations

import numpy as np
import pytest

from semifine.runs.analysis import (
    REPEAT_DISCOUNT,
    agreement_with_groups,
    class_clusters,
    cluster_assignment,
    drop_unlinked,
    fraction_within,
    greedy_medoids,
    largest_first,
    most_confused_pairs,
    rank_for_labeling,
    symmetric_counts,
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
    assert sorted(greedy_medoids(symmetric_counts(COUNTS), 2)) == [1, 3]


def test_classes_without_transitions_in_their_cluster_are_loose() -> None:
    clusters, loose = drop_unlinked([[1, 0, 2, 5], [3], [4]], COUNTS)
    assert clusters == [[1, 0, 2]]
    assert loose == [3, 4, 5]
    assert drop_unlinked([[0, 1, 2, 3, 4, 5]], np.zeros((6, 6), int)) == ([], [0, 1, 2, 3, 4, 5])


def test_most_confused_pairs_count_both_directions() -> None:
    pairs = most_confused_pairs(COUNTS, limit=3)
    assert [(pair.first, pair.second, pair.first_to_second, pair.second_to_first) for pair in pairs] == [
        (0, 1, 9, 5),
        (1, 2, 6, 5),
        (3, 4, 3, 4),
    ]
    assert len(most_confused_pairs(COUNTS, limit=100)) == 5
    assert most_confused_pairs(np.eye(4, dtype=int)) == []


def test_share_within() -> None:
    assert fraction_within(COUNTS, ["a", "a", "a", "b", "b", "c"]) == pytest.approx(33 / 34)
    assert fraction_within(COUNTS, range(6)) == 0.0
    assert fraction_within(np.zeros((3, 3), int), "abc") is None


def test_highest_keeps_order_among_equals_and_looks_only_where_allowed() -> None:
    values = np.array([1.0, 5.0, 5.0, 9.0])
    assert largest_first(values, 2).tolist() == [3, 1]
    assert largest_first(values, 9, values < 6).tolist() == [1, 2, 0]


def test_next_labels_prefer_doubt_and_then_variety() -> None:
    entropy = np.array([1.0, 0.99, 0.98, 0.6, 0.0])
    prediction = np.array([0, 0, 1, 2, 2])
    cluster = np.array([0, 0, 1])
    # After image 0, image 1 counts 0.99 x 0.49 (class and cluster), image 2 0.98 x 0.7 (cluster), image 3 stays 0.6.
    assert REPEAT_DISCOUNT**2 * 0.99 < 0.6 < REPEAT_DISCOUNT * 0.98
    assert rank_for_labeling(entropy, prediction, cluster, 5).tolist() == [0, 2, 3, 1], (
        "one without doubt is never asked for"
    )
