"""A data set written as a folder of photos, in the layout that the source ``folder`` reads."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from semifine.data.catalog import UNKNOWN, Catalog, Split, readable_rows
from semifine.data.decode import FileReader, problem_in_words
from semifine.data.sources import Source
from semifine.data.sources.scan import (
    LeftOut,
    holds_runs_alone,
    images_below,
    images_directly_in,
    in_words,
    left_out_note,
    subfolders,
)
from semifine.data.splits import BURST, FOLDER, Grouping, SplitSettings, alone, burst_groups, divide, grouped_by
from semifine.data.text_table import class_name, names_that_differ_in_case
from semifine.errors import UserError, first_few

FOLDERS = {
    Split.LABELED: ("labeled", "labelled"),  # codespell:ignore labelled
    Split.UNLABELED: ("unlabeled", "unlabelled"),
    Split.VAL: ("val", "valid", "validation"),
    Split.TEST: ("test",),
}
"""The folders of each split, in lower case; they are found in any."""
SPLIT_OF = {name: split for split, names in FOLDERS.items() for name in names}
# Folders that other programs give a meaning; as classes they would be learned without complaint.
NOT_CLASSES = {"train", "training", "images"}
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


def load(root: Path, settings: Settings) -> Catalog:
    """The catalog of a folder; class ids follow the sorted names of the folders of labeled images."""
    folder_of = _split_folders(root)
    labeled = folder_of.get(Split.LABELED, ".")
    class_names = _class_names(root, labeled)
    left_out: LeftOut = Counter()
    parts = [_classes(root, labeled, class_names, Split.LABELED, left_out)]
    if (unlabeled := folder_of.get(Split.UNLABELED)) is not None:
        images = images_below(root, unlabeled, left_out=left_out)
        parts.append([(path, UNKNOWN, Split.UNLABELED) for path in images])
    for split in (Split.VAL, Split.TEST):
        if (name := folder_of.get(split)) is not None:
            parts.append(_classes(root, name, class_names, split, left_out))

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
        truth=label.copy(),  # unlabeled: -1, nothing is known
        reader=reader,
        root=root,
        notes=(
            *(_unused_folders(root, labeled) if labeled != "." else []),
            *left_out_note(left_out),
            *names_that_differ_in_case(class_names),
        ),
    )
    return divide(catalog, _groups(reader, settings), settings)


def _groups(reader: FileReader, settings: Settings) -> Grouping:
    if settings.group_by is None:
        return alone(len(reader.paths))
    if settings.group_by == BURST:
        return burst_groups(reader, settings.burst_seconds)
    if settings.group_by == FOLDER:
        return grouped_by([_site(path) for path in reader.paths], lack="no folder below that of their class")
    raise UserError(f"data.group_by must be {FOLDER} or {BURST} for a folder of images, not '{settings.group_by}'.")


def _site(path: str) -> str | None:
    """The folders between those of split and class and the image: those of one site may lie in several classes."""
    first, *folders = path.split("/")[:-1]
    # One folder a class has no folder of a split above that of the class, and unlabeled images have no class.
    has_class_folder = SPLIT_OF.get(first.lower(), Split.UNLABELED) != Split.UNLABELED
    return "/".join(folders[1:] if has_class_folder else folders) or None


def _split_folders(root: Path) -> dict[Split, str]:
    """The names of the folders of splits, in the spelling that exists."""
    folder_of: dict[Split, str] = {}
    for name in subfolders(root):
        split = SPLIT_OF.get(name.lower())
        if split is not None and folder_of.setdefault(split, name) != name:
            raise UserError(f"{root} has both {folder_of[split]} and {name}, which mean the same: keep one of them.")
    return folder_of


def _unused_folders(root: Path, labeled: str) -> list[str]:
    """A note on folders beside that of the labeled images: whoever misspells one should know."""
    names = [name for name in subfolders(root) if name.lower() not in SPLIT_OF and not holds_runs_alone(root / name)]
    if not names:
        return []
    return [f"folders that are not used, since beside {labeled} their names mean nothing: {first_few(names)}"]


def _class_names(root: Path, labeled: str) -> tuple[str, ...]:
    folders = _class_folders(root, labeled)
    blank = [folder for folder in folders if not class_name(folder)]
    if blank:
        raise UserError(f"The folder '{root / labeled / blank[0]}' has a blank name: call it as its class.")
    names = tuple(sorted({class_name(folder) for folder in folders}))
    if labeled == "." and (len(names) < 2 or any(name.lower() in NOT_CLASSES for name in names)):
        raise UserError(f"{root} has no folder 'labeled', nor one folder for each class. Expected:\n{LAYOUT}")
    if len(names) < 2:
        raise UserError(f"{root / labeled} must hold at least two folders of images, one a class. Expected:\n{LAYOUT}")
    return names


def _class_folders(root: Path, inside: str) -> list[str]:
    """All folders but runs, which people put there, and, in the whole data set, those of its splits."""
    names = subfolders(root / inside)
    if inside == ".":
        names = [name for name in names if name.lower() not in SPLIT_OF]
    return [name for name in names if not holds_runs_alone(root / inside / name)]


def _classes(
    root: Path, inside: str, class_names: tuple[str, ...], split: Split, left_out: LeftOut
) -> list[tuple[str, int, Split]]:
    """Rows (path, label, split) of ``inside/<class>/**``; files that are no images are added to ``left_out``."""
    stray = images_directly_in(root / inside)
    if stray:
        raise UserError(f"{root / inside / stray[0]} is in no class: put it into a folder of its class.")
    class_ids = {name: class_id for class_id, name in enumerate(class_names)}
    rows = []
    for folder in _class_folders(root, inside):
        class_id = class_ids.get(class_name(folder))
        if class_id is None:
            raise UserError(
                f"{root / inside / folder} is a class without labeled images: "
                f"add some in labeled/{folder}, or remove the folder."
            )
        others: LeftOut = Counter()
        images = images_below(root, folder if inside == "." else f"{inside}/{folder}", left_out=others)
        if not images and split == Split.LABELED:
            only = f" that can be read, only other files ({in_words(others)})" if others else ""
            raise UserError(f"{root / inside / folder} holds no image{only}: add one, or remove the folder.")
        rows += [(path, class_id, split) for path in images]
        left_out.update(others)
    return rows


FOLDER_OF_SPLIT = {Split.LABELED: "labeled", Split.UNLABELED: "unlabeled", Split.VAL: "val", Split.TEST: "test"}
PARTIAL = ".partial"
"""What is not whole yet, out of sight of whoever reads the folder."""


def write_folder(catalog: Catalog, folder: Path, skip_unreadable: bool = False) -> list[tuple[str, str]]:
    """Writes every image as PNG; what is hidden about unlabeled ones stays hidden. All of them, or nothing at all.

    Returns path and reason of the unreadable images that are left out: the unlabeled ones, or, ``skip_unreadable``,
    any. Else such an image is a UserError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another folder.")
    for name in catalog.class_names:
        if "/" in name or name.startswith(".") or "\0" in name:
            raise UserError(f"The class '{name}' cannot be the name of a folder.")
    was_there, partial = folder.exists(), folder / PARTIAL  # inside: the folder may be a disk of its own
    partial.mkdir(parents=True)
    try:
        reasons = _write_images(catalog, partial)
        readable_rows(catalog, reasons, skip_unreadable)
        for part in list(partial.iterdir()):
            part.rename(folder / part.name)
        partial.rmdir()
    except BaseException:
        shutil.rmtree(partial if was_there else folder, ignore_errors=True)
        raise
    return [(catalog.paths[row], reason) for row, reason in reasons.items()]


def _write_images(catalog: Catalog, folder: Path) -> dict[int, str]:
    """Writes what can be read; why the other rows cannot."""
    reasons = {}
    for row in range(len(catalog)):
        try:
            pixels = catalog.reader.read(row)
        except (OSError, ValueError) as error:
            reasons[row] = problem_in_words(error)
            continue
        split = Split(int(catalog.split[row]))
        inside = folder / FOLDER_OF_SPLIT[split]
        if split != Split.UNLABELED:
            inside = inside / catalog.class_names[catalog.label[row]]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(inside / f"{row:06d}.png")
    return reasons


SOURCE = Source(
    name="folder",
    summary="A folder of photos: labeled/<class>/, unlabeled/ and so on, or one folder for each class.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
    is_own_photos=True,
    claims=Path.is_dir,
)
