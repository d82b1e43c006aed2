"""Labels from a file for images that the data set has unlabeled."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.data.label_log import agreed_labels, current_labels, is_sqlite, read_events
from semifine.data.store import ImageStore
from semifine.data.text_table import backslash_hint, cell, class_name, read_text_table
from semifine.errors import UserError
from semifine.files import write_atomically


@dataclass(frozen=True)
class ExtraLabels:
    """Labels of images, and where they come from."""

    file: Path
    pairs: list[tuple[str, str]]
    """Paths are as somebody wrote them, or, by ``with_catalog_paths``, as a catalog has them."""
    conflicts: int = 0
    """Images that are not among the pairs, because people disagree about them."""
    blank: int = 0
    """Lines of a table that are not filled in yet."""
    is_lasting: bool = False
    """A log outlives its images and classes: some may be gone from the data set. In a table that is a mistake."""


def read_labels(file: Path) -> ExtraLabels:
    """The studio's log, or a CSV with the columns ``path`` and ``label``."""
    try:
        if not is_sqlite(file):
            return _read_table(file)
    except OSError as error:
        raise UserError(f"Cannot read the labels {file}: {error.strerror or error}.") from error
    held = current_labels(read_events(file))
    return ExtraLabels(file, agreed_labels(held), sum(here.in_conflict for here in held.values()), is_lasting=True)


def with_catalog_paths(catalog: Catalog, labels: ExtraLabels) -> ExtraLabels:
    """The labels with the catalog's own paths: a run keeps them, and may be resumed from another working folder."""
    pairs = _with_paths_of(catalog, _unlabeled_rows(catalog), labels.pairs)
    return replace(labels, pairs=_one_label_each(labels.file, pairs))


def add_labels(catalog: Catalog, store: ImageStore, labels: ExtraLabels) -> tuple[Catalog, ImageStore, str]:
    """Catalog and store with a labeled copy of each image that has a label, and a line on what was done.

    The unlabeled images stay.
    """
    row_of = _unlabeled_rows(catalog)
    class_of = {class_name(name): number for number, name in enumerate(catalog.class_names)}
    for path, name in labels.pairs if not labels.is_lasting else []:
        if path not in row_of:
            raise UserError(
                f"{labels.file} labels {path}, which is no unlabeled image of {catalog.name}; {_example(row_of)}"
                f"{backslash_hint([path])}"
            )
        if class_name(name) not in class_of:
            raise UserError(f"{labels.file} gives {path} the label '{name}', which is no class of {catalog.name}.")
    pairs = [(path, name) for path, name in labels.pairs if path in row_of and class_name(name) in class_of]
    added = np.array([row_of[path] for path, _ in pairs], dtype=np.int64)
    given = np.array([class_of[class_name(name)] for _, name in pairs], dtype=np.int64)
    rows = np.concatenate([np.arange(len(catalog)), added])
    longer = catalog.take(rows)
    is_copy = np.arange(len(rows)) >= len(catalog)
    new_label = np.concatenate([catalog.label, given])
    return (
        replace(
            longer,
            label=new_label,
            truth=np.where(is_copy, new_label, longer.truth),
            split=np.where(is_copy, np.uint8(Split.LABELED), longer.split),
        ),
        store.take(rows),
        _note(labels, catalog, added),
    )


def _unlabeled_rows(catalog: Catalog) -> dict[str, int]:
    return {str(catalog.paths[row]): int(row) for row in catalog.rows(Split.UNLABELED)}


def _with_paths_of(
    catalog: Catalog, row_of: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The pairs with the catalog's own paths, where they name its images as files: absolute, or from where we are."""
    if catalog.root is None or all(path in row_of for path, _ in pairs):
        return list(pairs)
    root = os.path.abspath(catalog.root)
    path_of = {os.path.normpath(os.path.join(root, path)): path for path in row_of}

    def own(path: str) -> str:
        if path in row_of:
            return path
        files = (os.path.normpath(os.path.join(folder, path)) for folder in (root, os.getcwd()))
        return next((path_of[file] for file in files if file in path_of), path)

    return [(own(path), name) for path, name in pairs]


def _example(row_of: Mapping[str, int]) -> str:
    if not row_of:
        return "it has none."
    return f"write paths as the data has them, for example {next(iter(row_of))}."


def _note(labels: ExtraLabels, catalog: Catalog, added: NDArray[np.int64]) -> str:
    is_outside = catalog.truth >= catalog.num_classes
    absent = len(labels.pairs) - len(added)
    parts = [f"{len(added)} label{'' if len(added) == 1 else 's'} from {labels.file}"]
    if is_outside.any() and len(added):
        parts += [f"{is_outside[added].mean():.1%} of them for images of classes outside the label set"]
    parts += [f"{absent} for images or classes that are not in the data set left out"] if absent else []
    parts += [f"{labels.blank} line{'' if labels.blank == 1 else 's'} without a label left out"] if labels.blank else []
    parts += [f"{labels.conflicts} images with conflicting labels left out"] if labels.conflicts else []
    return ", ".join(parts)


def freeze_labels(labels: ExtraLabels | None, frozen: Path) -> None:
    """Keeps what the labels are now: the run depends on them for as long as it is used."""
    if labels is not None and labels.file != frozen:
        write_atomically(frozen, labels_as_csv(labels.pairs))


def read_frozen_labels(frozen: Path) -> ExtraLabels | None:
    """The labels as they were when the run began, where it has some."""
    return replace(read_labels(frozen), is_lasting=True) if frozen.exists() else None


def labels_as_csv(pairs: Sequence[tuple[str, str]]) -> str:
    """The text of a table that ``read_labels`` takes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path", "label"), *pairs])
    return text.getvalue()


def _read_table(file: Path) -> ExtraLabels:
    table = read_text_table(file)
    path_column, label_column = table.column("path"), table.column("label")
    if path_column is None or label_column is None:
        raise UserError(f"{file} is neither a log of the studio nor a CSV file with the columns path and label.")
    lines = [(cell(cells, path_column), class_name(cell(cells, label_column))) for _, cells in table.lines]
    filled = [(path, label) for path, label in lines if label]
    return ExtraLabels(file, _one_label_each(file, filled), blank=len(lines) - len(filled))


def _one_label_each(file: Path, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs, each but once; an image with two labels is a mistake."""
    label_of: dict[str, str] = {}
    for path, label in pairs:
        if label_of.setdefault(path, label) != label:
            raise UserError(f"{file} gives {path} two labels, '{label_of[path]}' and '{label}': leave one.")
    return list(label_of.items())
