"""Section: labels of training images that look wrong, by confident learning on the cross-validated probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semifine.report.formatting import count, percent
from semifine.report.photos import RunPhotos
from semifine.report.section import ReportData, Section
from semifine.runs.run import Run

MAX_CARDS = 24

TEMPLATE = """
{% if check %}
<section id="check">
<h2>Labels to check</h2>
<div class="prose">
<p>{{ check.found }} contradict the probe: fitted without the image, it predicts another class with a probability that
is typical of that class (confident learning). These are wrong labels, or correct labels of photos that the probe gets
wrong, so look at each one; the most suspicious ones come first. <code>label_check.csv</code> in the run folder lists
all labels.
{% if check.no_photos %}<em>No photos: {{ check.no_photos }}</em>{% endif %}</p>
</div>
<div class="samples ranked">
{% for card in check.cards %}
<figure class="sample">
{% if card.photo %}
<img src="{{ card.photo }}" alt="Image labeled {{ card.label }}, predicted {{ card.prediction }}" decoding="async">
{% else %}
<div class="no-photo" aria-hidden="true"></div>
{% endif %}
<figcaption>
<span class="name">{{ loop.index }}. labeled {{ card.label }}
<span class="group">{{ card.label_probability }}</span></span>
<span>predicted {{ card.prediction }} <span class="group">{{ card.probability }}</span></span>
<span class="path" title="{{ card.path }}"><bdi dir="ltr">{{ card.path }}</bdi></span>
</figcaption>
</figure>
{% endfor %}
</div>
</section>
{% endif %}
"""


@dataclass(frozen=True)
class SuspectCard:
    """A labeled image whose label looks wrong, formatted."""

    path: str
    photo: str | None
    """Data URI."""
    label: str
    label_probability: str
    prediction: str
    probability: str


@dataclass(frozen=True)
class LabelCheckView:
    """Content of the section."""

    found: str
    cards: list[SuspectCard]
    no_photos: str


def context(report: ReportData) -> dict[str, Any]:
    views = (view_label_check(run, RunPhotos(run)) for run in report.runs if run.label_check is not None)
    return {"check": next((view for view in views if view is not None), None)}


SECTION = Section({"check": "Check labels"}, TEMPLATE, context)


def view_label_check(run: Run, photos: RunPhotos) -> LabelCheckView | None:
    """Returns the suspect labels of a run; None if there are none."""
    check = run.label_check
    if check is None or not check.num_suspects:
        return None
    shown = range(min(check.num_suspects, MAX_CARDS))
    encoded = photos.of_samples(dict.fromkeys(check.paths[index] for index in shown))
    names = run.class_names
    cards = [
        SuspectCard(
            path=check.paths[index].encode("utf-8", "replace").decode(),
            photo=encoded.get(check.paths[index]),
            label=names[check.label[index]],
            label_probability=percent(100 * float(check.label_probability[index])),
            prediction=names[check.prediction[index]],
            probability=percent(100 * float(check.prediction_probability[index])),
        )
        for index in shown
    ]
    return LabelCheckView(f"{check.num_suspects} of {count(len(check.paths), 'label')}", cards, photos.missing)
