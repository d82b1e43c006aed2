"""Section: the learned clusters with photos, and the most confused pairs of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from semifine.report.class_order import ClassOrder, describe_groups
from semifine.report.formatting import count
from semifine.report.photos import RunPhotos, encode_class_photos
from semifine.report.section import ReportData, Section
from semifine.runs.analysis import ConfusedPair, fraction_within, most_confused_pairs

MAX_CARDS = 60
MAX_CLASSES_PER_CARD = 12
MAX_PAIRS = 10

TEMPLATE = """
{% macro class_view(view, with_group=true) %}
<figure class="class">
{% if view.photos %}
<div class="photos">
{% for photo in view.photos %}
<img src="{{ photo }}" alt="Example of {{ view.name }}" data-class="{{ view.label }}" decoding="async">
{% endfor %}
</div>
{% endif %}
<figcaption><span class="name">{{ view.name }}</span>
{%- if view.group and with_group %}<span class="group">{{ view.group }}</span>{% endif %}</figcaption>
</figure>
{% endmacro %}
{% macro half(view) %}
<span class="half">{% if view.photos %}<img src="{{ view.photos[0] }}" alt="">{% endif %}
<span>{{ view.name }}</span></span>
{% endmacro %}
{% if clusters and (shown.kind == "clusters" or clusters.pairs) %}
<section id="clusters">
<h2>{{ "Learned clusters" if shown.kind == "clusters" else "Most confused pairs" }}</h2>
{% if shown.kind == "clusters" %}
<div class="prose">
<p>The run <strong>{{ shown.label }}</strong> counted how often its prediction for an image changed from one class to
another. These counts form {{ shown.k }} clusters ({{ shown.reason }}) of classes that the model confuses.
{% if clusters.within_clusters is not none %}
{{ (100 * clusters.within_clusters)|percent }} of all changes are within a cluster
{%- if clusters.within_groups is not none %} and {{ (100 * clusters.within_groups)|percent }} within a group{% endif %}.
{% endif %}
Each cluster starts with its central class.</p>
{% if groups %}<p class="small">Groups: {{ groups }}.</p>{% endif %}
</div>
<div class="cards">
{% for card in clusters.cards %}
<article class="card">
<h3>{{ card.title }}{% if card.note %} <span class="note">{{ card.note }}</span>{% endif %}</h3>
<div class="classes" style="--photos: {{ clusters.photos }}">
{% for view in card.classes %}
{{ class_view(view, not card.same_group) }}
{% endfor %}
</div>
{% if card.more %}
<p class="small">And {{ card.more|join(", ") }}.</p>
{% endif %}
</article>
{% endfor %}
</div>
{% if clusters.rest %}
<details>
<summary>{{ clusters.rest|length }} more clusters</summary>
<ul class="plain-list">
{% for names in clusters.rest %}
<li>{{ names|join(", ") }}</li>
{% endfor %}
</ul>
</details>
{% endif %}
{% if clusters.singles %}
<details{{ " open" if clusters.singles|length <= 12 }}>
<summary>Classes without a cluster: {{ clusters.singles|length }} of {{ shown.run.num_classes }}</summary>
<p class="small">The only class of a cluster, or a class without changes to other classes of its cluster.</p>
<div class="classes" style="--photos: {{ clusters.photos }}">
{% for view in clusters.singles %}
{{ class_view(view) }}
{% endfor %}
</div>
</details>
{% endif %}
{% endif %}
{% if clusters.pairs %}
{% if shown.kind == "clusters" %}<h3>Most confused pairs</h3>{% endif %}
<div class="scroll" tabindex="0" role="region" aria-label="Most confused pairs">
<table class="pairs">
<thead>
<tr>
<th scope="col">Classes</th>
{% if shown.kind == "clusters" %}
<th scope="col" class="number">Changes in training<small>there + back</small></th>
{% endif %}
{% if shown.confusion is not none %}
<th scope="col" class="number">Errors<small>{{ shown.confusion_images }}, there + back</small></th>
{% endif %}
{% if groups %}
<th scope="col">Same group</th>
{% endif %}
</tr>
</thead>
<tbody>
{% for pair in clusters.pairs %}
<tr>
<th scope="row">
<span class="pair">{{ half(pair.first) }}<span aria-label="and">↔</span>{{ half(pair.second) }}</span>
</th>
{% if pair.transitions is not none %}
<td class="number" data-title="Changes in training">{{ pair.transitions }}</td>
{% endif %}
{% if pair.errors is not none %}
<td class="number" data-title="Errors">{{ pair.errors }}</td>
{% endif %}
{% if pair.same_group is not none %}
<td data-title="Same group">{{ "yes" if pair.same_group else "no" }}</td>
{% endif %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endif %}
</section>
{% endif %}
"""


@dataclass(frozen=True)
class ClassView:
    """A class with its photos as data URIs."""

    label: int
    name: str
    group: str | None
    photos: list[str]


@dataclass(frozen=True)
class ClusterCard:
    """A cluster of classes."""

    title: str
    note: str
    classes: list[ClassView]
    same_group: bool
    """Whether all classes belong to the group that the note names."""
    more: list[str]
    """Names of the classes that do not fit on the card."""


@dataclass(frozen=True)
class PairView:
    """A pair of confused classes."""

    first: ClassView
    second: ClassView
    transitions: str | None
    errors: str | None
    same_group: bool | None


@dataclass(frozen=True)
class ClustersView:
    """Content of the section."""

    cards: list[ClusterCard]
    rest: list[list[str]]
    """Class names of the clusters after the last card."""
    singles: list[ClassView]
    photos: int
    """Largest number of photos of a class."""
    pairs: list[PairView]
    within_clusters: float | None
    within_groups: float | None


def context(report: ReportData) -> dict[str, Any]:
    shown = report.class_order
    if shown is None:
        return {"shown": None, "clusters": None}
    return {
        "shown": shown,
        "clusters": view_clusters(shown, RunPhotos(shown.run).of_classes()),
        "groups": describe_groups(shown.run) if shown.run.class_groups else "",
    }


SECTION = Section({"clusters": "Clusters"}, TEMPLATE, context)


def view_clusters(shown: ClassOrder, class_photos: Mapping[int, Sequence[NDArray[Any]]]) -> ClustersView:
    """Returns the content of the section."""
    run = shown.run
    blocks = shown.blocks if shown.kind == "clusters" else []
    singles = shown.singles if shown.kind == "clusters" else []
    pairs = _pairs(shown)
    on_cards = [label for members in blocks[:MAX_CARDS] for label in members[:MAX_CLASSES_PER_CARD]]
    in_pairs = [label for pair in pairs for label in (pair.first, pair.second)]
    photos = encode_class_photos(class_photos, list(dict.fromkeys([*in_pairs, *on_cards, *singles])))
    views = [
        ClassView(label, name, run.class_groups[label] if run.class_groups else None, photos.get(label, []))
        for label, name in enumerate(run.class_names)
    ]
    return ClustersView(
        cards=[
            _card(number, [views[label] for label in members]) for number, members in enumerate(blocks[:MAX_CARDS], 1)
        ],
        rest=[[run.class_names[label] for label in members] for members in blocks[MAX_CARDS:]],
        singles=[views[label] for label in singles],
        photos=max((len(encoded) for encoded in photos.values()), default=0),
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


def _pairs(shown: ClassOrder) -> Sequence[ConfusedPair]:
    counts = shown.run.transitions if shown.kind == "clusters" else shown.confusion
    return [] if counts is None else most_confused_pairs(counts, MAX_PAIRS)


def _pair(pair: ConfusedPair, views: Sequence[ClassView], shown: ClassOrder) -> PairView:
    first, second = views[pair.first], views[pair.second]
    confusion = shown.confusion
    errors = None
    if confusion is not None:
        errors = f"{confusion[pair.first, pair.second]} + {confusion[pair.second, pair.first]}"
    return PairView(
        first=first,
        second=second,
        transitions=f"{pair.first_to_second} + {pair.second_to_first}" if shown.kind == "clusters" else None,
        errors=errors,
        same_group=None if first.group is None else first.group == second.group,
    )


def _share_within_clusters(shown: ClassOrder) -> float | None:
    if shown.kind != "clusters" or shown.run.transitions is None:
        return None
    block = {label: index for index, members in enumerate(shown.blocks) for label in members}
    # Negative labels are unique: a class without a block shares it with no other class.
    labels = [block.get(label, -1 - label) for label in range(shown.run.num_classes)]
    return fraction_within(shown.run.transitions, labels)


def _share_within_groups(shown: ClassOrder) -> float | None:
    if shown.kind != "clusters" or shown.run.transitions is None or not shown.run.class_groups:
        return None
    return fraction_within(shown.run.transitions, shown.run.class_groups)
