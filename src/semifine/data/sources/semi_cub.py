"""Semi-CUB: the 100 odd-numbered birds of CUB-200-2011 with labels, the 100 even-numbered ones without.

Particular: ``u_train_in.txt`` carries true labels, which must stay hidden; there are no oracle files, because
the folder ``NNN.Class_name`` of an image tells its class; paths are relative to CUB's ``images`` folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from semifine.data.catalog import Catalog, Split
from semifine.data.sources import lists
from semifine.data.sources.lists import Listed, ListFile, Part, Settings
from semifine.errors import UserError

__all__ = ["Settings", "load", "read"]


def read(root: Path, settings: Settings) -> Listed:
    """What the lists say; needs no images."""
    folder = lists.find_lists(root, "semi_cub", "cub")
    num_classes, parts = lists.read_labelled(folder, settings)
    names = _class_names(parts[0].listed, num_classes)
    for name in lists.unlabelled_names(settings):
        listed = lists.read_list(folder / f"{name}.txt")
        truth = [_true_class(listed.file, path, num_classes) for path in listed.paths]
        parts.append(Part(listed, Split.UNLABELLED, np.array(truth, np.int64)))
    # "Black footed Albatross" is an albatross: the last word stands for the kin.
    return Listed(names, tuple(name.split()[-1] for name in names), parts)


def _class_names(labelled: ListFile, num_classes: int) -> tuple[str, ...]:
    lines = zip(labelled.paths, labelled.labels.tolist(), strict=True)
    folder_of = {label: path.partition("/")[0] for path, label in lines}
    return tuple(folder_of[label].partition(".")[2].replace("_", " ") for label in range(num_classes))


def _true_class(file: Path, path: str, num_classes: int) -> int:
    """Odd CUB ids are the known classes in their order; even ones come after them."""
    number = path.partition(".")[0]
    if not number.isdecimal():
        raise UserError(f"{file}: {path} does not start with a class number, as 001.Black_footed_Albatross does.")
    cub_id = int(number)
    return (cub_id - 1) // 2 if cub_id % 2 else num_classes + (cub_id - 2) // 2


def load(root: Path | None, settings: Settings) -> Catalog:
    assert root is not None
    return lists.to_catalog("semi_cub", read(root, settings), root, settings)
