"""A CSV or TSV table of images: columns ``path`` and ``label``, optionally ``split`` and ``truth``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.sources import Source
from semifine.data.sources.scan import checked_path, folder_of_images
from semifine.data.splits import BURST, FOLDER, Grouping, SplitSettings, alone, burst_groups, divide, grouped_by
from semifine.data.text_table import (
    TextTable,
    backslash_hint,
    cell,
    class_name,
    names_that_differ_in_case,
    read_text_table,
)
from semifine.errors import UserError

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
"""Stands for the column that groups rows; no header can hold it."""


@dataclass(frozen=True)
class Settings(SplitSettings):
    """What can be chosen about a table of images."""

    root: str | None = field(
        default=None, metadata={"help": "folder that paths are relative to; default: the table's own", "is_path": True}
    )


@dataclass(frozen=True)
class Row:
    """One line of the table, understood."""

    line: int
    path: str
    split: Split
    label: str
    """What training may see; empty for unlabeled rows."""
    truth: str
    """What metrics may see."""
    group: str
    """What the column that groups rows says; empty where it does not, or where there is none."""


def load(root: Path, settings: Settings) -> Catalog:
    """The catalog of a table; class ids follow the sorted labels of the labeled rows."""
    column = settings.group_by if settings.group_by not in (None, FOLDER, BURST) else None
    rows = list(read_rows(root, column))
    _check_duplicates(root, rows)
    class_names = tuple(sorted({row.label for row in rows if row.split == Split.LABELED}))
    if len(class_names) < 2:
        raise UserError(f"{root} must hold labeled rows of at least two classes, not {len(class_names)}.")
    class_ids = _class_ids(root, rows, class_names)

    folder = Path(settings.root).expanduser().absolute() if settings.root else root.parent
    paths = [row.path for row in rows]
    if folder_of_images([folder], paths) is None:
        raise UserError(
            f"No image of {root} was found, for example {folder / paths[0]}: "
            f"paths are relative to the table's folder, or to data.root.{backslash_hint(paths)}"
        )
    label = np.array([class_ids[row.label] for row in rows], np.int64)
    reader = FileReader(paths, [folder])
    catalog = Catalog(
        name=root.stem,
        class_names=class_names,
        paths=paths,
        label=label,
        split=np.array([row.split for row in rows], np.uint8),
        truth=np.array([class_ids[row.truth] for row in rows], np.int64),
        reader=reader,
        root=folder,
        notes=tuple(names_that_differ_in_case(class_names)),
    )
    return divide(catalog, _groups(rows, reader, settings), settings)


def _groups(rows: list[Row], reader: FileReader, settings: Settings) -> Grouping:
    if settings.group_by is None:
        return alone(len(rows))
    if settings.group_by == BURST:
        return burst_groups(reader, settings.burst_seconds)
    if settings.group_by == FOLDER:
        return grouped_by([os.path.dirname(path) or None for path in reader.paths], lack="no folder in their path")
    return grouped_by([row.group or None for row in rows], lack=f"nothing in the column '{settings.group_by}'")


def read_rows(file: Path, group_column: str | None = None) -> Iterator[Row]:
    """The rows of a table, checked one by one."""
    table = read_text_table(file)
    columns = _columns(table, group_column)
    for line, cells in table.lines:
        if len(cells) <= max(columns["path"], columns["label"]):
            raise UserError(f"{file}, line {line}: only {len(cells)} of {len(table.header)} columns.")
        yield _row(file, line, {name: cell(cells, column) for name, column in columns.items()})


def _columns(table: TextTable, group_column: str | None) -> dict[str, int]:
    """The place of each column that counts and is there."""
    places = {name: table.column(name) for name in ("path", "label", "split", "truth")}
    columns = {name: place for name, place in places.items() if place is not None}
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        raise UserError(
            f"{table.file} has no column '{missing[0]}': the first line must name at least path and label, "
            f"not {', '.join(table.header) or 'nothing'}."
        )
    if group_column is not None:
        place = table.column(group_column)
        if place is None:
            raise UserError(
                f"data.group_by is '{group_column}', but {table.file} has the columns {', '.join(table.header)}; "
                f"name one of them, or {FOLDER} or {BURST}."
            )
        columns[GROUP] = place
    return columns


def _row(file: Path, line: int, cells: dict[str, str]) -> Row:
    where = f"{file}, line {line}"
    path, group = checked_path(cells["path"], where), cells.get(GROUP, "")
    label, truth = class_name(cells["label"]), class_name(cells.get("truth", ""))
    if not path:
        raise UserError(f"{where}: the path is empty.")
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
        return Split.UNLABELED  # a training image without a label is what this library is for
    split = SPLIT_WORDS[word] if word else Split.LABELED
    if not label and split != Split.UNLABELED:
        raise UserError(f"{where}: an image of split '{word}' needs a label.")
    return split


def _check_duplicates(file: Path, rows: list[Row]) -> None:
    """The same path may come twice (labeled and unlabeled, say) but not with two labels."""
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
    """Ids of all names that occur: known classes first, then hidden classes outside the label set."""
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
