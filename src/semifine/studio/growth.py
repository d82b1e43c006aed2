"""Appends new photos to the catalog, the store and the snapshot of a studio; no number of an image changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.store import ImageStore
from semifine.studio.images import file_reader
from semifine.studio.plain import typical_first
from semifine.studio.snapshot import (
    Indices,
    ModelSnapshot,
    margin_uncertainty,
    rank_by_acquisition,
    rank_by_cluster,
)


@dataclass(frozen=True, eq=False)
class GrownStore(ImageStore):
    """A store with the images of a first store, then of a second one; the pixels of neither are copied."""

    first: ImageStore | None = None
    second: ImageStore | None = None

    def image(self, row: int) -> torch.Tensor:
        """One image as a `(height, width, 3)` uint8 view."""
        assert self.first is not None
        assert self.second is not None
        split = len(self.first)
        return self.first.image(row) if row < split else self.second.image(row - split)


def grow_store(first: ImageStore, second: ImageStore) -> GrownStore:
    """Returns a store with all images of both."""
    joined = {
        "offset": torch.cat([first.offset, second.offset]),
        "height": torch.cat([first.height, second.height]),
        "width": torch.cat([first.width, second.width]),
        "readable": np.concatenate([first.readable, second.readable]),
        "original_size": np.concatenate([first.original_size, second.original_size]),
        "digest": np.concatenate([first.digest, second.digest]),
        "phash": np.concatenate([first.phash, second.phash]),
        "reasons": {**first.reasons, **{row + len(first): reason for row, reason in second.reasons.items()}},
    }
    common = {field.name: getattr(first, field.name) for field in fields(ImageStore)}
    return GrownStore(**{**common, **joined}, first=first, second=second)


def new_photos(catalog: Catalog, paths: Sequence[str]) -> Catalog:
    """Returns a catalog of unlabeled photos below the root of another catalog, with the same classes."""
    assert catalog.root is not None
    unknown = np.full(len(paths), UNKNOWN, np.int64)
    return replace(
        catalog,
        paths=list(paths),
        label=unknown,
        truth=unknown,
        split=np.full(len(paths), Split.UNLABELED, np.uint8),
        reader=InMemoryReader(list(paths), [catalog.root]),
        notes=(),
    )


class InMemoryReader(FileReader):
    """Reads files whose decoded images are kept in memory instead of on disk."""

    in_memory = True


def grow_catalog(first: Catalog, second: Catalog) -> Catalog:
    """Returns a catalog with the rows of both; the rows of the second follow those of the first."""
    old, rows = file_reader(first)
    new, new_rows = file_reader(second)
    assert old is not None
    assert new is not None
    boxes = None if old.boxes is None else np.concatenate([old.boxes[rows], np.full((len(second), 4), np.nan)])
    folder_of = np.concatenate([old.folder_of[rows], np.full(len(second), len(old.folders), np.uint8)])
    reader = FileReader(
        [*(str(old.paths[row]) for row in rows), *(str(new.paths[row]) for row in new_rows)],
        [*old.folders, *new.folders],
        folder_of,
        boxes,
    )
    return replace(
        first,
        paths=[*map(str, first.paths), *map(str, second.paths)],
        label=np.concatenate([first.label, second.label]),
        truth=np.concatenate([first.truth, second.truth]),
        split=np.concatenate([first.split, second.split]),
        reader=reader,
    )


def grow_snapshot(snapshot: ModelSnapshot, photos: Catalog, store: ImageStore) -> ModelSnapshot:
    """Returns a snapshot with new photos behind the others.

    Args:
        snapshot: The snapshot before the live model was fitted.
        photos: The new photos, see :func:`new_photos`.
        store: Their decoded images.
    """
    assert snapshot.embed is not None
    new = snapshot.embed(photos, store)
    features = np.concatenate([snapshot.features, new.features])
    probs = np.concatenate([snapshot.probs, new.probs])
    groups, counts = snapshot.photo_groups, snapshot.num_candidates
    if groups is not None:
        nearest = (new.features @ snapshot.features.T).argmax(axis=1)
        groups = np.concatenate([groups, groups[nearest]])
    if counts is not None and new.num_candidates is not None:
        counts = np.concatenate([counts, new.num_candidates])
    grown = replace(
        snapshot,
        catalog=grow_catalog(snapshot.catalog, photos),
        store=grow_store(snapshot.store, store),
        rows=np.concatenate([snapshot.rows, len(snapshot.catalog) + np.arange(len(photos))]),
        probs=probs,
        num_candidates=counts,
        features=features,
        uncertainty=np.concatenate([snapshot.uncertainty, margin_uncertainty(new.probs)]),
        photo_groups=groups,
        version=snapshot.version + 1,
    )
    return replace(grown, orders=orders_of(grown))


def orders_of(snapshot: ModelSnapshot) -> dict[str, Indices]:
    """Ranks all images of a snapshot in each order of the queue."""
    if snapshot.photo_groups is not None:
        by_group = np.lexsort((np.arange(len(snapshot.rows)), snapshot.photo_groups))
        return {"informative": typical_first(snapshot.features, snapshot.photo_groups), "cluster": by_group}
    uncertainty = snapshot.uncertainty
    return {
        "informative": rank_by_acquisition(uncertainty, snapshot.features, snapshot.labeled_features),
        "cluster": rank_by_cluster(uncertainty, snapshot.group),
    }
