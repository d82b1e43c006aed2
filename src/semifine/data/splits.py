"""Splits of a data set: groups of images, exact copies, and the validation hold-out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import MAX_FILE_BYTES, FileReader, compute_digest, read_exif
from semifine.data.parallel import map_in_order, usable_cores
from semifine.data.photo_metadata import camera_name, camera_serial, capture_time
from semifine.fields import setting

Groups = NDArray[np.int64]
"""`(rows,)` group numbers; images with equal numbers belong to one group."""

FOLDER = "folder"
BURST = "exif-burst"


@dataclass(frozen=True)
class SplitSettings:
    """Settings of the splits of own photos."""

    labels_per_class: int | None = setting(
        None, "number of labels to use per class; further labeled images become unlabeled", low=1
    )
    val_share: float = setting(
        0.2,
        "share of each class's labeled images to hold out for validation if there is no val split",
        low=0.0,
        high=0.9,
    )
    group_by: str | None = setting(
        None,
        "keep groups of images on one side of the hold-out: folder (same folder), exif-burst (same camera, at most "
        "burst_seconds apart), or a column of the table",
    )
    burst_seconds: float = setting(60.0, "exif-burst: largest gap between the photos of a group", low=0)
    seed: int = setting(0, "seed for the choice of labels and held-out images", low=0)
    keep_conflicting: bool = setting(
        False, "train on copies of a photo that are labeled as different classes, instead of leaving them out"
    )


GroupKeys = Callable[[str], tuple[Sequence[Hashable | None], str]]
"""Maps a value of ``group_by`` to the key of each image (None without a group) and a note on what these images lack."""


def make_splits(catalog: Catalog, settings: SplitSettings, group_keys: GroupKeys) -> Catalog:
    """Hides labels beyond ``labels_per_class`` and holds out a validation split.

    The hold-out keeps groups of images and exact copies together.

    Args:
        catalog: Images of files (:class:`~semifine.data.decode.FileReader`).
        settings: The settings of the source.
        group_keys: The groups of values of ``group_by`` that depend on the source, such as ``FOLDER``.

    Returns:
        The catalog with new splits and with notes on them. Unlabeled images of groups with held-out images are
        removed. Unlabeled copies are left out later, see :func:`~semifine.data.selection.select_images`.
    """
    grouping = _group_images(catalog, settings, group_keys)
    random = np.random.default_rng(settings.seed)
    if settings.labels_per_class is not None:
        catalog = hide_labels(catalog, settings.labels_per_class, random)
    notes = (*catalog.notes, *grouping.notes)
    catalog = replace(catalog, notes=notes, keep_conflicting=settings.keep_conflicting)
    if settings.val_share == 0 or (catalog.split == Split.VAL).any():
        return catalog
    targets = validation_counts(catalog, settings.val_share)
    if not targets.any():
        fewest = int(np.ceil(1 / settings.val_share - 1e-9))
        return _without_validation(catalog, f"no class has {fewest} labeled images (--data.val_share)")
    groups = _merge_copies(catalog, grouping.groups)
    split = hold_out_validation(catalog.label, catalog.split, groups, targets, random)
    if not (split == Split.VAL).any():
        return _without_validation(catalog, "no group of images is small enough for --data.val_share")
    note = f"validation: {(split == Split.VAL).sum()} labeled images are held out (--data.val_share)"
    catalog = replace(catalog, split=split, held_out=True, notes=(*catalog.notes, note))
    return catalog if settings.group_by is None else _remove_leaks(catalog, groups)


def _group_images(catalog: Catalog, settings: SplitSettings, group_keys: GroupKeys) -> Grouping:
    if settings.group_by is None:
        return Grouping(np.arange(len(catalog), dtype=np.int64))
    if settings.group_by == BURST:
        assert isinstance(catalog.reader, FileReader)
        return burst_groups(catalog.reader, settings.burst_seconds)
    keys, missing = group_keys(settings.group_by)
    return group_by_key(keys, missing)


def _without_validation(catalog: Catalog, reason: str) -> Catalog:
    note = f"no validation images: {reason}, so confidences will not be calibrated"
    return replace(catalog, notes=(*catalog.notes, note))


def _remove_leaks(catalog: Catalog, groups: Groups) -> Catalog:
    """Removes unlabeled images that share a group with a held-out image."""
    leaking = np.isin(groups, groups[catalog.split == Split.VAL]) & (catalog.split == Split.UNLABELED)
    if not leaking.any():
        return catalog
    note = f"{leaking.sum()} unlabeled images of the same groups as held-out ones are left out"
    return replace(catalog, notes=(*catalog.notes, note)).take(np.flatnonzero(~leaking))


def _merge_copies(catalog: Catalog, groups: Groups) -> Groups:
    """Merges the groups of exact copies with a labeled image, whether the other copies are labeled or not."""
    reader = catalog.reader
    assert isinstance(reader, FileReader)
    rows = np.flatnonzero(np.isin(catalog.split, (Split.LABELED, Split.UNLABELED)))
    copies = find_copies([reader.file(row) for row in rows.tolist()], catalog.split[rows] == Split.LABELED)
    return merge_groups(groups, [rows[indices].tolist() for indices in copies])


def hide_labels(catalog: Catalog, count: int, random: np.random.Generator) -> Catalog:
    """Keeps ``count`` random labels per class. The other labeled images become unlabeled with a known truth."""
    label, split = catalog.label.copy(), catalog.split.copy()
    for class_id in range(catalog.num_classes):
        rows = np.flatnonzero((label == class_id) & (split == Split.LABELED))
        hidden = random.permutation(rows)[count:]
        label[hidden], split[hidden] = UNKNOWN, Split.UNLABELED
    return replace(catalog, label=label, split=split)


def validation_counts(catalog: Catalog, share: float) -> NDArray[np.int64]:
    """`(classes,)` number of labeled images to hold out per class; 0 for classes with fewer than 1 / share images."""
    labeled = np.bincount(catalog.label[catalog.rows(Split.LABELED)], minlength=catalog.num_classes)
    counts: NDArray[np.int64] = np.floor(share * labeled + 1e-9).astype(np.int64)
    return counts


def hold_out_validation(
    label: NDArray[np.int64],
    split: NDArray[np.uint8],
    groups: Groups,
    targets: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.uint8]:
    """Moves labeled images to the validation split, stratified by class and group by group.

    A group is moved as a whole, and at least one image of each class stays labeled.

    Args:
        label: `(rows,)` class ids.
        split: `(rows,)` splits.
        groups: `(rows,)` group numbers.
        targets: `(classes,)` number of images to hold out; groups can lead to slightly different numbers.
        random: Chooses the groups.

    Returns:
        `(rows,)` new splits.
    """
    split = split.copy()
    rows = np.flatnonzero(split == Split.LABELED)
    left = np.bincount(label[rows], minlength=len(targets))
    members = np.split(rows[np.argsort(groups[rows], kind="stable")], _group_ends(groups[rows]))
    for index in random.permutation(len(members)):
        group = members[index]
        counts = np.bincount(label[group], minlength=len(left))
        is_mostly_wanted = 2 * np.minimum(counts, np.maximum(targets, 0)).sum() > len(group)
        if is_mostly_wanted and (left - counts >= 1)[counts > 0].all():
            split[group] = Split.VAL
            left, targets = left - counts, targets - counts
    return split


def _group_ends(groups: Groups) -> NDArray[np.int64]:
    """Positions in the sorted groups at which a new group begins."""
    return np.flatnonzero(np.diff(np.sort(groups, kind="stable"))) + 1


@dataclass(frozen=True, eq=False)
class Grouping:
    """Group numbers of all images, with notes for the user."""

    groups: Groups
    notes: tuple[str, ...] = ()


def group_by_key(keys: Sequence[Hashable | None], missing: str) -> Grouping:
    """Groups images with equal keys.

    Args:
        keys: One key per image; an image with the key None gets its own group.
        missing: Describes in a note what images without a key lack.

    Example:
        >>> grouping = group_by_key(["site 1", "site 1", None], missing="no folder")
        >>> grouping.groups.tolist()
        [0, 0, 1]
        >>> grouping.notes
        ('--group-by: 1 of 3 photos have no folder, so each of them forms a group',)
    """
    numbers: dict[Hashable, int] = {}
    groups = [numbers.setdefault(row if key is None else (key,), len(numbers)) for row, key in enumerate(keys)]
    num_missing = sum(key is None for key in keys)
    notes = []
    if num_missing:
        notes.append(f"--group-by: {num_missing} of {len(keys)} photos have {missing}, so each of them forms a group")
    elif len(numbers) == len(keys):
        notes.append("--group-by has no effect: no two photos belong to the same group")
    return Grouping(np.array(groups, np.int64), tuple(notes))


def burst_groups(reader: FileReader, gap_seconds: float) -> Grouping:
    """Groups the photos of one camera that follow each other within ``gap_seconds``, by their EXIF times."""
    rows = len(reader.paths)
    shots = list(map_in_order(lambda row: _read_shot(reader.file(row)), range(rows), usable_cores()))
    keys: list[Hashable | None] = [None] * rows
    timed = sorted((shot, row) for row, shot in enumerate(shots) if shot is not None)
    burst = 0
    for index, ((camera, time), row) in enumerate(timed):
        if index:
            (previous_camera, previous_time), _ = timed[index - 1]
            burst += camera != previous_camera or time - previous_time > gap_seconds
        keys[row] = burst
    return group_by_key(keys, missing="no time in their EXIF")


def _read_shot(file: str) -> tuple[str, float] | None:
    """The camera and the capture time in seconds; None without a capture time."""
    exif = read_exif(file)
    time = capture_time(exif) if exif is not None else None
    if exif is None or time is None:
        return None
    return f"{camera_name(exif)} {camera_serial(exif)}", (time - datetime(1970, 1, 1)).total_seconds()


def merge_groups(groups: Groups, linked: Sequence[Sequence[int]]) -> Groups:
    """Merges the groups of linked rows; the number of a merged group is the smallest of its groups.

    Example:
        >>> merge_groups(np.array([0, 1, 2]), linked=[[1, 2]]).tolist()
        [0, 1, 1]
    """
    parent: dict[int, int] = {}

    def find(group: int) -> int:
        while group in parent:
            group = parent[group]
        return group

    for rows in linked:
        roots = sorted({find(int(group)) for group in groups[list(rows)]})
        parent.update(dict.fromkeys(roots[1:], roots[0]))
    if not parent:
        return groups
    return np.array([find(group) for group in groups.tolist()], np.int64)


# Exact copies

HEAD_BYTES = 4096
"""The first bytes distinguish most files of equal size, such as files of uncompressed formats."""
FILES_PER_TASK = 64
"""Number of files that a thread reads per task."""
CACHED_DIGESTS = 50_000
"""Digests that are kept in memory, for processes that open a data set several times."""


def find_copies(files: Sequence[str], is_relevant: NDArray[np.bool_]) -> list[list[int]]:
    """Finds groups of files with equal content, and compares as few bytes as possible.

    Args:
        files: Paths; unreadable and empty files have no copies.
        is_relevant: `(files,)` whether a file is relevant. Groups without a relevant file are left out.

    Returns:
        The indices of the files of each group.
    """
    groups = [list(range(len(files)))]
    for read_key in (_size, _head_digest, _content_digest):  # from fast to slow; each one reduces the candidates
        keys = _read_keys(read_key, [files[index] for group in groups for index in group])
        groups = [same for group in groups for same in _partition(group, keys) if is_relevant[same].any()]
    return groups


def _partition(group: list[int], keys: Iterator[Hashable]) -> list[list[int]]:
    """Parts of a group with equal keys and at least two files."""
    parts: dict[Hashable, list[int]] = {}
    for index in group:
        parts.setdefault(next(keys), []).append(index)
    return [indices for key, indices in parts.items() if key is not None and len(indices) > 1]


def _read_keys(read_key: Callable[[str], Hashable], files: Sequence[str]) -> Iterator[Hashable]:
    """Reads keys in threads, because network file systems respond slowly."""
    tasks = (files[start : start + FILES_PER_TASK] for start in range(0, len(files), FILES_PER_TASK))
    for keys in map_in_order(lambda task: [_try_read(read_key, file) for file in task], tasks, usable_cores()):
        yield from keys


def _try_read(read_key: Callable[[str], Hashable], file: str) -> Hashable:
    """Returns None for an unreadable file; decoding its pixels reports the reason."""
    try:
        return read_key(file)
    except (OSError, ValueError):  # ValueError: an invalid file name
        return None


def _size(file: str) -> int | None:
    """The size of a regular file; None for other, empty and too large files, which contain no image."""
    status = os.stat(file)
    return status.st_size if stat.S_ISREG(status.st_mode) and 0 < status.st_size <= MAX_FILE_BYTES else None


def _head_digest(file: str) -> bytes:
    with open(file, "rb") as opened:
        return compute_digest(opened.read(HEAD_BYTES))


def _content_digest(file: str) -> bytes:
    status = os.stat(file)
    return _cached_digest(file, status.st_size, status.st_mtime_ns)


@lru_cache(CACHED_DIGESTS)
def _cached_digest(file: str, size: int, modified: int) -> bytes:
    del size, modified  # part of the cache key: a changed file is read again
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "blake2b").digest()
