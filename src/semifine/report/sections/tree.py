"""Section: a tree of confused classes by average linkage on the class transitions, which the reader can cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from semifine.report.class_order import ClassOrder
from semifine.report.section import ReportData, Section
from semifine.runs.analysis import Counts, symmetric_counts

TEMPLATE = """
{% if tree %}
<section id="tree">
<h2>Class tree</h2>
<div class="prose">
<p>The more often predictions of <strong>{{ shown.label }}</strong> changed between two groups of classes, the further
to the right the groups join. Click a branch to see its classes.</p>
</div>
<div class="controls" id="tree-controls" hidden>
  <label for="tree-k">Cut into</label>
  <input type="range" id="tree-k" min="1" max="{{ tree.leaves|length }}" value="{{ tree.k }}">
  <output id="tree-k-shown" for="tree-k"></output>
</div>
<div class="tree-and-panel">
<div class="scroll tree" tabindex="0" role="region" aria-label="Class tree">
<svg role="img" aria-label="Tree of {{ tree.leaves|length }} classes by class transitions"
viewBox="0 0 {{ tree.width }} {{ tree.height }}" width="{{ tree.width }}" height="{{ tree.height }}">
{% set x = tree.branch_width %}
{% for leaf in tree.leaves %}
<g class="leaf" data-class="{{ leaf.label }}" data-name="{{ leaf.name }}">
<rect x="{{ x + 2 }}" y="{{ leaf.y - tree.row / 2 }}" width="5" height="{{ tree.row }}"/>
<text x="{{ x + 12 }}" y="{{ leaf.y + 4 }}">{{ leaf.name }}
{%- if leaf.group %} <tspan class="group">{{ leaf.group }}</tspan>{% endif %}</text>
</g>
{% endfor %}
{% for branch in tree.branches %}
<path class="branch" d="{{ branch.path }}" data-first="{{ branch.first }}" data-last="{{ branch.last }}"
data-step="{{ branch.step }}" data-title="{{ branch.title }}" tabindex="0"><title>{{ branch.title }}</title></path>
{% endfor %}
</svg>
</div>
<div class="card" id="tree-panel" aria-live="polite"></div>
</div>
</section>
{% endif %}
"""

# Pixels
ROW = 18
WIDTH = 210
MARGIN = 8
LETTER = 6.8


def context(report: ReportData) -> dict[str, Any]:
    shown = report.class_order
    return {"shown": shown, "tree": None if shown is None else view_tree(shown)}


SECTION = Section({"tree": "Tree"}, TEMPLATE, context)


@dataclass(frozen=True)
class Node:
    """A group of classes, which are neighbors among the leaves: ``leaves[first : last + 1]``."""

    left: int
    right: int
    """Indices of the two joined nodes: a class id below K, or K plus the index of a node."""
    strength: float
    """Mean number of transitions between a class of one node and a class of the other."""
    first: int
    last: int


@dataclass(frozen=True)
class Tree:
    """The K - 1 nodes in the order in which they join, and the K classes in the order of the leaves."""

    nodes: list[Node]
    leaves: list[int]


def class_tree(counts: Counts) -> Tree:
    """Joins classes by average linkage on ``counts + counts.T``, the strongest connection first.

    Example:
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
    position = {label: index for index, label in enumerate(leaves)}
    nodes = []
    for step, (left, right, height, size) in enumerate(joins):
        first = min(position[label] for label in members[num_classes + step])
        strength = max(0.0, float(largest - height))
        nodes.append(Node(int(left), int(right), strength, first, first + int(size) - 1))
    return Tree(nodes, leaves)


@dataclass(frozen=True)
class Branch:
    """A node as a path of the drawing."""

    path: str
    first: int
    last: int
    step: int
    """Index in the order of joining. A cut into k groups draws the nodes below K - k."""
    title: str


@dataclass(frozen=True)
class Leaf:
    """A class in the drawing."""

    label: int
    name: str
    group: str | None
    y: float


@dataclass(frozen=True)
class TreeView:
    """The drawing, in pixels."""

    branch_width: int
    width: int
    """Width of branches and names."""
    height: int
    row: int
    branches: list[Branch]
    leaves: list[Leaf]
    k: int
    """The initial cut."""


def view_tree(shown: ClassOrder) -> TreeView | None:
    """Returns the drawing of the tree; None if the run has no transitions or fewer than three classes."""
    run = shown.run
    if shown.kind != "clusters" or run.transitions is None or run.num_classes < 3:
        return None
    tree = class_tree(run.transitions)
    leaves = [
        Leaf(label, run.class_names[label], run.class_groups[label] if run.class_groups else None, _row_center(index))
        for index, label in enumerate(tree.leaves)
    ]
    letters = max(len(leaf.name) + len(leaf.group or "") + 1 for leaf in leaves)
    width = WIDTH + 20 + round(LETTER * letters)
    return TreeView(WIDTH, width, ROW * len(leaves), ROW, _branches(tree), leaves, shown.k)


def _branches(tree: Tree) -> list[Branch]:
    """Returns the paths. Strong connections join close to the names."""
    size = len(tree.leaves)
    strongest = max(node.strength for node in tree.nodes) or 1.0
    row = {label: index for index, label in enumerate(tree.leaves)}
    x = dict.fromkeys(range(size), float(WIDTH))
    y = {label: _row_center(row[label]) for label in range(size)}
    branches = []
    for step, node in enumerate(tree.nodes):
        joint = MARGIN + (WIDTH - 3 * MARGIN) * sqrt(node.strength / strongest)
        joint = min(joint, x[node.left] - 1, x[node.right] - 1)
        path = f"M{x[node.left]:.1f} {y[node.left]:.1f}H{joint:.1f}V{y[node.right]:.1f}H{x[node.right]:.1f}"
        x[size + step], y[size + step] = joint, (y[node.left] + y[node.right]) / 2
        title = f"{node.last - node.first + 1} classes, {node.strength:.1f} changes per pair"
        branches.append(Branch(path, node.first, node.last, step, title))
    return branches


def _row_center(index: int) -> float:
    return ROW * (index + 0.5)
