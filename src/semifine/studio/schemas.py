"""JSON requests and responses of the studio's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.label_events import CurrentLabel, Event
from semifine.errors import UserError
from semifine.inference.tables import printable
from semifine.studio.class_changes import ClassChange
from semifine.studio.jobs import TrainingOptions, final_accuracy
from semifine.studio.metadata import parse_date
from semifine.studio.queue import ALL_STATES, STATES, Answer, LabelQueue, QueueFilter, state_of
from semifine.studio.snapshot import Indices, ModelSnapshot, SuspectLabel, nearest_neighbors


def parse_filter(query: Mapping[str, str], snapshot: ModelSnapshot) -> QueueFilter:
    """Parses a query string. Raises ``UserError`` for unknown states and orders."""
    order = query.get("order", "informative")
    if order not in snapshot.orders:
        raise UserError(f"The order '{order}' is unknown.")
    return replace(parse_grid_filter(query), order=order)


def parse_grid_filter(query: Mapping[str, str]) -> QueueFilter:
    """Parses the filter of a query string, without its order. Raises ``UserError`` for unknown states."""
    state = query.get("state", "waiting")
    if state not in (*STATES, ALL_STATES):
        raise UserError(f"The state '{state}' is unknown.")
    return QueueFilter(
        person=query.get("person", ""),
        state=state,
        class_id=parse_integer(query["class"], "class") if query.get("class") else None,
        cluster=parse_integer(query["cluster"], "cluster") if query.get("cluster") else None,
        text=query.get("text", ""),
        after=parse_date(query.get("after", ""), "after"),
        before=parse_date(query.get("before", ""), "before"),
    )


def parse_answer(body: dict[str, Any]) -> Answer:
    """Parses the answer of a person."""
    images = body.get("images")
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise UserError("'images' must be a list of objects with the keys 'id' and 'seen'.")
    class_name = body.get("class")
    if class_name is not None and not isinstance(class_name, str):
        raise UserError("'class' must be the name of a class.")
    return Answer(
        person=parse_text(body, "person"),
        kind=parse_text(body, "kind"),
        indices=[parse_integer(image.get("id"), "id") for image in images],
        seen=[parse_integer(image.get("seen"), "seen") for image in images],
        class_name=class_name,
        keep_both=body.get("keep_both") is True,
    )


def parse_class_change(body: dict[str, Any]) -> ClassChange:
    """Parses a change of the list of classes."""
    to = parse_text(body, "to") if body.get("to") is not None else None
    return ClassChange(parse_text(body, "person"), parse_text(body, "action"), parse_text(body, "name"), to)


def parse_training_options(body: dict[str, Any]) -> TrainingOptions:
    """Parses the form of the training page."""
    value = body.get("iterations")
    iterations = None if value is None else parse_integer(value, "iterations")
    if iterations == 0:
        raise UserError("'iterations' must be at least 1.")
    return TrainingOptions(from_weights=bool(body.get("from_weights", True)), iterations=iterations)


def parse_text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be text.")
    return value


def parse_integer(value: Any, name: str) -> int:
    """Parses a non-negative integer, given as a JSON number or as text.

    Example:
        >>> parse_integer("12", "count")
        12
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    raise UserError(f"'{name}' must be a non-negative integer.")


NUM_EXAMPLES = 3
LOOK_ALIKE_COSINE = 0.95
"""Images with the same prediction and at least this cosine similarity count as look-alikes."""
MAX_LOOK_ALIKES = 24
PHOTOS_PER_CLASS = 4
MAX_SUSPECTS = 200
"""Suspect labels on the overview page."""


def serialize_image(label_queue: LabelQueue, index: int) -> dict[str, Any]:
    """Returns an image with its candidates, example photos, look-alikes and answers."""
    snapshot = label_queue.snapshot
    labels, names = label_queue.agreed_labels(), label_queue.class_names
    shown = offered_candidates(label_queue, index)
    return {
        "run": snapshot.run.name,
        "id": index,
        "row": int(snapshot.rows[index]),
        "path": label_queue.path(index),
        "uncertainty": round(float(snapshot.uncertainty[index]), 4),
        "cluster": int(snapshot.group[index]),
        "candidates": [
            {
                "id": c,
                "name": names[c],
                "probability": round(float(snapshot.probs[index, c]), 4),
                "examples": find_examples(label_queue, index, c, labels),
            }
            for c in shown
        ],
        "look_alikes": find_look_alikes(label_queue, index),
        **serialize_label(label_queue.current_label(index)),
    }


def offered_candidates(label_queue: LabelQueue, index: int) -> list[int]:
    """Returns the class ids to choose from, most probable first, without classes that were retired or merged."""
    active = label_queue.is_active()
    return [c for c in label_queue.snapshot.candidates(index) if active[c]]


def find_examples(label_queue: LabelQueue, index: int, class_id: int, labels: list[tuple[int, str]]) -> list[int]:
    """Returns the catalog rows of the labeled images of a class, new labels included, most similar to an image."""
    snapshot = label_queue.snapshot
    final = label_queue.final_classes()
    of_class = np.flatnonzero(final[snapshot.catalog.label[snapshot.labeled_rows]] == class_id)
    class_name = label_queue.class_names[class_id]
    new = np.array([other for other, name in labels if name == class_name and other != index], np.int64)
    rows = np.concatenate([snapshot.labeled_rows[of_class], snapshot.rows[new]])
    features = np.concatenate([snapshot.labeled_features[of_class], snapshot.features[new]])
    ranked = rows[nearest_neighbors(features, snapshot.features[index], len(rows))]
    return distinct_photos(snapshot, ranked, NUM_EXAMPLES, without=label_queue.path(index))


def distinct_photos(snapshot: ModelSnapshot, rows: Indices, count: int, without: str = "") -> list[int]:
    """Returns the first rows with different paths.

    After a training with labels of the studio, a photo has two rows: the unlabeled image and its labeled copy.
    """
    seen = {without}
    chosen: list[int] = []
    for row in rows:
        path = str(snapshot.catalog.paths[row])
        if path not in seen:
            chosen.append(int(row))
            seen.add(path)
        if len(chosen) == count:
            break
    return chosen


def find_look_alikes(label_queue: LabelQueue, index: int) -> list[dict[str, int]]:
    """Returns the waiting images that are nearly identical to an image, most similar first."""
    snapshot = label_queue.snapshot
    same_prediction = (snapshot.prediction == snapshot.prediction[index]) & label_queue.is_waiting()
    same_prediction[index] = False
    others = np.flatnonzero(same_prediction)
    cosine = snapshot.features[others] @ snapshot.features[index]
    close = others[np.argsort(-cosine, kind="stable")][: int((cosine >= LOOK_ALIKE_COSINE).sum())]
    return [
        {"id": int(other), "row": int(snapshot.rows[other]), "seen": label_queue.current_label(int(other)).last}
        for other in close[:MAX_LOOK_ALIKES]
    ]


def serialize_label(label: CurrentLabel) -> dict[str, Any]:
    """Returns the state and the answers of an image."""
    return {
        "seen": label.last,
        "state": state_of(label),
        "label": label.label,
        "verdicts": [_serialize_event(event) for event in label.verdicts],
        "replaced": [{**_serialize_event(item.old), "by": _serialize_event(item.by)} for item in label.replaced],
        "passed": [_serialize_event(event) for event in label.passed],
    }


def _serialize_event(event: Event) -> dict[str, Any]:
    return {"number": event.number, "person": event.person, "kind": event.kind, "class": event.class_name}


def serialize_overview(label_queue: LabelQueue) -> dict[str, Any]:
    """Returns accuracy, counts, classes, clusters and the most confused pairs."""
    snapshot = label_queue.snapshot
    confusion_map = snapshot.confusion_map
    return {
        "run": snapshot.run.name,
        "last": label_queue.last_event,
        "method": snapshot.result.get("method"),
        "accuracy": final_accuracy(snapshot.result),
        "images": len(snapshot.rows),
        "counts": label_queue.counts(),
        "people": label_queue.verdicts_by_person(),
        "classes": serialize_classes(label_queue),
        "clusters": confusion_map.clusters,
        "pairs": [[pair.first, pair.second, pair.total] for pair in confusion_map.pairs],
        "suspects": [serialize_suspect(snapshot, suspect) for suspect in snapshot.suspects[:MAX_SUSPECTS]],
        "num_suspects": len(snapshot.suspects),
        "groups": _serialize_groups(snapshot),
    }


def _serialize_groups(snapshot: ModelSnapshot) -> list[dict[str, Any]]:
    """Returns the groups of similar photos that people name first; empty as soon as there is a model."""
    if snapshot.photo_groups is None or snapshot.probs.shape[1] > 1:
        return []
    sizes = np.bincount(snapshot.photo_groups)
    order = snapshot.orders["informative"]
    group = snapshot.photo_groups[order]
    shown: dict[int, list[int]] = {}
    for row, number in zip(snapshot.rows[order].tolist(), group.tolist(), strict=True):
        photos = shown.setdefault(number, [])
        if len(photos) < PHOTOS_PER_CLASS:
            photos.append(row)
    return [{"id": n, "size": int(size), "photos": shown.get(n, [])} for n, size in enumerate(sizes) if size]


def serialize_suspect(snapshot: ModelSnapshot, suspect: SuspectLabel) -> dict[str, Any]:
    """Returns a labeled image to check."""
    return {
        "row": suspect.row,
        "path": printable(suspect.path),
        "label": snapshot.class_names[suspect.label],
        "prediction": snapshot.class_names[suspect.prediction],
        "label_probability": round(suspect.label_probability, 4),
        "prediction_probability": round(suspect.prediction_probability, 4),
    }


def serialize_classes(label_queue: LabelQueue) -> list[dict[str, Any]]:
    """Returns all classes by id, also retired and merged ones."""
    snapshot, classes, final = label_queue.snapshot, label_queue.classes, label_queue.final_classes()
    count, known = len(classes), snapshot.probs.shape[1]
    prediction, waits = snapshot.prediction, label_queue.is_waiting()
    labeled_class = final[snapshot.catalog.label[snapshot.labeled_rows]]
    labeled = np.bincount(labeled_class, minlength=count)
    answered, answers = label_queue.labeled_classes()
    new_labels = np.bincount(answers, minlength=count)
    predicted = np.bincount(prediction, minlength=count) if known else np.zeros(count, np.int64)
    waiting = np.bincount(prediction[waits], minlength=count) if known else predicted
    weights = snapshot.uncertainty[waits]
    uncertainty = np.bincount(prediction[waits], weights=weights, minlength=count) if known else predicted
    groups, confusion_map = snapshot.catalog.class_groups, snapshot.confusion_map
    return [
        {
            "id": c,
            "name": entry.name,
            "retired": not entry.is_active,
            "merged_into": None if entry.merged_into is None else int(final[c]),
            "group": groups[c] if groups and c < len(groups) else None,
            "cluster": int(confusion_map.cluster_of[c]) if c < known else None,
            "position": [round(float(x), 4) for x in confusion_map.position[c]] if c < known else [0.5, 0.5],
            "labeled": int(labeled[c]),
            "new_labels": int(new_labels[c]),
            "predicted": int(predicted[c]),
            "waiting": int(waiting[c]),
            "uncertainty": round(float(uncertainty[c]), 2),
            "photos": _photos(snapshot, snapshot.labeled_rows[labeled_class == c], answered[answers == c]),
        }
        for c, entry in enumerate(classes)
    ]


def _photos(snapshot: ModelSnapshot, labeled_rows: NDArray[np.int64], answered: NDArray[np.int64]) -> list[int]:
    """Returns rows of labeled images of a class, without repeated ones; new labels follow those of the data set."""
    rows = np.concatenate([labeled_rows, snapshot.rows[answered[: 2 * PHOTOS_PER_CLASS]]])
    return distinct_photos(snapshot, rows, PHOTOS_PER_CLASS)
