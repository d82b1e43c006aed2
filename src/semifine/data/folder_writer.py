"""A data set written as a folder of photos, in the layout that the source ``folder`` reads."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError

FOLDER = {Split.LABELLED: "labeled", Split.UNLABELLED: "unlabeled", Split.VAL: "val", Split.TEST: "test"}


def write_folder(catalog: Catalog, folder: Path) -> None:
    """Writes every image as PNG; what is hidden about unlabelled ones stays hidden."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another folder.")
    for name in catalog.class_names:
        if "/" in name or name.startswith(".") or "\0" in name:
            raise UserError(f"The class '{name}' cannot be the name of a folder.")
    for row in range(len(catalog)):
        split = Split(int(catalog.split[row]))
        inside = folder / FOLDER[split]
        if split != Split.UNLABELLED:
            inside = inside / catalog.class_names[catalog.label[row]]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(catalog.reader.read(row)).save(inside / f"{row:06d}.png")
