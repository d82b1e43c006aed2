"""The images that a run uses: readable ones, without copies across splits and without conflicting labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from semifine.data.catalog import Catalog, Split, unreadable_errors
from semifine.data.left_out import NO_LABELS, LeftOut, LeftOutKind
from semifine.data.store import ImageStore, unreadable_reasons

MIN_CLASSES = 2
PRECEDENCE = (Split.TEST, Split.VAL, Split.LABELED)
"""If several splits have copies of a photo, the copies in the first of these splits are kept."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The result of :func:`select_images`.

    Args:
        catalog: The images that are used.
        store: Their pixels, in the same order.
        left_out: All other images, and the classes that are left out.
        errors: Why the data set cannot be used, in sentences; empty if it can.
    """

    catalog: Catalog
    store: ImageStore
    left_out: tuple[LeftOut, ...] = ()
    errors: tuple[str, ...] = ()


def select_images(catalog: Catalog, store: ImageStore) -> Selection:
    """Leaves out images that cannot be used, and copies that would falsify training or measurement.

    - Unreadable images are left out.
    - Of exact copies in several splits, test images are kept, otherwise val images, otherwise labeled images.
    - Copies that are labeled as different classes are neither trained nor validated on, unless
      ``catalog.keep_conflicting`` is set.
    - A class without a labeled image is left out.

    If ``catalog.official_splits`` is set, only unreadable unlabeled images and labeled copies of test images are left
    out, so that results remain comparable. Hidden labels of unlabeled images are never read.

    Args:
        catalog: All images.
        store: Their pixels.

    Example:
        >>> from semifine.data.sources import load_catalog
        >>> from semifine.data.store import open_store
        >>> catalog = load_catalog("synthetic")
        >>> select_images(catalog, open_store(catalog, size=32)).left_out
        ()
    """
    reasons = unreadable_reasons(store)
    by_row = {row: _leave_out(catalog, row, "unreadable", reason) for row, reason in reasons.items()}
    for rows in find_exact_copies(store):
        by_row |= _published_copies(catalog, rows) if catalog.official_splits else _own_copies(catalog, rows)
    errors = unreadable_errors(catalog, reasons)
    empty = _classes_without_labels(catalog, by_row)
    classes: list[LeftOut] = []
    if empty and catalog.official_splits:
        errors += [
            f"Class '{catalog.class_names[class_id]}' has no labeled image: add at least one." for class_id in empty
        ]
    elif catalog.num_classes - len(empty) < MIN_CLASSES and not catalog.labels_optional:
        errors.append(_too_few_classes(catalog, by_row))
    else:
        classes = [LeftOut(catalog.class_names[class_id], "labeled", "class", NO_LABELS) for class_id in empty]
        for row in np.flatnonzero(np.isin(catalog.label, empty)).tolist():
            reason = f"class '{catalog.class_names[catalog.label[row]]}' has {NO_LABELS}"
            by_row.setdefault(row, _leave_out(catalog, row, "no_class", reason))
    left_out = (*catalog.left_out, *(by_row[row] for row in sorted(by_row)), *classes)
    if by_row:
        kept = np.delete(np.arange(len(catalog)), list(by_row))
        catalog, store = catalog.take(kept), store.take(kept)
    return Selection(catalog.without_classes([item.path for item in classes]), store, left_out, tuple(errors))


def find_exact_copies(store: ImageStore) -> list[list[int]]:
    """Finds groups of rows with equal content; unreadable images have no copies."""
    readable = np.flatnonzero(store.readable)
    _, group, size = np.unique(store.digest[readable], axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    groups: dict[int, list[int]] = {}
    for index in np.flatnonzero(size[group] > 1).tolist():
        groups.setdefault(int(group[index]), []).append(int(readable[index]))
    return list(groups.values())


def _own_copies(catalog: Catalog, rows: Sequence[int]) -> dict[int, LeftOut]:
    """Which of the copies of one image to leave out of a data set without published splits."""
    in_split = {split: [row for row in rows if catalog.split[row] == split] for split in Split}
    labels = {row: int(catalog.label[row]) for row in (*in_split[Split.LABELED], *in_split[Split.VAL])}
    if len(set(labels.values())) > 1 and not in_split[Split.TEST] and not catalog.keep_conflicting:
        other = {row: next(copy for copy in labels if labels[copy] != labels[row]) for row in labels}
        names = {row: catalog.class_names[label] for row, label in labels.items()}
        return {
            row: _leave_out(catalog, row, "conflict", f"'{names[row]}' here, '{names[other[row]]}' there", other[row])
            for row in labels
        }
    kept = next((split for split in PRECEDENCE if in_split[split]), None)
    if kept is None:
        return {}
    return {row: _leave_out_copy(catalog, row, in_split[kept][0]) for row in rows if catalog.split[row] != kept}


def _published_copies(catalog: Catalog, rows: Sequence[int]) -> dict[int, LeftOut]:
    """The labeled copies of a test image."""
    test = [row for row in rows if catalog.split[row] == Split.TEST]
    labeled = [row for row in rows if catalog.split[row] == Split.LABELED]
    return {row: _leave_out_copy(catalog, row, test[0]) for row in labeled if test}


def _leave_out_copy(catalog: Catalog, row: int, kept: int) -> LeftOut:
    is_conflict = catalog.split[row] != Split.UNLABELED and catalog.label[row] != catalog.label[kept]
    reason = f"copy of a {_split_name(catalog, kept)} image{' with another label' if is_conflict else ''}"
    return _leave_out(catalog, row, "copy", reason, kept)


def _leave_out(catalog: Catalog, row: int, kind: LeftOutKind, reason: str, copy_of: int | None = None) -> LeftOut:
    original = None if copy_of is None else catalog.paths[copy_of]
    return LeftOut(catalog.paths[row], _split_name(catalog, row), kind, reason, original)


def _split_name(catalog: Catalog, row: int) -> str:
    return Split(int(catalog.split[row])).name.lower()


def _classes_without_labels(catalog: Catalog, left_out: Iterable[int]) -> list[int]:
    is_labeled = catalog.split == Split.LABELED
    is_labeled[list(left_out)] = False
    counts = np.bincount(catalog.label[is_labeled], minlength=catalog.num_classes)
    return [int(class_id) for class_id in np.flatnonzero(counts == 0)]


def _too_few_classes(catalog: Catalog, by_row: dict[int, LeftOut]) -> str:
    labeled = [by_row[row] for row in sorted(by_row) if catalog.split[row] == Split.LABELED]
    reasons = [f" ({item.path}: {item.reason})" for item in (*labeled, *catalog.left_out)]
    return (
        f"Fewer than two classes of {catalog.name} have a usable labeled image{(reasons or [''])[0]}: "
        "replace the images that are left out, or add others."
    )
