"""The tree of classes that a model confuses: the two groups with the most transitions between them join first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semifine.analysis.clusters import Counts, similarity


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
