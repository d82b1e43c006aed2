"""Statistics of finished runs: clusters of confused classes, agreement with known groups, rankings of images.

Functions take NumPy arrays and return plain values, so they also work on numbers that no run produced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer[Any]]
Integers = NDArray[np.int64]

Z_975 = 1.96
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval. Both ends equal the mean if there is only one value."""

    mean: float
    low: float
    high: float


def wilson_interval(percent: float, images: int) -> Interval:
    """Returns an accuracy in percent with its 95 % Wilson score interval.

    >>> interval = wilson_interval(75.0, images=40)
    >>> f"{interval.mean:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
    '75.0 [59.8, 85.8]'
    """
    share, z2 = percent / 100, NormalDist().inv_cdf(0.975) ** 2
    center = share + z2 / (2 * images)
    half = (z2 * (share * (1 - share) / images + z2 / (4 * images**2))) ** 0.5
    low, high = ((center + side * half) / (1 + z2 / images) for side in (-1, 1))
    return Interval(percent, 100 * max(low, 0.0), 100 * min(high, 1.0))


# --- Clusters of classes, from counts of class transitions ---

# Clustering a few hundred classes takes milliseconds, and random starts often miss the best clustering.
RESTARTS = 50


def symmetric_counts(counts: Counts) -> Integers:
    """Returns ``counts + counts.T`` with a zero diagonal, (K, K).

    >>> symmetric_counts(np.array([[7, 2], [1, 5]])).tolist()
    [[0, 3], [3, 0]]
    """
    wide = np.asarray(counts, dtype=np.int64)
    both_ways: Integers = wide + wide.T
    np.fill_diagonal(both_ways, 0)
    return both_ways


def cluster_assignment(counts: Counts, k: int) -> Integers:
    """Returns the cluster of each class, (K,): the best k-medoids solution of random starts and one greedy start."""
    import torch  # slow to import, and most readers of a run need no clusters

    from semifine.soft_labels import cluster_classes, k_medoids  # imports torch

    similarity = symmetric_counts(counts)
    generator = torch.Generator().manual_seed(0)
    as_tensor = torch.from_numpy(similarity)
    random = cluster_classes(as_tensor, k, restarts=RESTARTS, generator=generator).numpy()
    start = torch.from_numpy(greedy_medoids(similarity, k))[None]
    greedy = k_medoids(as_tensor, start).assignment[0].numpy()
    best: Integers = max(greedy, random, key=lambda assignment: _objective(similarity, assignment))
    return best


def greedy_medoids(similarity: Integers, k: int) -> Integers:
    """Returns k medoids, (k,), each the class that increases the objective most (the BUILD phase of PAM).

    Random starts rarely place one medoid in each of many groups, and k-medoids cannot repair that.
    """
    covered = np.zeros(len(similarity), np.int64)
    chosen: list[int] = []
    for _ in range(k):
        # A class that becomes a medoid no longer contributes its similarity to another medoid: hence the last term.
        gain = np.maximum(similarity - covered, 0).sum(axis=1) - covered
        gain[chosen] = np.iinfo(np.int64).min
        best = int(gain.argmax())
        chosen.append(best)
        covered = np.maximum(covered, similarity[best])
        covered[chosen] = 0
    return np.array(chosen, np.int64)


def class_clusters(counts: Counts, k: int) -> list[list[int]]:
    """Returns k clusters of class indices, the largest first.

    Each cluster starts with its medoid, followed by the other classes by their transitions to and from the medoid.

    >>> counts = np.zeros((4, 4), int)
    >>> counts[0, 1] = counts[1, 0] = counts[2, 3] = 5
    >>> class_clusters(counts, 2)
    [[0, 1], [2, 3]]
    """
    assignment = cluster_assignment(counts, k)
    similarity = symmetric_counts(counts)
    clusters = [_order_cluster(np.flatnonzero(assignment == label), similarity) for label in np.unique(assignment)]
    return sorted(clusters, key=lambda members: (-len(members), members[0]))


def drop_unlinked(clusters: Sequence[Sequence[int]], counts: Counts) -> tuple[list[list[int]], list[int]]:
    """Splits clusters into clusters of classes with transitions between them, and all other classes.

    k-medoids assigns every class. A class without transitions to any medoid lands in the first cluster, which says
    nothing about the class.
    """
    similarity = symmetric_counts(counts)
    linked = []
    for members in clusters:
        within = similarity[np.ix_(members, members)].sum(axis=1)
        kept = [member for member, total in zip(members, within, strict=True) if total > 0]
        if kept:
            linked.append(kept)
    linked.sort(key=lambda members: -len(members))
    in_clusters = {member for members in linked for member in members}
    return linked, [label for label in range(len(similarity)) if label not in in_clusters]


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes and the transitions between them."""

    first: int
    second: int
    first_to_second: int
    second_to_first: int

    @property
    def total(self) -> int:
        return self.first_to_second + self.second_to_first


def most_confused_pairs(counts: Counts, limit: int = 10) -> list[ConfusedPair]:
    """Returns the pairs of classes with the most transitions in both directions, in decreasing order.

    >>> most_confused_pairs(np.array([[0, 4, 0], [1, 0, 0], [0, 2, 0]]), limit=1)
    [ConfusedPair(first=0, second=1, first_to_second=4, second_to_first=1)]
    """
    similarity = np.triu(symmetric_counts(counts))
    first, second = np.nonzero(similarity)
    strongest = np.argsort(-similarity[first, second], kind="stable")[:limit]
    return [
        ConfusedPair(int(m), int(n), int(counts[m, n]), int(counts[n, m]))
        for m, n in zip(first[strongest], second[strongest], strict=True)
    ]


def fraction_within(counts: Counts, labels: Sequence[Hashable]) -> float | None:
    """Returns the fraction of transitions between classes with equal labels, or None without any transitions.

    >>> fraction_within(np.array([[0, 3, 1], [0, 0, 0], [0, 0, 0]]), ["tit", "tit", "owl"])
    0.75
    """
    similarity = symmetric_counts(counts)
    if not similarity.any():
        return None
    _, codes = np.unique(np.array([str(label) for label in labels]), return_inverse=True)
    return float(similarity[codes[:, None] == codes].sum() / similarity.sum())


def agreement_with_groups(counts: Counts | None, groups: Sequence[str] | None) -> float | None:
    """Returns the adjusted Rand index between known groups and as many learned clusters.

    None if it would mean nothing: no transitions, no groups, a single group, or one group per class.
    """
    if counts is None or not groups or not symmetric_counts(counts).any():
        return None
    k = len(set(groups))
    if not 1 < k < len(groups):
        return None
    return adjusted_rand_index(cluster_assignment(counts, k).tolist(), groups)


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Returns 1 for equal partitions, about 0 for chance, below 0 for less than chance (Hubert and Arabie, 1985).

    ARI = (I - E) / (M - E), where I counts the pairs that both partitions put together, a and b the pairs that each
    one puts together, T all pairs, E = a b / T and M = (a + b) / 2.

    >>> adjusted_rand_index([0, 0, 1, 1], ["owl", "owl", "tit", "tit"])
    1.0
    """
    if len(first) != len(second):
        raise ValueError(f"Both partitions must have the same length, got {len(first)} and {len(second)} labels.")
    in_both = _count_pairs(zip(first, second, strict=True))
    in_first, in_second = _count_pairs(first), _count_pairs(second)
    total = len(first) * (len(first) - 1) // 2
    # Multiplied by 2 T, so that everything before the last division is exact.
    above_chance = 2 * (total * in_both - in_first * in_second)
    largest = total * (in_first + in_second) - 2 * in_first * in_second
    # Zero only if both partitions are a single block or both are all singletons, and therefore equal.
    return above_chance / largest if largest else 1.0


def _count_pairs(labels: Iterable[Hashable]) -> int:
    """Counts the pairs with equal labels."""
    return sum(size * (size - 1) // 2 for size in Counter(labels).values())


def _order_cluster(members: Integers, similarity: Integers) -> list[int]:
    """The medoid, then the others by their transitions with it; ties by class index."""
    inside = similarity[np.ix_(members, members)]
    medoid = int(inside.sum(axis=1).argmax())
    strength = inside[medoid]
    strength[medoid] = np.iinfo(np.int64).max
    return [int(member) for member in members[np.argsort(-strength, kind="stable")]]


def _objective(similarity: Integers, assignment: Integers) -> int:
    """Sum over all classes of the similarity to the best medoid of their cluster."""
    total = 0
    for label in np.unique(assignment):
        members = np.flatnonzero(assignment == label)
        total += int(similarity[np.ix_(members, members)].sum(axis=1).max())
    return total


# --- Rankings of images ---

REPEAT_DISCOUNT = 0.7
"""Factor on the value of an image for each listed image of the same predicted class, and again of the same cluster."""


def largest_first(values: NDArray[Any], limit: int, mask: NDArray[np.bool_] | None = None) -> Integers:
    """Returns the indices of the largest values in decreasing order, only those where ``mask`` is true.

    Equal values keep their order.

    >>> largest_first(np.array([1.0, 5.0, 5.0, 9.0]), limit=2).tolist()
    [3, 1]
    """
    indices = np.arange(len(values)) if mask is None else np.flatnonzero(mask)
    order = np.argsort(-values[indices].astype(np.float64), kind="stable")
    chosen: Integers = indices[order[:limit]]
    return chosen


def rank_for_labeling(entropy: NDArray[Any], prediction: Integers, cluster: Integers, limit: int) -> Integers:
    """Returns the indices of the images to label next, the most useful first.

    The value of an image is the entropy of its label. Each image on the list lowers the value of the images of the
    same predicted class and of the same cluster, because twenty copies of one hard case teach less than twenty
    different cases.

    Args:
        entropy: Entropy of the label of each image, (N,).
        prediction: Predicted class of each image, (N,).
        cluster: Cluster of each class, (K,).
        limit: Maximum number of images.

    >>> entropy = np.array([1.0, 0.9, 0.6, 0.0])
    >>> rank_for_labeling(entropy, np.array([0, 0, 1, 1]), np.array([0, 1]), limit=4).tolist()
    [0, 2, 1]
    """
    value = entropy.astype(np.float64).copy()
    cluster_of_image = cluster[prediction]
    chosen: list[int] = []
    for _ in range(min(limit, len(value))):
        best = int(value.argmax())
        if not value[best] > 0:
            break
        chosen.append(best)
        value[prediction == prediction[best]] *= REPEAT_DISCOUNT
        value[cluster_of_image == cluster_of_image[best]] *= REPEAT_DISCOUNT
        value[best] = 0.0
    return np.array(chosen, np.int64)
