"""Clusters of classes that a model confuses, and the tree of classes, from transition counts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.runs.analysis import adjusted_rand_index

Counts = NDArray[np.integer[Any]]
Classes = NDArray[np.int64]

# A clustering of some hundred classes takes milliseconds, and random starts often miss the best one.
RESTARTS = 50


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes and how often one became the other."""

    first: int
    second: int
    there: int
    """Counts of first -> second."""
    back: int
    """Counts of second -> first."""


def similarity(counts: Counts) -> Classes:
    """S = C + C^T with a zero diagonal, shape (K, K)."""
    wide = np.asarray(counts, dtype=np.int64)
    both_ways: Classes = wide + wide.T
    np.fill_diagonal(both_ways, 0)
    return both_ways


def cluster_assignment(counts: Counts, k: int) -> Classes:
    """The cluster of each class, (K,): k-medoids with the best objective of random starts and a greedy one."""
    import torch  # here, so that reading a report's numbers need not wait for it

    from semifine.soft_labels import cluster_classes, k_medoids

    between = similarity(counts)
    generator = torch.Generator().manual_seed(0)
    as_tensor = torch.from_numpy(between)
    random = cluster_classes(as_tensor, k, restarts=RESTARTS, generator=generator).numpy()
    start = torch.from_numpy(greedy_medoids(between, k))[None]
    greedy = k_medoids(as_tensor, start).assignment[0].numpy()
    found: Classes = max(greedy, random, key=lambda assignment: _objective(between, assignment))
    return found


def greedy_medoids(between: Classes, k: int) -> Classes:
    """k medoids, (k,): one after the other the class that adds most to the objective (BUILD of PAM).

    Random medoids rarely fall one into each of many groups, and k-medoids moves none to a group without any.
    """
    served = np.zeros(len(between), np.int64)
    chosen: list[int] = []
    for _ in range(k):
        # A new medoid no longer adds its own similarity to another medoid, hence the last term.
        gain = np.maximum(between - served, 0).sum(axis=1) - served
        gain[chosen] = np.iinfo(np.int64).min
        best = int(gain.argmax())
        chosen.append(best)
        served = np.maximum(served, between[best])
        served[chosen] = 0
    return np.array(chosen, np.int64)


def class_clusters(counts: Counts, k: int) -> list[list[int]]:
    """k clusters as lists of class ids: the largest first, in each the medoid first, then by transitions with it."""
    assignment = cluster_assignment(counts, k)
    between = similarity(counts)
    clusters = [_by_strength(np.flatnonzero(assignment == label), between) for label in np.unique(assignment)]
    return sorted(clusters, key=lambda members: (-len(members), members[0]))


def separate_loose(clusters: Sequence[Sequence[int]], counts: Counts) -> tuple[list[list[int]], list[int]]:
    """Clusters of at least two classes with transitions between them, and all other classes.

    k-medoids has to put every class somewhere: one without transitions to any medoid lands in the first cluster,
    which says nothing about it.
    """
    between = similarity(counts)
    linked = []
    for members in clusters:
        within = between[np.ix_(members, members)].sum(axis=1)
        kept = [member for member, sum_within in zip(members, within, strict=True) if sum_within > 0]
        if kept:
            linked.append(kept)
    linked.sort(key=lambda members: -len(members))
    in_clusters = {member for members in linked for member in members}
    return linked, [label for label in range(len(between)) if label not in in_clusters]


def most_confused_pairs(counts: Counts, limit: int = 10) -> list[ConfusedPair]:
    """Pairs of classes with the most transitions in both directions together, the most first."""
    between = np.triu(similarity(counts))
    first, second = np.nonzero(between)
    strongest = np.argsort(-between[first, second], kind="stable")[:limit]
    return [
        ConfusedPair(int(m), int(n), int(counts[m, n]), int(counts[n, m]))
        for m, n in zip(first[strongest], second[strongest], strict=True)
    ]


def share_within(counts: Counts, labels: Sequence[Hashable]) -> float | None:
    """The share of transitions between classes of the same label, or None without transitions."""
    between = similarity(counts)
    if not between.any():
        return None
    _, codes = np.unique(np.array([str(label) for label in labels]), return_inverse=True)
    return float(between[codes[:, None] == codes].sum() / between.sum())


def agreement_with_groups(counts: Counts | None, groups: Sequence[str] | None) -> float | None:
    """Adjusted Rand index between as many clusters as there are groups and the groups themselves.

    None where it would mean nothing: without transitions, without groups, with a single one, or one for each class.
    """
    if counts is None or not groups or not similarity(counts).any():
        return None
    k = len(set(groups))
    if not 1 < k < len(groups):
        return None
    return adjusted_rand_index(cluster_assignment(counts, k).tolist(), groups)


def _by_strength(members: Classes, between: Classes) -> list[int]:
    """The medoid, then the others by their transitions with it; ties by class id."""
    inside = between[np.ix_(members, members)]
    medoid = int(inside.sum(axis=1).argmax())
    strength = inside[medoid]
    strength[medoid] = np.iinfo(np.int64).max
    return [int(member) for member in members[np.argsort(-strength, kind="stable")]]


def _objective(between: Classes, assignment: Classes) -> int:
    """Sum over the classes of their similarity to the best medoid of their cluster."""
    total = 0
    for label in np.unique(assignment):
        members = np.flatnonzero(assignment == label)
        total += int(between[np.ix_(members, members)].sum(axis=1).max())
    return total


@dataclass(frozen=True)
class Node:
    """A group of classes, which stand side by side in the order of the leaves: places ``first`` to ``last``."""

    left: int
    right: int
    """Numbers of the two nodes that join: a class below K, else K + the place of a node in the list."""
    strength: float
    """Mean transitions between a class of the one and a class of the other."""
    first: int
    last: int


@dataclass(frozen=True)
class Tree:
    """K - 1 nodes, in the order in which they join, and the (K,) classes in the order of the leaves."""

    nodes: list[Node]
    leaves: list[int]


def class_tree(counts: Counts) -> Tree:
    """Average linkage on S = C + C^T; ties go to the classes that come first."""
    between = similarity(counts).astype(np.float64)
    num_classes = len(between)
    np.fill_diagonal(between, -1.0)
    number = list(range(num_classes))  # of the node that lies in each row
    size = np.ones(num_classes)
    joins: list[tuple[int, int, float]] = []
    for step in range(num_classes - 1):
        one, other = sorted(divmod(int(between.argmax()), num_classes))
        joins.append((number[one], number[other], float(between[one, other])))
        mean = (size[one] * between[one] + size[other] * between[other]) / (size[one] + size[other])
        mean[between[one] < 0] = -1.0  # rows that are gone, or the row itself
        mean[[one, other]] = -1.0
        between[one], between[:, one] = mean, mean
        between[other], between[:, other] = -1.0, -1.0
        size[one] += size[other]
        number[one] = num_classes + step
    return _laid_out(joins, num_classes)


def _laid_out(joins: list[tuple[int, int, float]], num_classes: int) -> Tree:
    """Leaves side by side, the larger half of each node first."""
    members: list[list[int]] = [[label] for label in range(num_classes)]
    for left, right, _ in joins:
        first, second = sorted((members[left], members[right]), key=len, reverse=True)
        members.append(first + second)
    leaves = members[-1]
    place = {label: position for position, label in enumerate(leaves)}
    nodes = []
    for step, (left, right, strength) in enumerate(joins):
        positions = [place[label] for label in members[num_classes + step]]
        nodes.append(Node(left, right, strength, min(positions), max(positions)))
    return Tree(nodes, leaves)
