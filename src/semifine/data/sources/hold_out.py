"""Which labels training sees and which images are set aside for validation, where the data does not say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.copies import copies, join
from semifine.data.grouping import Grouping, Groups
from semifine.data.reading import FileReader


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


def divide(catalog: Catalog, grouping: Grouping, settings: SplitSettings) -> Catalog:
    """The catalog with its labels thinned out and validation held out, as the settings want."""
    random = np.random.default_rng(settings.seed)
    if settings.labels_per_class is not None:
        catalog = keep_labels(catalog, settings.labels_per_class, random)
    catalog = replace(catalog, remarks=(*catalog.remarks, *grouping.remarks))
    if settings.val_share == 0 or (catalog.split == Split.VAL).any():
        return catalog
    wanted = wanted_for_validation(catalog, settings.val_share)
    if not wanted.any():
        fewest = int(np.ceil(1 / settings.val_share - 1e-9))
        return _without_validation(catalog, f"no class has {fewest} labelled images (--data.val_share)")
    groups = _with_copies_joined(catalog, grouping.groups)
    split = hold_out_validation(catalog.label, catalog.split, groups, wanted, random)
    if not (split == Split.VAL).any():
        return _without_validation(catalog, "no group of images is small enough for --data.val_share")
    return _with_validation(replace(catalog, split=split), grouping.groups, groups)


def _without_validation(catalog: Catalog, reason: str) -> Catalog:
    remark = f"no validation images: {reason}, so confidences will not be calibrated"
    return replace(catalog, remarks=(*catalog.remarks, remark))


def _with_validation(catalog: Catalog, groups: Groups, joined: Groups) -> Catalog:
    """Without the unlabelled images that belong to held-out ones, by the groups or, ``joined``, as copies."""
    held_out, unlabelled = catalog.split == Split.VAL, catalog.split == Split.UNLABELLED
    leaking = np.isin(joined, joined[held_out]) & unlabelled
    in_group = np.isin(groups, groups[held_out]) & unlabelled
    remarks = [f"validation: {held_out.sum()} labelled images are held out (--data.val_share)"]
    if in_group.any():
        remarks.append(f"{in_group.sum()} unlabelled images of the same groups as held-out ones are left out")
    if (leaking & ~in_group).any():
        remarks.append(f"unlabelled copies of held-out images are left out: {(leaking & ~in_group).sum()}")
    return replace(catalog, remarks=(*catalog.remarks, *remarks)).take(np.flatnonzero(~leaking))


def _with_copies_joined(catalog: Catalog, groups: Groups) -> Groups:
    """An image kept twice is one image, whether both are labelled or one was copied out of the unlabelled ones."""
    reader = catalog.reader
    assert isinstance(reader, FileReader)
    rows = np.flatnonzero(np.isin(catalog.split, (Split.LABELLED, Split.UNLABELLED)))
    same = copies([reader.file(row) for row in rows.tolist()], catalog.split[rows] == Split.LABELLED)
    return join(groups, [rows[places].tolist() for places in same])


def keep_labels(catalog: Catalog, count: int, random: np.random.Generator) -> Catalog:
    """``count`` labelled images of each class stay so; the others are unlabelled, their truth is for metrics alone."""
    label, split = catalog.label.copy(), catalog.split.copy()
    for class_id in range(catalog.num_classes):
        rows = np.flatnonzero((label == class_id) & (split == Split.LABELLED))
        hidden = random.permutation(rows)[count:]
        label[hidden], split[hidden] = UNKNOWN, Split.UNLABELLED
    return replace(catalog, label=label, split=split)


def wanted_for_validation(catalog: Catalog, share: float) -> NDArray[np.int64]:
    """(K,) so many labelled images of each class are to be held out; none of a class of fewer than 1 / share."""
    labelled = np.bincount(catalog.label[catalog.rows(Split.LABELLED)], minlength=catalog.num_classes)
    wanted: NDArray[np.int64] = np.floor(share * labelled + 1e-9).astype(np.int64)
    return wanted


def hold_out_validation(
    label: NDArray[np.int64],
    split: NDArray[np.uint8],
    groups: Groups,
    wanted: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.uint8]:
    """The splits with at most about as many of each class's labelled images as ``wanted`` moved to validation.

    Stratified, and group by group: a group moves as a whole or not at all, and no class gives its last image.
    """
    split = split.copy()
    rows = np.flatnonzero(split == Split.LABELLED)
    left = np.bincount(label[rows], minlength=len(wanted))
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
