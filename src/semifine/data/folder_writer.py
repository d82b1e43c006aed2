"""A data set written as a folder of photos, in the layout that the source ``folder`` reads."""

from __future__ import annotations

import shutil
from pathlib import Path

from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.reading import problem_in_words
from semifine.data.unreadable import rows_to_keep
from semifine.errors import UserError

FOLDER = {Split.LABELLED: "labeled", Split.UNLABELLED: "unlabeled", Split.VAL: "val", Split.TEST: "test"}
PARTIAL = ".partial"
"""What is not whole yet, out of sight of whoever reads the folder."""


def write_folder(catalog: Catalog, folder: Path, skip_unreadable: bool = False) -> list[tuple[str, str]]:
    """Writes every image as PNG; what is hidden about unlabelled ones stays hidden. All of them, or nothing at all.

    Returns path and reason of the unreadable images that are left out: the unlabelled ones, or, ``skip_unreadable``,
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
        rows_to_keep(catalog, reasons, skip_unreadable)
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
        inside = folder / FOLDER[split]
        if split != Split.UNLABELLED:
            inside = inside / catalog.class_names[catalog.label[row]]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(inside / f"{row:06d}.png")
    return reasons
