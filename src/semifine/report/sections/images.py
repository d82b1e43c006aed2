"""Sections: unlabeled images to review, and the images to label next."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from semifine.data.csv_table import write_csv
from semifine.report.class_order import ClassOrder
from semifine.report.formatting import MISSING, count, decimal, percent
from semifine.report.photos import RunPhotos
from semifine.report.section import ReportData, Section
from semifine.runs.analysis import largest_first, rank_for_labeling
from semifine.runs.run import Run

MAX_CARDS = 12
MAX_NEXT = 24
MAX_IN_FILE = 200
MAX_OTHERS = 4
COLUMNS = ("path", "prediction", "confidence", "truth", "entropy_before", "entropy_after", "candidates")

TEMPLATE = """
{% macro sample_card(card, number=none) %}
<figure class="sample">
{% if card.photo %}
<img src="{{ card.photo }}" alt="Unlabeled image, predicted {{ card.prediction }}" decoding="async">
{% else %}
<div class="no-photo" aria-hidden="true"></div>
{% endif %}
<figcaption>
<span class="name">{% if number %}{{ number }}. {% endif %}{{ card.prediction }}
<span class="group">{{ card.confidence }}</span></span>
{% if card.truth %}
<span class="truth {{ "right" if card.is_right else "false" }}">
{{ "✓" if card.is_right else "✗" }} {{ card.truth }}</span>
{% endif %}
{% if card.others %}
<span class="group">or {{ card.others|join(", ") }}{% if card.more %} and {{ card.more }} more{% endif %}</span>
{% endif %}
{% if card.note %}<span class="group">{{ card.note }}</span>{% endif %}
<span class="path" title="{{ card.path }}"><bdi dir="ltr">{{ card.path }}</bdi></span>
</figcaption>
</figure>
{% endmacro %}
{% if samples.galleries %}
<section id="images">
<h2>Images to review</h2>
<div class="prose">
<p>Unlabeled images with the final prediction of <strong>{{ shown.label }}</strong> and its confidence
{%- if samples.galleries|selectattr("key", "equalto", "wrong")|list %}, and the hidden true class{% endif %}.
{% if samples.no_photos %}<em>No photos: {{ samples.no_photos }}</em>{% endif %}</p>
</div>
{% for gallery in samples.galleries %}
<details class="gallery" id="gallery-{{ gallery.key }}"{{ " open" if loop.first or gallery.key == "wrong" }}>
<summary>{{ gallery.title }} <span class="note">{{ gallery.explanation }}</span></summary>
<div class="samples">{% for card in gallery.cards %}{{ sample_card(card) }}{% endfor %}</div>
</details>
{% endfor %}
</section>
{% endif %}
{% if samples.next %}
<section id="next">
<h2>Label these next</h2>
<div class="prose">
<p>{{ samples.next.explanation }}
<a download="label-next.csv" href="{{ samples.csv_uri }}">Download the first {{ samples.in_file }} as a CSV file</a>,
fill in its column <em>label</em>, and continue training with <code>--labels label-next.csv</code>.</p>
</div>
<div class="samples ranked">{% for card in samples.next.cards %}{{ sample_card(card, loop.index) }}{% endfor %}</div>
</section>
{% endif %}
"""


@dataclass(frozen=True)
class SampleCard:
    """An unlabeled image with its prediction, formatted."""

    path: str
    photo: str | None
    """Data URI."""
    prediction: str
    confidence: str
    others: list[str]
    """Candidate classes besides the prediction."""
    more: int
    """Number of candidates that are not listed."""
    truth: str | None
    is_right: bool | None
    note: str


@dataclass(frozen=True)
class Gallery:
    """Images that share a property."""

    key: str
    title: str
    explanation: str
    cards: list[SampleCard]


@dataclass(frozen=True)
class SamplesView:
    """Content of both sections."""

    galleries: list[Gallery] = field(default_factory=list)
    next: Gallery | None = None
    csv_uri: str = ""
    """Data URI of the CSV file with the images to label next."""
    in_file: int = 0
    no_photos: str = ""


def context(report: ReportData) -> dict[str, Any]:
    shown = report.class_order
    samples = SamplesView() if shown is None else view_samples(shown, RunPhotos(shown.run))
    return {"shown": shown, "samples": samples}


SECTION = Section({"images": "Images", "next": "Label next"}, TEMPLATE, context)


def view_samples(shown: ClassOrder, photos: RunPhotos) -> SamplesView:
    """Returns the content of both sections; empty if the run has no statistics of unlabeled images."""
    run = shown.run
    columns = run.sample_columns()
    if not set(COLUMNS) <= set(columns):
        return SamplesView()
    samples = run.samples(*COLUMNS, *({"changes"} & set(columns)))
    chosen = _choose_samples(samples, run)
    # A hard label has no entropy, so methods that make hard labels rank by the entropy of the prediction.
    column = "entropy_after" if (samples["entropy_after"] > 0).any() else "entropy_before"
    ranked = rank_for_labeling(samples[column], samples["prediction"], _cluster_of_class(shown), MAX_IN_FILE)
    shown_samples = [index for indices in chosen.values() for index in indices] + ranked[:MAX_NEXT].tolist()
    encoded = photos.of_samples(dict.fromkeys(str(samples["path"][index]) for index in shown_samples))
    maker = _CardMaker(run, samples, encoded)
    galleries = [
        Gallery(key, title, text, [maker.card(index, note) for index in chosen[key]])
        for key, title, text, note in GALLERIES
        if len(chosen[key])
    ]
    note, entropy = ("entropy", "label") if column == "entropy_after" else ("uncertainty", "prediction")
    cards = [maker.card(index, note) for index in ranked[:MAX_NEXT]]
    text = (
        f"Images with the highest {entropy} entropy. Each listed image lowers the rank of other images of its cluster, "
        "so that the list is diverse."
    )
    return SamplesView(
        galleries,
        Gallery("next", "Label these next", text, cards) if cards else None,
        _csv_uri(ranked, samples, run.class_names),
        len(ranked),
        photos.missing,
    )


GALLERIES = (
    ("uncertain", "Most uncertain", "Predictions with the highest entropy.", "uncertainty"),
    ("changed", "Most often changed", "Images whose predicted class changed most often in training.", "changes"),
    ("wrong", "Confident errors", "Wrong predictions with the highest confidence.", "confidence"),
    ("outside", "Confident predictions for other classes", "Images that show none of the classes.", "confidence"),
)


def _choose_samples(samples: dict[str, NDArray[Any]], run: Run) -> dict[str, NDArray[np.int64]]:
    """Returns the indices of the samples in each gallery."""
    truth = samples["truth"]
    known = (truth >= 0) & (truth < run.num_classes)
    changes = samples.get("changes", np.zeros(len(truth)))
    return {
        "uncertain": largest_first(samples["entropy_before"], MAX_CARDS),
        "changed": largest_first(changes, MAX_CARDS, changes > 0),
        "wrong": largest_first(samples["confidence"], MAX_CARDS, known & (samples["prediction"] != truth)),
        "outside": largest_first(samples["confidence"], MAX_CARDS, truth >= run.num_classes),
    }


def _cluster_of_class(shown: ClassOrder) -> NDArray[np.int64]:
    """Returns the `(classes,)` block of each class. A class without a block is its own block."""
    cluster = np.arange(shown.run.num_classes) + len(shown.blocks)
    for index, members in enumerate(shown.blocks):
        cluster[members] = index
    return cluster


@dataclass(frozen=True)
class _CardMaker:
    run: Run
    samples: dict[str, NDArray[Any]]
    photos: dict[str, str]

    def card(self, index: int, note: str) -> SampleCard:
        samples, names = self.samples, self.run.class_names
        path, truth = str(samples["path"][index]), int(samples["truth"][index])
        prediction = int(samples["prediction"][index])
        others = [int(label) for label in samples["candidates"][index] if label != prediction]
        notes = {
            "uncertainty": f"entropy {decimal(float(samples['entropy_before'][index]))}",
            "entropy": f"entropy of the label {decimal(float(samples['entropy_after'][index]))}",
            "changes": count(float(samples["changes"][index]), "change") if "changes" in samples else MISSING,
            "confidence": "",
        }
        return SampleCard(
            path=path,
            photo=self.photos.get(path),
            prediction=names[prediction],
            confidence=percent(100 * float(samples["confidence"][index])),
            others=[names[label] for label in others[:MAX_OTHERS]],
            more=max(0, len(others) - MAX_OTHERS),
            truth=None if truth < 0 else names[truth] if truth < len(names) else "none of the classes",
            is_right=None if truth < 0 else prediction == truth,
            note=notes[note],
        )


def _csv_uri(indices: Sequence[int] | NDArray[np.int64], samples: dict[str, NDArray[Any]], names: Sequence[str]) -> str:
    """Returns a CSV file for ``--labels`` as a data URI. Its column ``label`` is empty."""
    text = io.StringIO()
    rows = [("path", "label", "prediction", "candidates")]
    for index in indices:
        candidates = "; ".join(names[int(label)] for label in samples["candidates"][index])
        rows.append((samples["path"][index], "", names[int(samples["prediction"][index])], candidates))
    write_csv(text, rows)
    return "data:text/csv;charset=utf-8," + quote(text.getvalue())
