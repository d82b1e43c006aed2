"""A CSV or TSV table of images: columns ``path`` and ``label``, optionally ``split`` and ``truth``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.reading import FileReader
from semifine.data.sources.hold_out import hold_out_validation
from semifine.data.sources.scan import any_exists
from semifine.errors import UserError

SPLIT_WORDS = {
    "labelled": Split.LABELLED,
    "labeled": Split.LABELLED,
    "train": Split.LABELLED,
    "unlabelled": Split.UNLABELLED,
    "unlabeled": Split.UNLABELLED,
    "val": Split.VAL,
    "valid": Split.VAL,
    "validation": Split.VAL,
    "test": Split.TEST,
}


@dataclass(frozen=True)
class Settings:
    """What can be chosen about a table of images."""

    root: str | None = field(
        default=None, metadata={"help": "folder that paths are relative to; default: the table's own"}
    )
    val_share: float = field(
        default=0.0,
        metadata={
            "help": "share of each class's labelled images held out for validation when there is no val",
            "low": 0.0,
            "high": 0.9,
        },
    )
    seed: int = field(default=0, metadata={"help": "seed of the choice of held-out images", "low": 0})


@dataclass(frozen=True)
class Row:
    """One line of the table, understood."""

    line: int
    path: str
    split: Split
    label: str
    """What training may see; empty for unlabelled rows."""
    truth: str
    """What metrics may see."""


def load(root: Path | None, settings: Settings) -> Catalog:
    """The catalog of a table; class ids follow the sorted labels of the labelled rows."""
    assert root is not None
    rows = list(read_rows(root))
    _check_duplicates(root, rows)
    class_names = tuple(sorted({row.label for row in rows if row.split == Split.LABELLED}))
    if len(class_names) < 2:
        raise UserError(f"{root} must hold labelled rows of at least two classes, not {len(class_names)}.")
    class_ids = _class_ids(root, rows, class_names)

    folder = Path(settings.root).expanduser().absolute() if settings.root else root.parent
    paths = [row.path for row in rows]
    if not any_exists(folder, paths):
        raise UserError(
            f"No image of {root} was found, for example {folder / paths[0]}: "
            "paths are relative to the table's folder, or to data.root."
        )
    label = np.array([class_ids[row.label] for row in rows], np.int64)
    split = np.array([row.split for row in rows], np.uint8)
    return Catalog(
        name=root.stem,
        class_names=class_names,
        paths=paths,
        label=label,
        split=hold_out_validation(label, split, settings.val_share, settings.seed),
        truth=np.array([class_ids[row.truth] for row in rows], np.int64),
        reader=FileReader(paths, [folder]),
        root=folder,
    )


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a table, checked one by one."""
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the header
        with open(file, encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened, delimiter=delimiter, strict=True)
            columns = _columns(file, next(reader, []))
            for cells in reader:
                if cells:
                    yield _row(file, reader.line_num, cells, columns)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}.") from error


def _columns(file: Path, header: list[str]) -> dict[str, int]:
    columns = {name.strip().lower(): position for position, name in enumerate(header)}
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        raise UserError(
            f"{file} has no column '{missing[0]}': the first line must name at least path and label, "
            f"not {', '.join(header) or 'nothing'}."
        )
    return columns


def _row(file: Path, line: int, cells: list[str], columns: dict[str, int]) -> Row:
    where = f"{file}, line {line}"
    if len(cells) <= max(columns["path"], columns["label"]):
        raise UserError(f"{where}: only {len(cells)} of {len(columns)} columns.")

    def cell(name: str) -> str:
        position = columns.get(name, len(cells))
        return cells[position] if position < len(cells) else ""

    path, label, truth = cell("path"), cell("label").strip(), cell("truth").strip()
    if not path:
        raise UserError(f"{where}: the path is empty.")
    split = _split(where, cell("split").strip().lower(), label)
    if split != Split.UNLABELLED:
        return Row(line, path, split, label, truth=label)
    if label and truth and label != truth:
        raise UserError(f"{where}: label '{label}' and truth '{truth}' differ for an unlabelled image; keep one.")
    return Row(line, path, split, label="", truth=truth or label)


def _split(where: str, word: str, label: str) -> Split:
    if word and word not in SPLIT_WORDS:
        raise UserError(f"{where}: unknown split '{word}'. Valid ones: {', '.join(SPLIT_WORDS)}.")
    if not label and word in ("", "train"):
        return Split.UNLABELLED  # a training image without a label is what this library is for
    split = SPLIT_WORDS[word] if word else Split.LABELLED
    if not label and split != Split.UNLABELLED:
        raise UserError(f"{where}: an image of split '{word}' needs a label.")
    return split


def _check_duplicates(file: Path, rows: list[Row]) -> None:
    """The same path may come twice (labelled and unlabelled, say) but not with two labels."""
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
                f"{file}, line {row.line}: class '{row.label}' has no labelled image: add one, or remove it."
            )
    outside = sorted({row.truth for row in rows} - set(class_ids))
    return class_ids | {name: len(class_names) + position for position, name in enumerate(outside)}
