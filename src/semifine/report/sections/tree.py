"""The tree of confused classes as a drawing that can be clicked and cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from semifine.report.class_order import Arrangement
from semifine.runs.clusters import Tree, class_tree

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
