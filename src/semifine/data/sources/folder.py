"""A folder of photos: labeled/<class>/, unlabeled/ and so on, or one folder per class. Also writes such folders."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from semifine.data.catalog import (
    UNKNOWN,
    Catalog,
    Split,
    case_variant_notes,
    normalize_class_name,
    unreadable_errors,
)
from semifine.data.crops import CropSettings
from semifine.data.decode import FileReader, error_reason
from semifine.data.image_files import (
    SkippedFiles,
    contains_only_runs,
    describe_skipped,
    find_images,
    list_folder,
    skipped_notes,
)
from semifine.data.left_out import LeftOut
from semifine.data.sources import Source
from semifine.data.splits import BURST, FOLDER, SplitSettings, make_splits
from semifine.errors import UserError, first_few
from semifine.fields import setting
from semifine.files import PARTIAL, create_folder, errors_name, sync_to_disk, sync_tree

FOLDERS = {
    Split.LABELED: ("labeled", "labelled"),  # codespell:ignore labelled
    Split.UNLABELED: ("unlabeled", "unlabelled"),
    Split.VAL: ("val", "valid", "validation"),
    Split.TEST: ("test",),
}
"""Folder names of each split; their case is ignored. ``write_folder`` uses the first name."""
SPLIT_OF = {name: split for split, names in FOLDERS.items() for name in names}
NOT_CLASSES = {"train", "training", "images"}
"""Folder names that are probably not classes but belong to the layout of another program."""
LAYOUT = """\
    labeled/<class name>/*.jpg      a few images of each class
    unlabeled/*.jpg                 many other images (names of subfolders are not used)
    val/<class name>/*.jpg          optional
    test/<class name>/*.jpg         optional
or one folder per class:
    <class name>/*.jpg              --labels-per-class sets how many labels are used"""


@dataclass(frozen=True)
class Settings(CropSettings, SplitSettings):
    """Settings of a folder of photos."""

    optional_labels: bool = setting(
        False,
        "read a folder that may have no labels, because --labels contains them: without the folders labeled and "
        "unlabeled, all photos are unlabeled",
    )


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog of a folder. Class ids follow the sorted names of the folders with labeled images.

    Empty class folders are left out, together with the val and test images of these classes.
    """
    if (root / PARTIAL).is_dir():
        raise UserError(
            f"{root} is incomplete, because 'semifine prepare --write-folder' was interrupted: remove it and repeat "
            "the command."
        )
    folder_of = _split_folders(root)
    if settings.optional_labels:
        return _load_optional(root, folder_of)
    labeled = folder_of.get(Split.LABELED, ".")
    all_names = _class_names(root, labeled)
    skipped: SkippedFiles = Counter()
    rows = _class_rows(root, labeled, all_names, Split.LABELED, skipped)
    class_names, left_out = _leave_out_empty_classes(root, labeled, all_names, {name for _, name, _ in rows})
    if (unlabeled := folder_of.get(Split.UNLABELED)) is not None:
        rows += [(path, "", Split.UNLABELED) for path in find_images(root, unlabeled, skipped=skipped)]
    for split in (Split.VAL, Split.TEST):
        if (name := folder_of.get(split)) is not None:
            rows += _class_rows(root, name, all_names, split, skipped)

    class_ids = {"": UNKNOWN} | {name: class_id for class_id, name in enumerate(class_names)}
    left_out += [_without_class(path, name, split) for path, name, split in rows if name not in class_ids]
    rows = [row for row in rows if row[1] in class_ids]
    paths = [path for path, _, _ in rows]
    label = np.array([class_ids[name] for _, name, _ in rows], np.int64)
    catalog = Catalog(
        name=root.name,
        class_names=class_names,
        paths=paths,
        label=label,
        split=np.array([split for _, _, split in rows], np.uint8),
        truth=label.copy(),  # -1 for unlabeled images, whose classes are unknown
        reader=FileReader(paths, [root]),
        root=root,
        notes=(
            *(_ignored_folders(root) if labeled != "." else []),
            *skipped_notes(skipped),
            *case_variant_notes(class_names),
        ),
        left_out=tuple(left_out),
    )
    return make_splits(catalog, settings, lambda group_by: _group_keys(paths, group_by))


def _load_optional(root: Path, folder_of: dict[Split, str]) -> Catalog:
    """Reads a folder that may have no labels. Photos outside of the folders of splits are unlabeled."""
    skipped: SkippedFiles = Counter()
    labeled = folder_of.get(Split.LABELED)
    names = sorted({normalize_class_name(name) for name in _class_folders(root, labeled)}) if labeled else []
    rows = _class_rows(root, labeled, tuple(names), Split.LABELED, skipped) if labeled else []
    used = tuple(name for name in names if name in {name for _, name, _ in rows})
    unlabeled = folder_of.get(Split.UNLABELED)
    searched = [unlabeled] if unlabeled else [] if labeled else ["."]
    rows += [(path, "", Split.UNLABELED) for folder in searched for path in find_images(root, folder, skipped=skipped)]
    if not rows:
        raise UserError(f"{root} contains no photos.")
    paths = [path.removeprefix("./") for path, _, _ in rows]
    class_ids = {"": UNKNOWN} | {name: class_id for class_id, name in enumerate(used)}
    label = np.array([class_ids[name] for _, name, _ in rows], np.int64)
    return Catalog(
        name=root.name,
        class_names=used,
        paths=paths,
        label=label,
        split=np.array([split for _, _, split in rows], np.uint8),
        truth=label.copy(),
        reader=FileReader(paths, [root]),
        root=root,
        notes=(*skipped_notes(skipped), *case_variant_notes(used)),
        labels_optional=True,
    )


def _group_keys(paths: list[str], group_by: str) -> tuple[list[str | None], str]:
    if group_by != FOLDER:
        raise UserError(f"data.group_by must be {FOLDER} or {BURST} for a folder of images, not '{group_by}'.")
    return [_site(path) for path in paths], "no folder below the folder of their class"


def _site(path: str) -> str | None:
    """The folders of a path below split and class, so that one site can have several classes; None without any."""
    first, *folders = path.split("/")[:-1]
    # With one folder per class, the first folder is the class. Unlabeled images have no class folder.
    has_class_folder = SPLIT_OF.get(first.lower(), Split.UNLABELED) != Split.UNLABELED
    return "/".join(folders[1:] if has_class_folder else folders) or None


def _split_folders(root: Path) -> dict[Split, str]:
    """The folder names of the splits, as spelled on disk."""
    folder_of: dict[Split, str] = {}
    for name in list_folder(root).folders:
        split = SPLIT_OF.get(name.lower())
        if split is not None and folder_of.setdefault(split, name) != name:
            raise UserError(f"{root} has both {folder_of[split]} and {name}, which mean the same: keep one of them.")
    return folder_of


def _ignored_folders(root: Path) -> list[str]:
    """A note on folders that belong to no split, whose names may be misspelled."""
    folders = list_folder(root).folders
    names = [name for name in folders if name.lower() not in SPLIT_OF and not contains_only_runs(root / name)]
    if not names:
        return []
    return [f"folders that are ignored, because their names are not names of splits: {first_few(names)}"]


def _class_names(root: Path, labeled: str) -> tuple[str, ...]:
    folders = _class_folders(root, labeled)
    blank = [folder for folder in folders if not normalize_class_name(folder)]
    if blank:
        raise UserError(f"The folder '{root / labeled / blank[0]}' has a blank name: give it the name of its class.")
    names = tuple(sorted({normalize_class_name(folder) for folder in folders}))
    if labeled == "." and (len(names) < 2 or any(name.lower() in NOT_CLASSES for name in names)):
        raise UserError(f"{root} has neither a folder 'labeled' nor one folder per class. Expected:\n{LAYOUT}")
    if len(names) < 2:
        raise UserError(
            f"{root / labeled} must contain at least two folders of images, one per class. Expected:\n{LAYOUT}"
        )
    return names


def _class_folders(root: Path, inside: str) -> list[str]:
    """The folders of classes: all subfolders except runs and, in the root, the folders of splits."""
    names = list_folder(root / inside).folders
    if inside == ".":
        names = [name for name in names if name.lower() not in SPLIT_OF]
    return [name for name in names if not contains_only_runs(root / inside / name)]


def _class_rows(
    root: Path, inside: str, class_names: tuple[str, ...], split: Split, skipped: SkippedFiles
) -> list[tuple[str, str, Split]]:
    """Path, class and split of the images in ``inside/<class>/``; other files are added to ``skipped``."""
    stray = list_folder(root / inside).images
    if stray:
        raise UserError(f"{root / inside / stray[0]} is not in a class folder: move it into the folder of its class.")
    rows = []
    for folder in _class_folders(root, inside):
        name = normalize_class_name(folder)
        if name not in class_names:
            raise UserError(
                f"{root / inside / folder} is a class without labeled images: "
                f"add some in labeled/{folder}, or remove the folder."
            )
        rows += [(path, name, split) for path in find_images(root, _join(inside, folder), skipped=skipped)]
    return rows


def _join(inside: str, folder: str) -> str:
    return folder if inside == "." else f"{inside}/{folder}"


def _leave_out_empty_classes(
    root: Path, inside: str, names: tuple[str, ...], with_images: set[str]
) -> tuple[tuple[str, ...], list[LeftOut]]:
    """The classes with labeled images, and the others with the reason."""
    left_out: dict[str, LeftOut] = {}
    for folder in _class_folders(root, inside):
        name = normalize_class_name(folder)
        if name not in with_images:
            others: SkippedFiles = Counter()
            find_images(root, _join(inside, folder), skipped=others)
            only = f" in a supported format, only other files ({describe_skipped(others)})" if others else ""
            left_out[name] = LeftOut(name, "labeled", "class", f"{_join(inside, folder)} contains no image{only}")
    if len(names) - len(left_out) < 2:
        raise UserError(
            f"{root} needs labeled images of at least two classes ({next(iter(left_out.values())).reason}): add some."
        )
    return tuple(name for name in names if name in with_images), list(left_out.values())


def _without_class(path: str, name: str, split: Split) -> LeftOut:
    return LeftOut(path, split.name.lower(), "no_class", f"class '{name}' has no labeled image")


def write_folder(catalog: Catalog, folder: Path) -> list[tuple[str, str]]:
    """Writes all images as PNG files in the layout that ``load`` reads; hidden classes are not written.

    If it fails, the folder stays as it was. A new folder appears complete, by one rename. In an existing folder, which
    may be a disk, the images are collected in a hidden folder first; ``load`` refuses the folder while it is there.

    Args:
        catalog: The images.
        folder: A new or empty folder.

    Returns:
        Path and reason of the unreadable images that were left out.

    Raises:
        UserError: If the folder is not empty, a class name is no valid folder name, or so many images are unreadable
            that the folder could not be read again.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another folder.")
    for name in catalog.class_names:
        if "/" in name or name.startswith(".") or "\0" in name:
            raise UserError(f"The class name '{name}' is not a valid folder name: rename the class.")
    existed = folder.exists()
    partial = folder / PARTIAL if existed else folder.with_name(f".{folder.name}{PARTIAL}")
    create_folder(folder.parent)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    sync_to_disk(partial.parent)
    try:
        with errors_name(folder):
            reasons = _write_images(catalog, partial)
            _check_readable(catalog, reasons)
            sync_tree(partial)
        if existed:
            _move_into(partial, folder)
        else:
            partial.rename(folder)
            sync_to_disk(folder.parent)
    except BaseException:
        parts = [folder / names[0] for names in FOLDERS.values()] if existed else []
        for path in (partial, *parts):
            shutil.rmtree(path, ignore_errors=True)
        raise
    return [(catalog.paths[row], reason) for row, reason in reasons.items()]


def _move_into(partial: Path, folder: Path) -> None:
    """Moves the content of the partial folder into ``folder``, and then removes the partial folder."""
    for part in list(partial.iterdir()):
        part.rename(folder / part.name)
    sync_to_disk(folder)
    partial.rmdir()
    sync_to_disk(folder)


def _write_images(catalog: Catalog, folder: Path) -> dict[int, str]:
    """Writes the readable images; returns the reasons of the unreadable rows."""
    reasons = {}
    for row in range(len(catalog)):
        try:
            pixels = catalog.reader.read(row)
        except (OSError, ValueError) as error:
            reasons[row] = error_reason(error)
            continue
        split = Split(int(catalog.split[row]))
        target = folder / FOLDERS[split][0]
        if split != Split.UNLABELED:
            target = target / catalog.class_names[catalog.label[row]]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(target / f"{row:06d}.png")
    return reasons


def _check_readable(catalog: Catalog, reasons: dict[int, str]) -> None:
    is_written = np.ones(len(catalog), np.bool_)
    is_written[list(reasons)] = False
    written = np.bincount(catalog.label[(catalog.split == Split.LABELED) & is_written], minlength=catalog.num_classes)
    errors = unreadable_errors(catalog, reasons)
    errors += [
        f"All labeled images of class '{catalog.class_names[class_id]}' are unreadable: replace them."
        for class_id in np.flatnonzero(written == 0)
    ]
    if errors:
        raise UserError(errors[0])


SOURCE = Source(
    name="folder",
    summary="A folder of photos: labeled/<class>/, unlabeled/ and so on, or one folder for each class.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
    is_own_photos=True,
    claims=Path.is_dir,
)
