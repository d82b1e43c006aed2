"""Requests and responses of the studio's pages, checked for their form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from semifine.data.label_log import CurrentLabel, Event
from semifine.errors import UserError
from semifine.studio.jobs import accuracy_in
from semifine.studio.queue import STATES, LabelQueue, Said, Wanted, state_of
from semifine.studio.snapshot import ModelSnapshot, nearest


def read_wanted(query: Mapping[str, str], snapshot: ModelSnapshot) -> Wanted:
    """The queue that is asked for; raises UserError for what does not exist."""
    state, order = query.get("state", "waiting"), query.get("order", "worth")
    if state not in STATES or order not in snapshot.orders:
        raise UserError(f"There is no queue of '{state}' images by '{order}'.")
    return Wanted(
        person=query.get("person", ""),
        state=state,
        order=order,
        class_id=number(query["class"], "class") if query.get("class") else None,
        cluster=number(query["cluster"], "cluster") if query.get("cluster") else None,
        text=query.get("text", ""),
    )


def read_said(body: dict[str, Any]) -> Said:
    """What a person says, checked for its form."""
    images = body.get("images")
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise UserError("'images' must be a list of images, each with its id and what was seen of it.")
    class_name = body.get("class")
    if class_name is not None and not isinstance(class_name, str):
        raise UserError("'class' must be the name of a class.")
    return Said(
        person=text(body, "person"),
        kind=text(body, "kind"),
        places=[number(image.get("id"), "id") for image in images],
        seen=[number(image.get("seen"), "seen") for image in images],
        class_name=class_name,
        beside=body.get("beside") is True,
    )


def read_iterations(value: Any) -> int | None:
    if value is None:
        return None
    steps = number(value, "iterations")
    if steps < 1:
        raise UserError("A training has at least one step.")
    return steps


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be text.")
    return value


def number(value: Any, name: str) -> int:
    """A whole number that is not negative, as JSON or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    raise UserError(f"'{name}' must be a whole number.")


EXAMPLES = 3
LOOK_ALIKE = 0.95
"""From this cosine on, images with the same prediction count as nearly identical."""
MOST_LOOK_ALIKES = 24
PHOTOS_OF_A_CLASS = 4


def show_image(label_queue: LabelQueue, place: int) -> dict[str, Any]:
    """One image with its candidates, the examples beside them, and what people said."""
    seen = label_queue.snapshot
    given = label_queue.given_labels()
    return {
        "run": seen.run.name,
        "id": place,
        "row": int(seen.rows[place]),
        "path": label_queue.path(place),
        "doubt": round(float(seen.doubt[place]), 4),
        "cluster": int(seen.map.cluster_of[seen.prediction[place]]),
        "candidates": [
            {
                "name": seen.class_names[c],
                "probability": round(float(seen.probs[place, c]), 4),
                "examples": examples(label_queue, place, c, given),
            }
            for c in seen.short_list(place)
        ],
        "look_alikes": look_alikes(label_queue, place),
        **show_standing(label_queue.current_label(place)),
    }


def examples(label_queue: LabelQueue, place: int, class_id: int, given_labels: list[tuple[int, str]]) -> list[int]:
    """Rows of the labeled images of a class that look most like the image; labels of people count."""
    seen = label_queue.snapshot
    came = np.flatnonzero(seen.catalog.label[seen.known_rows] == class_id)
    name = seen.class_names[class_id]
    given = np.array([other for other, label in given_labels if label == name and other != place], np.int64)
    rows = np.concatenate([seen.known_rows[came], seen.rows[given]])
    features = np.concatenate([seen.known_features[came], seen.features[given]])
    return [int(row) for row in rows[nearest(features, seen.features[place], EXAMPLES)]]


def look_alikes(label_queue: LabelQueue, place: int) -> list[dict[str, int]]:
    """Waiting images that are nearly the same, with what the page must say it has seen of them."""
    seen = label_queue.snapshot
    same = (seen.prediction == seen.prediction[place]) & label_queue.waiting()
    same[place] = False
    others = np.flatnonzero(same)
    cosine = seen.features[others] @ seen.features[place]
    close = others[np.argsort(-cosine, kind="stable")][: int((cosine >= LOOK_ALIKE).sum())]
    return [
        {"id": int(other), "row": int(seen.rows[other]), "seen": label_queue.current_label(int(other)).last}
        for other in close[:MOST_LOOK_ALIKES]
    ]


def show_standing(here: CurrentLabel) -> dict[str, Any]:
    """What holds for an image."""
    return {
        "seen": here.last,
        "state": state_of(here),
        "label": here.label,
        "verdicts": [_line(event) for event in here.verdicts],
        "replaced": [{**_line(gone.old), "by": _line(gone.by)} for gone in here.replaced],
        "passed": [_line(event) for event in here.passed],
    }


def _line(event: Event) -> dict[str, Any]:
    return {"number": event.number, "person": event.person, "kind": event.kind, "class": event.class_name}


def show_overview(label_queue: LabelQueue) -> dict[str, Any]:
    """What is learned, what is confused, and how far people have come."""
    seen = label_queue.snapshot
    prediction, confused = seen.prediction, seen.map
    came = np.bincount(seen.catalog.label[seen.known_rows], minlength=len(seen.class_names))
    given = np.zeros(len(seen.class_names), np.int64)
    number_of = {name: number for number, name in enumerate(seen.class_names)}
    for _, name in label_queue.given_labels():
        if name in number_of:  # the log may know classes of before
            given[number_of[name]] += 1
    waits = label_queue.waiting()
    waiting = np.bincount(prediction[waits], minlength=len(seen.class_names))
    doubt = np.bincount(prediction[waits], weights=seen.doubt[waits], minlength=len(seen.class_names))
    groups = seen.catalog.class_groups
    return {
        "run": seen.run.name,
        "last": label_queue.last,
        "method": seen.result["method"],
        "accuracy": accuracy_in(seen.result),
        "images": len(seen.rows),
        "counts": label_queue.counts(),
        "people": label_queue.people(),
        "classes": [
            {
                "name": name,
                "group": groups[c] if groups else None,
                "cluster": int(confused.cluster_of[c]),
                "position": [round(float(x), 4) for x in confused.position[c]],
                "labeled": int(came[c]),
                "given": int(given[c]),
                "predicted": int((prediction == c).sum()),
                "waiting": int(waiting[c]),
                "doubt": round(float(doubt[c]), 2),
                "photos": _photos(label_queue, c),
            }
            for c, name in enumerate(seen.class_names)
        ],
        "clusters": confused.clusters,
        "pairs": [[pair.first, pair.second, pair.total] for pair in confused.pairs],
    }


def _photos(label_queue: LabelQueue, class_id: int) -> list[int]:
    seen = label_queue.snapshot
    came = seen.known_rows[seen.catalog.label[seen.known_rows] == class_id]
    return [int(row) for row in came[:PHOTOS_OF_A_CLASS]]
