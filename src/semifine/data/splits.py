"""Splits of a data set: groups, exact copies, and the validation hold-out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import FileReader, digest_of, read_exif
from semifine.data.parallel import map_in_order, usable_cores
from semifine.data.photo_metadata import camera_name, camera_serial, taken_at

Groups = NDArray[np.int64]
"""(rows,) images with the same number belong together."""

FOLDER = "folder"
BURST = "exif-burst"


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which images belong together, and what a person should know of it."""

    groups: Groups
    notes: tuple[str, ...] = ()


def alone(rows: int) -> Grouping:
    """Every image by itself."""
    return Grouping(np.arange(rows, dtype=np.int64))


def grouped_by(keys: Sequence[Hashable | None], lack: str) -> Grouping:
    """Equal keys belong together; None belongs to nobody, and ``lack`` says what such an image has not."""
    numbers: dict[Hashable, int] = {}
    groups = [numbers.setdefault(row if key is None else (key,), len(numbers)) for row, key in enumerate(keys)]
    lacking = sum(key is None for key in keys)
    notes = []
    if lacking:
        notes.append(f"--group-by: {lacking} of {len(keys)} photos have {lack}, so each of them is by itself")
    elif len(numbers) == len(keys):
        notes.append("--group-by changes nothing here: no two photos belong together")
    return Grouping(np.array(groups, np.int64), tuple(notes))


def burst_groups(reader: FileReader, gap_seconds: float) -> Grouping:
    """Photos of one camera that follow each other within the gap; without a time each is alone."""
    rows = len(reader.paths)
    shots = list(map_in_order(lambda row: _shot(reader.file(row)), range(rows), usable_cores()))
    keys: list[Hashable | None] = [None] * rows
    timed = sorted((shot, row) for row, shot in enumerate(shots) if shot is not None)
    burst = 0
    for place, ((camera, time), row) in enumerate(timed):
        if place:
            (camera_before, time_before), _ = timed[place - 1]
            burst += camera != camera_before or time - time_before > gap_seconds
        keys[row] = burst
    return grouped_by(keys, lack="no time in their EXIF")


def _shot(file: str) -> tuple[str, float] | None:
    """The camera and the moment, in seconds."""
    exif = read_exif(file)
    time = taken_at(exif) if exif is not None else None
    if exif is None or time is None:
        return None
    return f"{camera_name(exif)} {camera_serial(exif)}", (time - datetime(1970, 1, 1)).total_seconds()


BEGINNING = 4096
"""Bytes that tell most files of equal size apart: those of formats without compression all have one size."""
AT_ONCE = 64
"""Files that a thread looks at before it reports."""
REMEMBERED = 50_000
"""Files whose content is not read again while they stay as they are: a training opens its data several times."""


def copies(files: Sequence[str], sought: NDArray[np.bool_]) -> list[list[int]]:
    """Places of files with the same content: of each group at least one is ``sought``, else nobody would ask."""
    groups = [list(range(len(files)))]
    for look in (_size, _beginning, _content):  # each narrows down what the next, which is slower, looks at
        seen = _looked_at(look, [files[place] for group in groups for place in group])
        groups = [alike for group in groups for alike in _parted(group, seen) if sought[alike].any()]
    return groups


def join(groups: Groups, together: Sequence[Sequence[int]]) -> Groups:
    """The groups, where those of rows that are ``together`` are one; all others keep their number."""
    leader: dict[int, int] = {}

    def lead(group: int) -> int:
        while group in leader:
            group = leader[group]
        return group

    for rows in together:
        leads = sorted({lead(int(group)) for group in groups[list(rows)]})
        leader.update(dict.fromkeys(leads[1:], leads[0]))
    if not leader:
        return groups
    return np.array([lead(group) for group in groups.tolist()], np.int64)


def _parted(group: list[int], seen: Iterator[Hashable]) -> list[list[int]]:
    """Those of a group that were seen to be the same."""
    alike: dict[Hashable, list[int]] = {}
    for place in group:
        alike.setdefault(next(seen), []).append(place)
    return [places for found, places in alike.items() if found is not None and len(places) > 1]


def _looked_at(look: Callable[[str], Hashable], files: Sequence[str]) -> Iterator[Hashable]:
    """In threads: a file system on the network takes its time for each answer."""
    some = (files[start : start + AT_ONCE] for start in range(0, len(files), AT_ONCE))
    for seen in map_in_order(lambda part: [_or_none(look, file) for file in part], some, usable_cores()):
        yield from seen


def _or_none(look: Callable[[str], Hashable], file: str) -> Hashable:
    """What is wrong with a file is said when its pixels are read."""
    try:
        return look(file)
    except (OSError, ValueError):  # the latter of a name that no file can have
        return None


def _size(file: str) -> int | None:
    """None for what holds no image anyway: such files are not copies of each other."""
    status = os.stat(file)
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None


def _beginning(file: str) -> bytes:
    with open(file, "rb") as opened:
        return digest_of(opened.read(BEGINNING))


def _content(file: str) -> bytes:
    status = os.stat(file)
    return _digest(file, status.st_size, status.st_mtime_ns)


@lru_cache(REMEMBERED)
def _digest(file: str, size: int, changed: int) -> bytes:
    """``size`` and time of last change stand for the content that is remembered."""
    del size, changed
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "blake2b").digest()


@dataclass(frozen=True)
class SplitSettings:
    """What can be chosen about the splits of one's own photos."""

    labels_per_class: int | None = field(
        default=None,
        metadata={"help": "labels to use of each class; its other labeled images become unlabeled", "low": 1},
    )
    val_share: float = field(
        default=0.2,
        metadata={
            "help": "share of each class's labeled images held out for validation when there is no val",
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
    catalog = replace(catalog, notes=(*catalog.notes, *grouping.notes))
    if settings.val_share == 0 or (catalog.split == Split.VAL).any():
        return catalog
    wanted = wanted_for_validation(catalog, settings.val_share)
    if not wanted.any():
        fewest = int(np.ceil(1 / settings.val_share - 1e-9))
        return _without_validation(catalog, f"no class has {fewest} labeled images (--data.val_share)")
    groups = _with_copies_joined(catalog, grouping.groups)
    split = hold_out_validation(catalog.label, catalog.split, groups, wanted, random)
    if not (split == Split.VAL).any():
        return _without_validation(catalog, "no group of images is small enough for --data.val_share")
    return _with_validation(replace(catalog, split=split), grouping.groups, groups)


def _without_validation(catalog: Catalog, reason: str) -> Catalog:
    note = f"no validation images: {reason}, so confidences will not be calibrated"
    return replace(catalog, notes=(*catalog.notes, note))


def _with_validation(catalog: Catalog, groups: Groups, joined: Groups) -> Catalog:
    """Without the unlabeled images that belong to held-out ones, by the groups or, ``joined``, as copies."""
    held_out, unlabeled = catalog.split == Split.VAL, catalog.split == Split.UNLABELED
    leaking = np.isin(joined, joined[held_out]) & unlabeled
    in_group = np.isin(groups, groups[held_out]) & unlabeled
    notes = [f"validation: {held_out.sum()} labeled images are held out (--data.val_share)"]
    if in_group.any():
        notes.append(f"{in_group.sum()} unlabeled images of the same groups as held-out ones are left out")
    if (leaking & ~in_group).any():
        notes.append(f"unlabeled copies of held-out images are left out: {(leaking & ~in_group).sum()}")
    return replace(catalog, notes=(*catalog.notes, *notes)).take(np.flatnonzero(~leaking))


def _with_copies_joined(catalog: Catalog, groups: Groups) -> Groups:
    """An image kept twice is one image, whether both are labeled or one was copied out of the unlabeled ones."""
    reader = catalog.reader
    assert isinstance(reader, FileReader)
    rows = np.flatnonzero(np.isin(catalog.split, (Split.LABELED, Split.UNLABELED)))
    same = copies([reader.file(row) for row in rows.tolist()], catalog.split[rows] == Split.LABELED)
    return join(groups, [rows[places].tolist() for places in same])


def keep_labels(catalog: Catalog, count: int, random: np.random.Generator) -> Catalog:
    """``count`` labeled images of each class stay so; the others are unlabeled, their truth is for metrics alone."""
    label, split = catalog.label.copy(), catalog.split.copy()
    for class_id in range(catalog.num_classes):
        rows = np.flatnonzero((label == class_id) & (split == Split.LABELED))
        hidden = random.permutation(rows)[count:]
        label[hidden], split[hidden] = UNKNOWN, Split.UNLABELED
    return replace(catalog, label=label, split=split)


def wanted_for_validation(catalog: Catalog, share: float) -> NDArray[np.int64]:
    """(K,) so many labeled images of each class are to be held out; none of a class of fewer than 1 / share."""
    labeled = np.bincount(catalog.label[catalog.rows(Split.LABELED)], minlength=catalog.num_classes)
    wanted: NDArray[np.int64] = np.floor(share * labeled + 1e-9).astype(np.int64)
    return wanted


def hold_out_validation(
    label: NDArray[np.int64],
    split: NDArray[np.uint8],
    groups: Groups,
    wanted: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.uint8]:
    """The splits with at most about as many of each class's labeled images as ``wanted`` moved to validation.

    Stratified, and group by group: a group moves as a whole or not at all, and no class gives its last image.
    """
    split = split.copy()
    rows = np.flatnonzero(split == Split.LABELED)
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
