"""Which labels training sees and which images are set aside for validation, where the data does not say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.grouping import Groups


@dataclass(frozen=True)
class SplitSettings:
    """What can be chosen about the splits of one's own photos."""

    labels_per_class: int | None = field(
        default=None,
        metadata={"help": "labels to use of each class; its other labelled images become unlabelled", "low": 1},
    )
    val_share: float = field(
        default=0.2,
        metadata={
            "help": "share of each class's labelled images held out for validation when there is no val",
            "low": 0.0,
            "high": 0.9,
        },
    )
    group_by: str | None = field(
        default=None,
        metadata={
            "help": "images that must not be divided by the hold-out: folder (same folder), exif-burst (same camera, "
            "at most burst_seconds apart), or a column of the table"
        },
    )
    burst_seconds: float = field(
        default=60.0, metadata={"help": "exif-burst: photos with no longer gaps between them belong together", "low": 0}
    )
    seed: int = field(default=0, metadata={"help": "seed of the choice of labels and held-out images", "low": 0})


def divide(catalog: Catalog, groups: Groups, settings: SplitSettings) -> Catalog:
    """The catalog with its labels thinned out and validation held out, as the settings want."""
    random = np.random.default_rng(settings.seed)
    if settings.labels_per_class is not None:
        catalog = keep_labels(catalog, settings.labels_per_class, random)
    split = hold_out_validation(catalog.label, catalog.split, groups, settings.val_share, random)
    held_out, leaking = split == Split.VAL, np.zeros(len(split), np.bool_)
    remarks = []
    if held_out.sum() > (catalog.split == Split.VAL).sum():
        leaking = np.isin(groups, groups[held_out]) & (split == Split.UNLABELLED)
        remarks.append(f"validation: {held_out.sum()} labelled images are held out (--data.val_share)")
    if leaking.any():
        remarks.append(f"{leaking.sum()} unlabelled images of the same groups as held-out ones are left out")
    return replace(catalog, split=split, remarks=tuple(remarks)).take(np.flatnonzero(~leaking))


def keep_labels(catalog: Catalog, count: int, random: np.random.Generator) -> Catalog:
    """``count`` labelled images of each class stay so; the others are unlabelled, their truth is for metrics alone."""
    label, split = catalog.label.copy(), catalog.split.copy()
    for class_id in range(catalog.num_classes):
        rows = np.flatnonzero((label == class_id) & (split == Split.LABELLED))
        hidden = random.permutation(rows)[count:]
        label[hidden], split[hidden] = UNKNOWN, Split.UNLABELLED
    return replace(catalog, label=label, split=split)


def hold_out_validation(
    label: NDArray[np.int64], split: NDArray[np.uint8], groups: Groups, share: float, random: np.random.Generator
) -> NDArray[np.uint8]:
    """The splits with at most about ``share`` of each class's labelled images moved to validation.

    Stratified, and group by group: a group moves as a whole or not at all, and no class gives its last image. A class
    of fewer than 1 / share images gives none. Does nothing where a validation split exists already.
    """
    if share == 0 or (split == Split.VAL).any():
        return split
    split = split.copy()
    rows = np.flatnonzero(split == Split.LABELLED)
    left = np.bincount(label[rows])
    wanted = np.floor(share * left + 1e-9).astype(np.int64)
    members = np.split(rows[np.argsort(groups[rows], kind="stable")], _group_ends(groups[rows]))
    for place in random.permutation(len(members)):
        group = members[place]
        counts = np.bincount(label[group], minlength=len(left))
        is_mostly_wanted = 2 * np.minimum(counts, np.maximum(wanted, 0)).sum() > len(group)
        if is_mostly_wanted and (left - counts >= 1)[counts > 0].all():
            split[group] = Split.VAL
            left, wanted = left - counts, wanted - counts
    return split


def _group_ends(groups: Groups) -> NDArray[np.int64]:
    """Where the next group begins in the sorted list."""
    return np.flatnonzero(np.diff(np.sort(groups, kind="stable"))) + 1
