"""The taxonomy of the classes as a tree for the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semifine.data.label_classes import LabelClass
from semifine.inference.taxonomy import read_lines

Ranks = dict[str, list[str]]
"""The names of the higher ranks of each class, from the finest to the coarsest."""


def read_ranks(file: Path) -> Ranks:
    """Reads a taxonomy file; unlike for predictions, it may lack classes and have more."""
    header, lines = read_lines(file)
    return {cells[0]: cells[1 : len(header)] for cells in lines}


def taxonomy_tree(ranks: Ranks, classes: Sequence[LabelClass]) -> dict[str, Any]:
    """Returns nested taxa with the active classes as leaves. Classes without a line are below the root.

    Example:
        >>> classes = [LabelClass("P. major", "P. major"), LabelClass("dodo", "dodo")]
        >>> tree = taxonomy_tree({"P. major": ["Parus"]}, classes)
        >>> [child["name"] for child in tree["children"]]
        ['Parus', 'dodo']
        >>> tree["children"][0]["children"]
        [{'name': 'P. major', 'children': [], 'class': 0}]
    """
    root: dict[str, Any] = {"name": "", "children": []}
    nodes: dict[tuple[str, ...], dict[str, Any]] = {(): root}
    for class_id, entry in enumerate(classes):
        if not entry.is_active:
            continue
        path: tuple[str, ...] = ()
        for name in reversed(ranks.get(entry.name, ranks.get(entry.first_name, []))):
            if not name:  # a class without, for example, a family
                continue
            parent, path = nodes[path], (*path, name)
            if path not in nodes:
                nodes[path] = {"name": name, "children": []}
                parent["children"].append(nodes[path])
        nodes[path]["children"].append({"name": entry.name, "children": [], "class": class_id})
    return root
