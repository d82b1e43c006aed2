"""Your own photos in folders: ``labeled/<class>/*`` and ``unlabeled/*``, optionally ``val`` and ``test``."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.reading import FileReader
from semifine.data.sources.hold_out import hold_out_validation
from semifine.data.sources.scan import images_below, images_directly_in, subfolders
from semifine.errors import UserError

FOLDERS = {
    Split.LABELLED: ("labeled", "labelled"),
    Split.UNLABELLED: ("unlabeled", "unlabelled"),
    Split.VAL: ("val",),
    Split.TEST: ("test",),
}
LAYOUT = """\
    labeled/<class name>/*.jpg      a few images of every class
    unlabeled/*.jpg                 the many others (subfolders are fine, their names are not used)
    val/<class name>/*.jpg          optional
    test/<class name>/*.jpg         optional"""


@dataclass(frozen=True)
class Settings:
    """What can be chosen about a folder of images."""

    val_share: float = field(
        default=0.0,
        metadata={
            "help": "share of each class's labelled images held out for validation when there is no val",
            "low": 0.0,
            "high": 0.9,
        },
    )
    seed: int = field(default=0, metadata={"help": "seed of the choice of held-out images", "low": 0})


def load(root: Path | None, settings: Settings) -> Catalog:
    """The catalog of a folder; class ids follow the sorted names of the folders in ``labeled``."""
    assert root is not None
    labelled = _split_folder(root, Split.LABELLED)
    if labelled is None:
        raise UserError(f"{root} has no folder 'labeled'. Expected:\n{LAYOUT}")
    class_names = _class_names(root / labelled)
    parts = [_classes(root, labelled, class_names, Split.LABELLED)]
    if (unlabelled := _split_folder(root, Split.UNLABELLED)) is not None:
        parts.append([(path, UNKNOWN, Split.UNLABELLED) for path in images_below(root, unlabelled)])
    for split in (Split.VAL, Split.TEST):
        if (name := _split_folder(root, split)) is not None:
            parts.append(_classes(root, name, class_names, split))

    rows = [row for part in parts for row in part]
    paths = [path for path, _, _ in rows]
    label = np.array([label for _, label, _ in rows], np.int64)
    split_column = np.array([split for _, _, split in rows], np.uint8)
    return Catalog(
        name=root.name,
        class_names=class_names,
        paths=paths,
        label=label,
        split=hold_out_validation(label, split_column, settings.val_share, settings.seed),
        truth=label.copy(),  # unlabelled: -1, nothing is known
        reader=FileReader(paths, [root]),
        root=root,
    )


def _split_folder(root: Path, split: Split) -> str | None:
    """The name of the folder of a split, in the spelling that exists."""
    present = [name for name in FOLDERS[split] if (root / name).is_dir()]
    if len(present) > 1:
        raise UserError(f"{root} has both {' and '.join(present)}: keep one of the two spellings.")
    return present[0] if present else None


def _class_name(folder_name: str) -> str:
    # File systems store accents composed or decomposed; "é" must be one class in both.
    return unicodedata.normalize("NFC", folder_name)


def _class_names(labelled: Path) -> tuple[str, ...]:
    names = tuple(sorted({_class_name(name) for name in subfolders(labelled)}))
    if len(names) < 2:
        raise UserError(f"{labelled} must hold at least two folders of images, one a class. Expected:\n{LAYOUT}")
    return names


def _classes(root: Path, inside: str, class_names: tuple[str, ...], split: Split) -> list[tuple[str, int, Split]]:
    """Rows (path, label, split) of ``inside/<class>/**``."""
    stray = images_directly_in(root / inside)
    if stray:
        raise UserError(f"{root / inside / stray[0]} is in no class: put it into {inside}/<class name>/.")
    class_ids = {name: class_id for class_id, name in enumerate(class_names)}
    rows = []
    for folder in subfolders(root / inside):
        class_id = class_ids.get(_class_name(folder))
        if class_id is None:
            raise UserError(
                f"{root / inside / folder} is a class without labelled images: "
                f"add some in labeled/{folder}, or remove the folder."
            )
        images = images_below(root, f"{inside}/{folder}")
        if not images and split == Split.LABELLED:
            raise UserError(f"{root / inside / folder} holds no image: add one, or remove the folder.")
        rows += [(path, class_id, split) for path in images]
    return rows
