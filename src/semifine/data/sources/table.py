"""A CSV or TSV table of images with the columns ``path`` and ``label``, optionally ``split`` and ``truth``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split, case_variant_notes, normalize_class_name
from semifine.data.crops import CropSettings
from semifine.data.csv_table import CsvTable, backslash_hint, get_cell, read_csv
from semifine.data.decode import FileReader
from semifine.data.image_files import check_path, find_image_folder
from semifine.data.sources import Source
from semifine.data.splits import BURST, FOLDER, SplitSettings, make_splits
from semifine.errors import UserError
from semifine.fields import setting

SPLIT_WORDS = {
    "labeled": Split.LABELED,
    "labelled": Split.LABELED,  # codespell:ignore labelled
    "train": Split.LABELED,
    "unlabeled": Split.UNLABELED,
    "unlabelled": Split.UNLABELED,
    "val": Split.VAL,
    "valid": Split.VAL,
    "validation": Split.VAL,
    "test": Split.TEST,
}
GROUP = "\0group"
"""Key of the column that groups rows; no column of a table can have this name."""


@dataclass(frozen=True)
class Settings(CropSettings, SplitSettings):
    """Settings of a table of images."""

    root: str | None = setting(
        None, "folder that paths are relative to (default: the folder of the table)", is_path=True
    )


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        line: Number of the line in the file.
        path: Path of the image.
        split: Split of the image.
        label: Class name for training; empty for unlabeled rows.
        truth: Class name for metrics; empty if unknown.
        group: Value of the column that groups rows; empty without one.
    """

    line: int
    path: str
    split: Split
    label: str
    truth: str
    group: str


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog of a table. Class ids follow the sorted class names of the labeled rows."""
    column = settings.group_by if settings.group_by not in (None, FOLDER, BURST) else None
    rows = list(read_rows(root, column))
    _check_duplicates(root, rows)
    class_names = tuple(sorted({row.label for row in rows if row.split == Split.LABELED}))
    if len(class_names) < 2:
        raise UserError(f"{root} must contain labeled rows of at least two classes, not {len(class_names)}.")
    class_ids = _class_ids(root, rows, class_names)

    folder = Path(settings.root).expanduser().absolute() if settings.root else root.parent
    paths = [row.path for row in rows]
    if find_image_folder([folder], paths) is None:
        raise UserError(
            f"No image of {root} was found, for example {folder / paths[0]}: "
            f"paths are relative to the table's folder, or to data.root.{backslash_hint(paths)}"
        )
    label = np.array([class_ids[row.label] for row in rows], np.int64)
    catalog = Catalog(
        name=root.stem,
        class_names=class_names,
        paths=paths,
        label=label,
        split=np.array([row.split for row in rows], np.uint8),
        truth=np.array([class_ids[row.truth] for row in rows], np.int64),
        reader=FileReader(paths, [folder]),
        root=folder,
        notes=tuple(case_variant_notes(class_names)),
    )
    return make_splits(catalog, settings, lambda group_by: _group_keys(rows, group_by))


def _group_keys(rows: list[Row], group_by: str) -> tuple[list[str | None], str]:
    if group_by == FOLDER:
        return [os.path.dirname(row.path) or None for row in rows], "no folder in their path"
    return [row.group or None for row in rows], f"no value in the column '{group_by}'"


def read_rows(file: Path, group_column: str | None = None) -> Iterator[Row]:
    """Reads and checks the rows of a table."""
    table = read_csv(file)
    columns = _columns(table, group_column)
    for line, cells in table.lines:
        if len(cells) <= max(columns["path"], columns["label"]):
            raise UserError(f"{file}, line {line}: only {len(cells)} of {len(table.header)} columns.")
        yield _row(file, line, {name: get_cell(cells, column) for name, column in columns.items()})


def _columns(table: CsvTable, group_column: str | None) -> dict[str, int]:
    """The index of each known column that the table has."""
    indices = {name: table.column(name) for name in ("path", "label", "split", "truth")}
    columns = {name: index for name, index in indices.items() if index is not None}
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        raise UserError(
            f"{table.file} has no column '{missing[0]}': the first line must name at least path and label, "
            f"not {', '.join(table.header) or 'nothing'}."
        )
    if group_column is not None:
        index = table.column(group_column)
        if index is None:
            raise UserError(
                f"data.group_by is '{group_column}', but {table.file} has the columns {', '.join(table.header)}; "
                f"choose one of them, {FOLDER} or {BURST}."
            )
        columns[GROUP] = index
    return columns


def _row(file: Path, line: int, cells: dict[str, str]) -> Row:
    where = f"{file}, line {line}"
    path, group = check_path(cells["path"], where), cells.get(GROUP, "")
    label, truth = normalize_class_name(cells["label"]), normalize_class_name(cells.get("truth", ""))
    if not path:
        raise UserError(f"{where}: the path is empty: give a path, or remove the line.")
    split = _split(where, cells.get("split", "").lower(), label)
    if split != Split.UNLABELED:
        return Row(line, path, split, label, truth=label, group=group)
    if label and truth and label != truth:
        raise UserError(f"{where}: label '{label}' and truth '{truth}' differ for an unlabeled image; keep one.")
    return Row(line, path, split, label="", truth=truth or label, group=group)


def _split(where: str, word: str, label: str) -> Split:
    if word and word not in SPLIT_WORDS:
        raise UserError(f"{where}: unknown split '{word}'. Valid ones: {', '.join(SPLIT_WORDS)}.")
    if not label and word in ("", "train"):
        return Split.UNLABELED
    split = SPLIT_WORDS[word] if word else Split.LABELED
    if not label and split != Split.UNLABELED:
        raise UserError(f"{where}: an image of split '{word}' needs a label.")
    return split


def _check_duplicates(file: Path, rows: list[Row]) -> None:
    """Raises UserError if a path has two labels. A path may be repeated, for example labeled and unlabeled."""
    first: dict[str, Row] = {}
    for row in rows:
        if not row.truth:
            continue
        earlier = first.setdefault(row.path, row)
        if earlier.truth != row.truth:
            raise UserError(
                f"{file}, line {row.line}: {row.path} has the label '{row.truth}' here "
                f"but '{earlier.truth}' on line {earlier.line}."
            )


def _class_ids(file: Path, rows: list[Row], class_names: tuple[str, ...]) -> dict[str, int]:
    """Ids of all class names: known classes first, then hidden classes outside the label set."""
    class_ids = {"": UNKNOWN} | {name: class_id for class_id, name in enumerate(class_names)}
    for row in rows:
        if row.label not in class_ids:
            raise UserError(
                f"{file}, line {row.line}: class '{row.label}' has no labeled image: add one, or remove it."
            )
    outside = sorted({row.truth for row in rows} - set(class_ids))
    return class_ids | {name: len(class_names) + position for position, name in enumerate(outside)}


SOURCE = Source(
    name="table",
    summary="A CSV or TSV table of images with the columns path and label, optionally split and truth.",
    path_kind="file",
    settings_class=Settings,
    load=load,
    is_own_photos=True,
    claims=lambda path: path.is_file() and path.suffix.lower() in (".csv", ".tsv"),
)
