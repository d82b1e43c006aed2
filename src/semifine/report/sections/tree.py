"""The tree of confused classes: average linkage on the class transitions, drawn so that it can be cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from semifine.report.class_order import Arrangement
from semifine.runs.analysis import Counts, symmetric_counts


@dataclass(frozen=True)
class Node:
    """A group of classes, which are neighbors in the order of the leaves: ``leaves[first : last + 1]``."""

    left: int
    right: int
    """Indices of the two joined nodes: a class below K, else K + the index of a node in the list."""
    strength: float
    """Mean transitions between a class of one node and a class of the other."""
    first: int
    last: int


@dataclass(frozen=True)
class Tree:
    """K - 1 nodes, in the order in which they join, and the K classes in the order of the leaves."""

    nodes: list[Node]
    leaves: list[int]


def class_tree(counts: Counts) -> Tree:
    """Joins classes by average linkage on ``counts + counts.T``, the strongest connection first.

    >>> tree = class_tree(np.array([[0, 1, 0], [0, 0, 9], [0, 0, 0]]))
    >>> tree.leaves, [node.strength for node in tree.nodes]
    ([1, 2, 0], [9.0, 0.5])
    """
    similarity = symmetric_counts(counts).astype(np.float64)
    largest = similarity.max()
    distance = largest - similarity
    np.fill_diagonal(distance, 0.0)
    joins = linkage(squareform(distance), method="average")  # rows of left, right, distance, size
    num_classes = len(similarity)
    members: list[list[int]] = [[label] for label in range(num_classes)]
    for left, right in joins[:, :2].astype(int):
        larger, smaller = sorted((members[left], members[right]), key=len, reverse=True)
        members.append(larger + smaller)
    leaves = members[-1]
    place = {label: position for position, label in enumerate(leaves)}
    nodes = []
    for step, (left, right, height, size) in enumerate(joins):
        first = min(place[label] for label in members[num_classes + step])
        strength = max(0.0, float(largest - height))
        nodes.append(Node(int(left), int(right), strength, first, first + int(size) - 1))
    return Tree(nodes, leaves)


ROW = 18
WIDTH = 210
MARGIN = 8
LETTER = 6.8
"""Pixels that a letter of a name takes, generously."""


@dataclass(frozen=True)
class Branch:
    """A node as a path of the drawing, and what it holds."""

    path: str
    first: int
    last: int
    step: int
    """Its place in the order of joining: in a cut into k, nodes below K - k are drawn."""
    words: str


@dataclass(frozen=True)
class Leaf:
    label: int
    name: str
    group: str | None
    y: float


@dataclass(frozen=True)
class TreeView:
    branch_width: int
    width: int
    """With the names."""
    height: int
    row: int
    branches: list[Branch]
    leaves: list[Leaf]
    k: int
    """The cut to begin with."""


def view_tree(shown: Arrangement) -> TreeView | None:
    """None where the run has no transitions to make a tree of."""
    run = shown.run
    if shown.kind != "clusters" or run.transitions is None or run.num_classes < 3:
        return None
    tree = class_tree(run.transitions)
    leaves = [
        Leaf(label, run.class_names[label], run.class_groups[label] if run.class_groups else None, _middle(place))
        for place, label in enumerate(tree.leaves)
    ]
    letters = max(len(leaf.name) + len(leaf.group or "") + 1 for leaf in leaves)
    width = WIDTH + 20 + round(LETTER * letters)
    return TreeView(WIDTH, width, ROW * len(leaves), ROW, _branches(tree), leaves, shown.k)


def _branches(tree: Tree) -> list[Branch]:
    """The stronger the link, the nearer to the names its branches meet."""
    size = len(tree.leaves)
    strongest = max(node.strength for node in tree.nodes) or 1.0
    row = {label: place for place, label in enumerate(tree.leaves)}
    x = dict.fromkeys(range(size), float(WIDTH))
    y = {label: _middle(row[label]) for label in range(size)}
    branches = []
    for step, node in enumerate(tree.nodes):
        own = MARGIN + (WIDTH - 3 * MARGIN) * sqrt(node.strength / strongest)
        own = min(own, x[node.left] - 1, x[node.right] - 1)
        path = f"M{x[node.left]:.1f} {y[node.left]:.1f}H{own:.1f}V{y[node.right]:.1f}H{x[node.right]:.1f}"
        x[size + step], y[size + step] = own, (y[node.left] + y[node.right]) / 2
        words = f"{node.last - node.first + 1} classes, {node.strength:.1f} changes a pair"
        branches.append(Branch(path, node.first, node.last, step, words))
    return branches


def _middle(place: int) -> float:
    return ROW * (place + 0.5)
