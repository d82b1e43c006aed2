"""Labels for unlabeled images, from the studio or from a table."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split, normalize_class_name
from semifine.data.csv_table import backslash_hint, get_cell, read_csv, write_csv
from semifine.data.label_classes import NO_CHANGES, ClassChanges, class_changes, resolve_classes
from semifine.data.label_log import agreed_labels, current_labels, is_sqlite, read_events
from semifine.data.store import ImageStore
from semifine.errors import UserError
from semifine.files import damage_as_user_error, read_json, write_atomically


@dataclass(frozen=True)
class ExtraLabels:
    """Labels of images and their origin.

    Args:
        file: The file of the labels.
        pairs: Path and class name of each label. :func:`with_catalog_paths` converts the paths to catalog paths.
        conflicts: Number of images that are left out because their labels are in conflict.
        blank: Number of lines of a table without a label.
        allow_missing: Whether to ignore labels of images or classes that are not in the data set, as for a log, which
            may be older than the data set. For a table, they are an error.
        changes: Classes that were renamed, merged, retired or created in the studio.
    """

    file: Path
    pairs: list[tuple[str, str]]
    conflicts: int = 0
    blank: int = 0
    allow_missing: bool = False
    changes: ClassChanges = NO_CHANGES


def read_labels(file: Path) -> ExtraLabels:
    """Reads a label log of the studio, or a CSV file with the columns ``path`` and ``label``.

    Raises:
        UserError: If the file is neither, or gives an image two labels.

    Example:
        >>> _ = Path("labels.csv").write_text("path,label\\n1.jpg,robin\\n2.jpg,\\n")
        >>> labels = read_labels(Path("labels.csv"))
        >>> labels.pairs, labels.blank
        ([('1.jpg', 'robin')], 1)
    """
    try:
        if not is_sqlite(file):
            return _read_table(file)
    except OSError as error:
        raise UserError(f"Cannot read the labels {file}: {error.strerror or error}.") from error
    events = read_events(file)
    current = current_labels(events)
    changes = class_changes(resolve_classes(events)[1])
    conflicts = sum(label.in_conflict for label in current.values())
    retired = {name for name, now in changes.current.items() if now is None}
    pairs = [(path, name) for path, name in agreed_labels(current) if name not in retired]
    return ExtraLabels(file, pairs, conflicts, allow_missing=True, changes=changes)


def with_catalog_paths(catalog: Catalog, labels: ExtraLabels) -> ExtraLabels:
    """Converts the paths to catalog paths, so that they are valid from any working folder.

    Paths can be written as in the catalog, absolute, or relative to the working folder.
    """
    pairs = _to_catalog_paths(catalog, _unlabeled_rows(catalog), labels.pairs)
    return replace(labels, pairs=_merge_repeated(labels.file, pairs))


def add_labels(catalog: Catalog, store: ImageStore, labels: ExtraLabels) -> tuple[Catalog, ImageStore, str]:
    """Adds a labeled copy of each unlabeled image that has a label; the unlabeled images stay.

    Returns:
        The catalog and the store with the added rows at the end, and a note for the user.

    Raises:
        UserError: If a label is not for an unlabeled image or a class of the catalog and ``labels.allow_missing`` is
            not set.
    """
    catalog, store = change_classes(catalog, store, labels)
    row_of = _unlabeled_rows(catalog)
    class_of = {normalize_class_name(name): class_id for class_id, name in enumerate(catalog.class_names)}
    if not labels.allow_missing:
        _check_labels(catalog, labels, row_of, class_of)
    pairs = [(path, normalize_class_name(name)) for path, name in labels.pairs]
    pairs = [(path, name) for path, name in pairs if path in row_of and name in class_of]
    added = np.array([row_of[path] for path, _ in pairs], dtype=np.int64)
    added_label = np.array([class_of[name] for _, name in pairs], dtype=np.int64)
    rows = np.concatenate([np.arange(len(catalog)), added])
    longer = catalog.take(rows)
    is_added = np.arange(len(rows)) >= len(catalog)
    label = np.concatenate([catalog.label, added_label])
    return (
        replace(
            longer,
            label=label,
            truth=np.where(is_added, label, longer.truth),
            split=np.where(is_added, np.uint8(Split.LABELED), longer.split),
        ),
        store.take(rows),
        _describe(labels, catalog, added),
    )


def change_classes(catalog: Catalog, store: ImageStore, labels: ExtraLabels) -> tuple[Catalog, ImageStore]:
    """Renames, merges and retires classes as in the studio, and adds the created classes that have labels.

    The labeled images of a retired class are left out.
    """
    if not labels.changes:
        return catalog, store
    current = {normalize_class_name(name): now for name, now in labels.changes.current.items()}
    names = [current.get(name, name) for name in catalog.class_names]
    given = {normalize_class_name(name) for _, name in labels.pairs}
    created = [normalize_class_name(name) for name in labels.changes.created]
    kept = list(dict.fromkeys([*(name for name in names if name is not None), *(c for c in created if c in given)]))
    new_id = np.array([UNKNOWN if name is None else kept.index(name) for name in names] + [UNKNOWN], np.int64)
    is_kept = (catalog.split == Split.UNLABELED) | (new_id[catalog.label] != UNKNOWN)
    rows = np.flatnonzero(is_kept)
    catalog, store = catalog.take(rows), store.take(rows)
    outside = catalog.truth >= len(names)
    truth = np.where(outside, catalog.truth - len(names) + len(kept), new_id[np.where(outside, UNKNOWN, catalog.truth)])
    groups = catalog.class_groups
    group_of = dict(zip(names, groups, strict=True)) if groups else {}
    changed = replace(
        catalog,
        class_names=tuple(kept),
        class_groups=groups and tuple(group_of.get(name, "") for name in kept),
        label=new_id[catalog.label],
        truth=truth,
    )
    return changed, store


def _unlabeled_rows(catalog: Catalog) -> dict[str, int]:
    return {str(catalog.paths[row]): int(row) for row in catalog.rows(Split.UNLABELED)}


def _check_labels(
    catalog: Catalog, labels: ExtraLabels, row_of: Mapping[str, int], class_of: Mapping[str, int]
) -> None:
    for path, name in labels.pairs:
        if path not in row_of:
            example = f"write paths as in the data set, for example {next(iter(row_of))}." if row_of else "it has none."
            raise UserError(
                f"{labels.file} labels {path}, which is not an unlabeled image of {catalog.name}; {example}"
                f"{backslash_hint([path])}"
            )
        if normalize_class_name(name) not in class_of:
            raise UserError(f"{labels.file} gives {path} the label '{name}', which is not a class of {catalog.name}.")


def _to_catalog_paths(
    catalog: Catalog, row_of: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    if catalog.root is None or all(path in row_of for path, _ in pairs):
        return list(pairs)
    root = os.path.abspath(catalog.root)
    path_of = {os.path.normpath(os.path.join(root, path)): path for path in row_of}

    def to_catalog_path(path: str) -> str:
        if path in row_of:
            return path
        files = (os.path.normpath(os.path.join(folder, path)) for folder in (root, os.getcwd()))
        return next((path_of[file] for file in files if file in path_of), path)

    return [(to_catalog_path(path), name) for path, name in pairs]


def _describe(labels: ExtraLabels, catalog: Catalog, added: NDArray[np.int64]) -> str:
    is_outside = catalog.truth >= catalog.num_classes
    missing = len(labels.pairs) - len(added)
    parts = [f"{len(added)} label{'' if len(added) == 1 else 's'} from {labels.file}"]
    if is_outside.any() and len(added):
        parts += [f"{is_outside[added].mean():.1%} of them for images of classes outside the label set"]
    if missing:
        parts += [f"{missing} for images or classes that are not in the data set left out"]
    if labels.blank:
        parts += [f"{labels.blank} line{'' if labels.blank == 1 else 's'} without a label left out"]
    if labels.conflicts:
        parts += [f"{labels.conflicts} images with conflicting labels left out"]
    return ", ".join(parts)


def freeze_labels(labels: ExtraLabels | None, frozen: Path) -> None:
    """Writes the labels to a file of the run, so that later changes do not affect the run."""
    if labels is None or labels.file == frozen:
        return
    if labels.changes:
        changes = {"current": dict(labels.changes.current), "created": list(labels.changes.created)}
        write_atomically(_changes_file(frozen), json.dumps(changes, ensure_ascii=False) + "\n")
    write_atomically(frozen, labels_as_csv(labels.pairs))


def read_frozen_labels(frozen: Path) -> ExtraLabels | None:
    """Reads the labels that :func:`freeze_labels` wrote; None if the run has none."""
    if not frozen.exists():
        return None
    return replace(read_labels(frozen), allow_missing=True, changes=_read_changes(_changes_file(frozen)))


def _changes_file(frozen: Path) -> Path:
    """Returns the file with the changes of classes, beside the frozen labels."""
    return frozen.with_name(f"{frozen.stem}_classes.json")


def _read_changes(file: Path) -> ClassChanges:
    if not file.exists():
        return NO_CHANGES
    with damage_as_user_error(file):
        found = read_json(file)
        current = {str(name): None if now is None else str(now) for name, now in found["current"].items()}
        return ClassChanges(current, tuple(map(str, found["created"])))


def labels_as_csv(pairs: Sequence[tuple[str, str]]) -> str:
    """Formats labels as a table that :func:`read_labels` reads.

    Example:
        >>> labels_as_csv([("1.jpg", "robin")])
        'path,label\\n1.jpg,robin\\n'
    """
    text = io.StringIO()
    write_csv(text, [("path", "label"), *pairs])
    return text.getvalue()


def _read_table(file: Path) -> ExtraLabels:
    table = read_csv(file)
    path_column, label_column = table.column("path"), table.column("label")
    if path_column is None or label_column is None:
        raise UserError(f"{file} is neither a log of the studio nor a CSV file with the columns path and label.")
    pairs = [
        (get_cell(cells, path_column), normalize_class_name(get_cell(cells, label_column))) for _, cells in table.lines
    ]
    labeled = [(path, label) for path, label in pairs if label]
    return ExtraLabels(file, _merge_repeated(file, labeled), blank=len(pairs) - len(labeled))


def _merge_repeated(file: Path, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Removes repeated pairs; raises UserError if an image has two labels."""
    label_of: dict[str, str] = {}
    for path, label in pairs:
        if label_of.setdefault(path, label) != label:
            raise UserError(f"{file} gives {path} two labels, '{label_of[path]}' and '{label}': keep one.")
    return list(label_of.items())
