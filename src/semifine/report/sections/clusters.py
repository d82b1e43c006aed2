"""The learned clusters with photos, and the pairs of classes that are confused most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semifine.report.class_order import Arrangement
from semifine.report.formatting import count
from semifine.report.sections.images import Examples, encode_examples
from semifine.runs.analysis import ConfusedPair, fraction_within, most_confused_pairs

MAX_CARDS = 60
MAX_CLASSES_PER_CARD = 12
MAX_PAIRS = 10


@dataclass(frozen=True)
class ClassView:
    label: int
    name: str
    group: str | None
    pictures: list[str]


@dataclass(frozen=True)
class ClusterCard:
    title: str
    note: str
    classes: list[ClassView]
    same_group: bool
    """All classes are of the group that the note names."""
    more: list[str]
    """Names of the classes for which the card has no room."""


@dataclass(frozen=True)
class PairView:
    first: ClassView
    second: ClassView
    transitions: str | None
    mistakes: str | None
    same_group: bool | None


@dataclass(frozen=True)
class ClustersView:
    cards: list[ClusterCard]
    rest: list[list[str]]
    """Names in the clusters beyond the last card."""
    alone: list[ClassView]
    photos: int
    """The most photos that a class has here."""
    pairs: list[PairView]
    within_clusters: float | None
    within_groups: float | None


def view_clusters(shown: Arrangement, examples: Examples) -> ClustersView:
    """Everything that the section about clusters shows."""
    run = shown.run
    blocks = shown.blocks if shown.kind == "clusters" else []
    pairs = _pairs(shown)
    visible = [label for members in blocks[:MAX_CARDS] for label in members[:MAX_CLASSES_PER_CARD]]
    in_pairs = [label for pair in pairs for label in (pair.first, pair.second)]
    alone = shown.alone if shown.kind == "clusters" else []
    pictures = encode_examples(examples, list(dict.fromkeys([*in_pairs, *visible, *alone])))
    views = [
        ClassView(label, name, run.class_groups[label] if run.class_groups else None, pictures.get(label, []))
        for label, name in enumerate(run.class_names)
    ]
    return ClustersView(
        cards=[
            _card(place, [views[label] for label in members]) for place, members in enumerate(blocks[:MAX_CARDS], 1)
        ],
        rest=[[run.class_names[label] for label in members] for members in blocks[MAX_CARDS:]],
        alone=[views[label] for label in alone],
        photos=max((len(encoded) for encoded in pictures.values()), default=0),
        pairs=[_pair(pair, views, shown) for pair in pairs],
        within_clusters=_share_within_clusters(shown),
        within_groups=_share_within_groups(shown),
    )


def _card(number: int, classes: list[ClassView]) -> ClusterCard:
    groups = list(dict.fromkeys(view.group for view in classes if view.group is not None))
    note = ""
    if groups:
        note = f"all of {groups[0]}" if len(groups) == 1 else f"of {count(len(groups), 'group')}"
    shown, hidden = classes[:MAX_CLASSES_PER_CARD], classes[MAX_CLASSES_PER_CARD:]
    return ClusterCard(
        title=f"Cluster {number}: {count(len(classes), 'class', 'classes')}",
        note=note,
        classes=shown,
        same_group=len(groups) == 1,
        more=[view.name for view in hidden],
    )


def _pairs(shown: Arrangement) -> Sequence[ConfusedPair]:
    counts = shown.run.transitions if shown.kind == "clusters" else shown.run.confusion
    return [] if counts is None else most_confused_pairs(counts, MAX_PAIRS)


def _pair(pair: ConfusedPair, views: Sequence[ClassView], shown: Arrangement) -> PairView:
    run = shown.run
    first, second = views[pair.first], views[pair.second]
    mistakes = None
    if run.confusion is not None:
        mistakes = f"{run.confusion[pair.first, pair.second]} + {run.confusion[pair.second, pair.first]}"
    return PairView(
        first=first,
        second=second,
        transitions=f"{pair.first_to_second} + {pair.second_to_first}" if shown.kind == "clusters" else None,
        mistakes=mistakes,
        same_group=None if first.group is None else first.group == second.group,
    )


def _share_within_clusters(shown: Arrangement) -> float | None:
    if shown.kind != "clusters" or shown.run.transitions is None:
        return None
    block = {label: place for place, members in enumerate(shown.blocks) for label in members}
    # A class alone shares its block with none.
    labels = [block.get(label, -1 - label) for label in range(shown.run.num_classes)]
    return fraction_within(shown.run.transitions, labels)


def _share_within_groups(shown: Arrangement) -> float | None:
    if shown.kind != "clusters" or shown.run.transitions is None or not shown.run.class_groups:
        return None
    return fraction_within(shown.run.transitions, shown.run.class_groups)
