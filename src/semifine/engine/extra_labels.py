"""Labels from a file for images that the data set has unlabelled."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from semifine.data.catalog import Catalog, Split
from semifine.data.store import ImageStore
from semifine.errors import UserError


def add_labels(catalog: Catalog, store: ImageStore, file: Path) -> tuple[Catalog, ImageStore]:
    """Catalog and store with a labelled copy of each image that the file names; the unlabelled ones stay.

    The file is a CSV with the columns ``path``, as the catalog has it, and ``label``, the name of a class.
    """
    labels = _read(file)
    row_of = {str(catalog.paths[row]): int(row) for row in catalog.rows(Split.UNLABELLED)}
    class_of = {name: number for number, name in enumerate(catalog.class_names)}
    for path, name in labels:
        if path not in row_of:
            raise UserError(f"{file} labels {path}, which is no unlabelled image of {catalog.name}.")
        if name not in class_of:
            raise UserError(f"{file} gives {path} the label '{name}', which is no class of {catalog.name}.")
    added = np.array([row_of[path] for path, _ in labels], dtype=np.int64)
    given = np.array([class_of[name] for _, name in labels], dtype=np.int64)
    rows = np.concatenate([np.arange(len(catalog)), added])
    longer = catalog.take(rows)
    is_copy = np.arange(len(rows)) >= len(catalog)
    new_label = np.concatenate([catalog.label, given])
    return (
        replace(
            longer,
            label=new_label,
            truth=np.where(is_copy, new_label, longer.truth),
            split=np.where(is_copy, np.uint8(Split.LABELLED), longer.split),
        ),
        store.take(rows),
    )


def _read(file: Path) -> list[tuple[str, str]]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except OSError as error:
        raise UserError(f"Cannot read the labels {file}: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"The labels {file} are not a CSV file in UTF-8.") from error
    if lines and not {"path", "label"} <= set(lines[0]):
        raise UserError(f"The labels {file} need the columns path and label.")
    return [(str(line["path"]), str(line["label"])) for line in lines]
