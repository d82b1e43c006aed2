"""Your own photos in folders: ``labeled/<class>/*`` and ``unlabeled/*``, or one folder a class."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.grouping import BURST, FOLDER, Groups, alone, burst_groups, groups_of
from semifine.data.reading import FileReader
from semifine.data.sources.hold_out import SplitSettings, divide
from semifine.data.sources.scan import images_below, images_directly_in, subfolders
from semifine.errors import UserError

FOLDERS = {
    Split.LABELLED: ("labeled", "labelled"),
    Split.UNLABELLED: ("unlabeled", "unlabelled"),
    Split.VAL: ("val",),
    Split.TEST: ("test",),
}
# Folders that other programs give a meaning; as classes they would be learnt without complaint.
NOT_CLASSES = {"train", "training", "valid", "validation", "images"}
LAYOUT = """\
    labeled/<class name>/*.jpg      a few images of every class
    unlabeled/*.jpg                 the many others (subfolders are fine, their names are not used)
    val/<class name>/*.jpg          optional
    test/<class name>/*.jpg         optional
or one folder a class:
    <class name>/*.jpg              of which --labels-per-class says how many labels to use"""


@dataclass(frozen=True)
class Settings(SplitSettings):
    """What can be chosen about a folder of images."""


def load(root: Path | None, settings: Settings) -> Catalog:
    """The catalog of a folder; class ids follow the sorted names of the folders of labelled images."""
    assert root is not None
    labelled = _split_folder(root, Split.LABELLED) or "."
    class_names = _class_names(root, labelled)
    parts = [_classes(root, labelled, class_names, Split.LABELLED)]
    if (unlabelled := _split_folder(root, Split.UNLABELLED)) is not None:
        parts.append([(path, UNKNOWN, Split.UNLABELLED) for path in images_below(root, unlabelled)])
    for split in (Split.VAL, Split.TEST):
        if (name := _split_folder(root, split)) is not None:
            parts.append(_classes(root, name, class_names, split))

    rows = [row for part in parts for row in part]
    paths = [path for path, _, _ in rows]
    label = np.array([label for _, label, _ in rows], np.int64)
    reader = FileReader(paths, [root])
    catalog = Catalog(
        name=root.name,
        class_names=class_names,
        paths=paths,
        label=label,
        split=np.array([split for _, _, split in rows], np.uint8),
        truth=label.copy(),  # unlabelled: -1, nothing is known
        reader=reader,
        root=root,
    )
    return divide(catalog, _groups(reader, settings), settings)


def _groups(reader: FileReader, settings: Settings) -> Groups:
    if settings.group_by is None:
        return alone(len(reader.paths))
    if settings.group_by == BURST:
        return burst_groups(reader, settings.burst_seconds)
    if settings.group_by == FOLDER:
        return groups_of([_site(path) for path in reader.paths])
    raise UserError(f"data.group_by must be {FOLDER} or {BURST} for a folder of images, not '{settings.group_by}'.")


def _site(path: str) -> str | None:
    """The folders between those of split and class and the image: those of one site may lie in several classes."""
    first, *folders = path.split("/")[:-1]
    has_split_folder = any(first in FOLDERS[split] for split in (Split.LABELLED, Split.VAL, Split.TEST))
    return "/".join(folders[1:] if has_split_folder else folders) or None


def _split_folder(root: Path, split: Split) -> str | None:
    """The name of the folder of a split, in the spelling that exists."""
    present = [name for name in FOLDERS[split] if (root / name).is_dir()]
    if len(present) > 1:
        raise UserError(f"{root} has both {' and '.join(present)}: keep one of the two spellings.")
    return present[0] if present else None


def _class_name(folder_name: str) -> str:
    # File systems store accents composed or decomposed; "é" must be one class in both.
    return unicodedata.normalize("NFC", folder_name)


def _class_names(root: Path, labelled: str) -> tuple[str, ...]:
    names = tuple(sorted({_class_name(name) for name in _class_folders(root, labelled)}))
    if labelled == "." and (len(names) < 2 or any(name.lower() in NOT_CLASSES for name in names)):
        raise UserError(f"{root} has no folder 'labeled', nor one folder for each class. Expected:\n{LAYOUT}")
    if len(names) < 2:
        raise UserError(f"{root / labelled} must hold at least two folders of images, one a class. Expected:\n{LAYOUT}")
    return names


def _class_folders(root: Path, inside: str) -> list[str]:
    """Where there is no folder of labelled images, all folders are classes but those with a meaning of their own."""
    reserved = {name for names in FOLDERS.values() for name in names} if inside == "." else set()
    return [name for name in subfolders(root / inside) if name not in reserved]


def _classes(root: Path, inside: str, class_names: tuple[str, ...], split: Split) -> list[tuple[str, int, Split]]:
    """Rows (path, label, split) of ``inside/<class>/**``."""
    stray = images_directly_in(root / inside)
    if stray:
        raise UserError(f"{root / inside / stray[0]} is in no class: put it into a folder of its class.")
    class_ids = {name: class_id for class_id, name in enumerate(class_names)}
    rows = []
    for folder in _class_folders(root, inside):
        class_id = class_ids.get(_class_name(folder))
        if class_id is None:
            raise UserError(
                f"{root / inside / folder} is a class without labelled images: "
                f"add some in labeled/{folder}, or remove the folder."
            )
        images = images_below(root, folder if inside == "." else f"{inside}/{folder}")
        if not images and split == Split.LABELLED:
            raise UserError(f"{root / inside / folder} holds no image: add one, or remove the folder.")
        rows += [(path, class_id, split) for path in images]
    return rows
