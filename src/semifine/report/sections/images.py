"""Unlabeled images to review, with photos from the run's data."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError
from semifine.report.class_order import Arrangement
from semifine.report.formatting import MISSING, count, decimal, percent
from semifine.report.names import data_name
from semifine.runs.analysis import largest_first, rank_for_labeling
from semifine.runs.run import Run

Examples = Mapping[int, Sequence[NDArray[Any]]]

SIDE = 112  # shown at about half this size, so that it is sharp on dense screens
BUDGET = 400  # example pictures of classes, about 5 KB each
MAX_PER_CLASS = 4


def encode_examples(examples: Examples, classes: Sequence[int]) -> dict[int, list[str]]:
    """Data URIs of the first photos of each class; the more classes, the fewer photos of each."""
    shown = [label for label in classes if len(examples.get(label, ()))][:BUDGET]
    each = max(1, min(MAX_PER_CLASS, BUDGET // max(1, len(shown))))
    return {label: [data_uri(image) for image in examples[label][:each]] for label in shown}


def data_uri(image: NDArray[Any]) -> str:
    """The middle square of an (H, W, 3) uint8 image, as JPEG."""
    from PIL import Image

    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(np.ascontiguousarray(image[top : top + side, left : left + side]))
    if side > SIDE:
        square = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    square.save(buffer, "JPEG", quality=85, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


class RunPhotos:
    """Photos by class and by path; none, and the reason, where the data cannot be read."""

    def __init__(self, run: Run) -> None:
        self._catalog: Catalog | None = None
        self.missing = ""
        """Why there are no photos; empty where there are."""
        try:
            self._catalog = run.catalog
        except (UserError, OSError) as error:
            root = run.data.partition(":")[2]
            self.missing = str(error).replace(root, data_name(run)) if root else str(error)

    def of_classes(self) -> dict[int, list[NDArray[Any]]]:
        """A few labeled photos of each class."""
        if self._catalog is None:
            return {}
        found: dict[int, list[NDArray[Any]]] = {}
        for row in self._catalog.rows(Split.LABELED):
            photos = found.setdefault(int(self._catalog.label[row]), [])
            if len(photos) < MAX_PER_CLASS:
                photos += self._read(int(row))
        return found

    def of_samples(self, paths: Iterable[str]) -> dict[str, str]:
        """Data URIs of unlabeled photos by path, as far as they can be read."""
        wanted = {path: self._rows[path] for path in paths if path in self._rows}
        pixels = {path: self._read(row) for path, row in wanted.items()}
        return {path: data_uri(found[0]) for path, found in pixels.items() if found}

    @cached_property
    def _rows(self) -> dict[str, int]:
        if self._catalog is None:
            return {}
        return {str(self._catalog.paths[row]): int(row) for row in self._catalog.rows(Split.UNLABELED)}

    def _read(self, row: int) -> list[NDArray[Any]]:
        from semifine.data.store_files import try_decode

        assert self._catalog is not None
        decoded = try_decode(self._catalog.reader, row, SIDE)
        return [] if isinstance(decoded, str) else [decoded.pixels]


MAX_CARDS = 12
MAX_NEXT = 24
MAX_IN_FILE = 200
MAX_OTHERS = 4
NEEDED = ("path", "prediction", "confidence", "truth", "entropy_before", "entropy_after", "candidates")


@dataclass(frozen=True)
class SampleCard:
    path: str
    picture: str | None
    prediction: str
    confidence: str
    others: list[str]
    """Candidates beside the prediction."""
    more: int
    """How many there are beyond those named."""
    truth: str | None
    is_right: bool | None
    note: str


@dataclass(frozen=True)
class Gallery:
    key: str
    title: str
    explanation: str
    cards: list[SampleCard]


@dataclass(frozen=True)
class SamplesView:
    galleries: list[Gallery] = field(default_factory=list)
    next: Gallery | None = None
    next_file: str = ""
    """The list as a CSV file, in a data URI."""
    in_file: int = 0
    no_photos: str = ""


def view_samples(shown: Arrangement, photos: RunPhotos) -> SamplesView:
    """Everything that the sections about single images show; empty where the run has no facts of them."""
    run = shown.run
    columns = run.sample_columns()
    if not set(NEEDED) <= set(columns):
        return SamplesView()
    samples = run.samples(*NEEDED, *({"changes"} & set(columns)))
    places = _places(samples, run)
    following = rank_for_labeling(samples["entropy_after"], samples["prediction"], _cluster_of(shown), MAX_IN_FILE)
    listed = [place for chosen in places.values() for place in chosen] + following[:MAX_NEXT].tolist()
    pictures = photos.of_samples(dict.fromkeys(str(samples["path"][place]) for place in listed))
    maker = _CardMaker(run, samples, pictures)
    galleries = [
        Gallery(key, title, text, [maker.card(place, note) for place in places[key]])
        for key, title, text, note in GALLERIES
        if len(places[key])
    ]
    ranked = [maker.card(place, "entropy") for place in following[:MAX_NEXT]]
    text = "Images whose label leaves the most open, few of a kind: each one of a cluster on the list lowers the next."
    return SamplesView(
        galleries,
        Gallery("next", "Label these next", text, ranked) if ranked else None,
        _as_csv(following, samples, run.class_names),
        len(following),
        photos.missing,
    )


GALLERIES = (
    ("doubtful", "Most doubtful", "The prediction is spread most evenly over the classes.", "doubt"),
    ("changed", "Most often changed", "The prediction moved from class to class most often in training.", "changes"),
    ("wrong", "Wrong and confident", "The prediction is surest and yet not the hidden true class.", "confidence"),
    ("outside", "Of no known class, and confident", "The image shows none of the classes.", "confidence"),
)


def _places(samples: dict[str, NDArray[Any]], run: Run) -> dict[str, NDArray[np.int64]]:
    truth = samples["truth"]
    known = (truth >= 0) & (truth < run.num_classes)
    changes = samples.get("changes", np.zeros(len(truth)))
    return {
        "doubtful": largest_first(samples["entropy_before"], MAX_CARDS),
        "changed": largest_first(changes, MAX_CARDS, changes > 0),
        "wrong": largest_first(samples["confidence"], MAX_CARDS, known & (samples["prediction"] != truth)),
        "outside": largest_first(samples["confidence"], MAX_CARDS, truth >= run.num_classes),
    }


def _cluster_of(shown: Arrangement) -> NDArray[np.int64]:
    """(K,) the block of each class; a class alone is a block of its own."""
    cluster = np.arange(shown.run.num_classes) + len(shown.blocks)
    for place, members in enumerate(shown.blocks):
        cluster[members] = place
    return cluster


@dataclass(frozen=True)
class _CardMaker:
    run: Run
    samples: dict[str, NDArray[Any]]
    pictures: dict[str, str]

    def card(self, place: int, note: str) -> SampleCard:
        samples, names = self.samples, self.run.class_names
        path, truth = str(samples["path"][place]), int(samples["truth"][place])
        prediction = int(samples["prediction"][place])
        others = [int(label) for label in samples["candidates"][place] if label != prediction]
        notes = {
            "doubt": f"entropy {decimal(float(samples['entropy_before'][place]))}",
            "entropy": f"entropy of the label {decimal(float(samples['entropy_after'][place]))}",
            "changes": count(float(samples["changes"][place]), "change") if "changes" in samples else MISSING,
            "confidence": "",
        }
        return SampleCard(
            path=path,
            picture=self.pictures.get(path),
            prediction=names[prediction],
            confidence=percent(100 * float(samples["confidence"][place])),
            others=[names[label] for label in others[:MAX_OTHERS]],
            more=max(0, len(others) - MAX_OTHERS),
            truth=None if truth < 0 else names[truth] if truth < len(names) else "none of the classes",
            is_right=None if truth < 0 else prediction == truth,
            note=notes[note],
        )


def _as_csv(places: Sequence[int] | NDArray[np.int64], samples: dict[str, NDArray[Any]], names: Sequence[str]) -> str:
    """``path,label`` with the label to be filled in, as ``--labels`` takes it, and what the model thinks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", "prediction", "candidates"])
    for place in places:
        candidates = "; ".join(names[int(label)] for label in samples["candidates"][place])
        writer.writerow([samples["path"][place], "", names[int(samples["prediction"][place])], candidates])
    return "data:text/csv;charset=utf-8," + quote(text.getvalue())
