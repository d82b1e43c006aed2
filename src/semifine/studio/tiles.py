"""Photos as tiles: the grid of a class or cluster, and the neighbors of a photo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from semifine.errors import UserError
from semifine.studio.queue import LabelQueue, QueueFilter, state_of
from semifine.studio.snapshot import Indices, ModelSnapshot

GRID_ORDERS = ("confidence", "outliers", "group")
MAX_TILES = 1000
"""Tiles in one response, and the number of images that one answer names at least."""


@dataclass(frozen=True)
class GridPage:
    """A part of the tiles that match a filter."""

    queue_filter: QueueFilter
    order: str = "confidence"
    offset: int = 0
    count: int = 200


def rank_tiles(snapshot: ModelSnapshot, indices: Indices, order: str) -> Indices:
    """Sorts images for the grid.

    Args:
        snapshot: The predictions.
        indices: The images.
        order: ``confidence`` for the most confident first, ``outliers`` for the least typical first, or ``group`` for
            groups of similar images, the largest group first.
    """
    if order == "confidence":
        return indices[np.argsort(-snapshot.confidence[indices], kind="stable")]
    if order == "outliers":
        return indices[np.argsort(-snapshot.outlier[indices], kind="stable")]
    if order == "group":
        group = snapshot.group[indices]
        size = np.bincount(group)[group] if len(group) else group
        return indices[np.lexsort((snapshot.outlier[indices], group, -size))]
    raise UserError(f"The order '{order}' is unknown; use one of {', '.join(GRID_ORDERS)}.")


def serialize_grid(label_queue: LabelQueue, page: GridPage) -> dict[str, Any]:
    """Returns the number of matching images and the tiles of one page."""
    snapshot = label_queue.snapshot
    ranked = rank_tiles(snapshot, label_queue.matching(page.queue_filter), page.order)
    shown = ranked[page.offset : page.offset + min(page.count, MAX_TILES)]
    return {
        "total": len(ranked),
        "model": snapshot.version,
        "tiles": [serialize_tile(label_queue, int(index)) for index in shown],
    }


def serialize_tile(label_queue: LabelQueue, index: int) -> dict[str, Any]:
    """Returns one image as a tile."""
    snapshot, label = label_queue.snapshot, label_queue.current_label(index)
    has_classes = snapshot.probs.shape[1] > 0
    return {
        "id": index,
        "row": int(snapshot.rows[index]),
        "path": label_queue.path(index),
        "prediction": int(snapshot.prediction[index]) if has_classes else None,
        "confidence": round(float(snapshot.confidence[index]), 4) if has_classes else None,
        "outlier": round(float(snapshot.outlier[index]), 3),
        "state": state_of(label),
        "label": label.label,
        "seen": label.last,
    }


def serialize_neighbors(label_queue: LabelQueue, index: int, count: int) -> dict[str, Any]:
    """Returns the images that are most similar to an image, without the image itself."""
    label_queue.check_index(index)
    features = label_queue.snapshot.features
    cosine = features @ features[index]
    cosine[index] = -np.inf
    count = min(count, MAX_TILES, len(features) - 1)
    if count < 1:
        return {"tiles": []}
    nearest = np.argpartition(-cosine, count - 1)[:count]
    nearest = nearest[np.argsort(-cosine[nearest], kind="stable")]
    return {
        "tiles": [
            {**serialize_tile(label_queue, int(other)), "similarity": round(float(cosine[other]), 4)}
            for other in nearest
        ]
    }
