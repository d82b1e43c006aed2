"""Semi-CUB: the 100 odd-numbered birds of CUB-200-2011 with labels, the 100 even-numbered ones without.

The list ``u_train_in.txt`` contains true labels, which must stay hidden. There are no oracle files, because the true
class follows from the folder ``NNN.Class_name`` of an image. Paths are relative to the folder ``images`` of CUB.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from semifine.data.catalog import Catalog, Split
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, ListFile, Part, Settings
from semifine.errors import UserError

_CLASS_FOLDER = re.compile(r"(?P<number>\d{1,6})\.(?P<name>[^/]+)/")


def read(root: Path, settings: Settings) -> Listed:
    """Reads the lists; the images are not needed."""
    folder = lists.find_lists(root, "semi_cub", "cub")
    num_classes, parts = lists.read_labeled(folder, settings)
    names = _class_names(parts[0].listed, num_classes)
    for name in lists.unlabeled_names(settings):
        listed = lists.read_list(folder / f"{name}.txt")
        truth = [_true_class(listed.file, path, num_classes) for path in listed.paths]
        parts.append(Part(listed, Split.UNLABELED, np.array(truth, np.int64)))
    # The last word is the group: "Black footed Albatross" is an albatross.
    return Listed(names, tuple(name.split()[-1] for name in names), parts)


def _class_names(labeled: ListFile, num_classes: int) -> tuple[str, ...]:
    lines = zip(labeled.paths, labeled.labels.tolist(), strict=True)
    name_of = {label: _class_folder(labeled.file, path)[1] for path, label in lines}
    return lists.check_names([name_of[label] for label in range(num_classes)], labeled.file)


def _true_class(file: Path, path: str, num_classes: int) -> int:
    """Odd CUB ids are the known classes, in order; even ids follow."""
    cub_id, _ = _class_folder(file, path)
    return (cub_id - 1) // 2 if cub_id % 2 else num_classes + (cub_id - 2) // 2


def _class_folder(file: Path, path: str) -> tuple[int, str]:
    """CUB's class id, from 1, and the class name in the path of an image."""
    found = _CLASS_FOLDER.match(path)
    if found is None or int(found["number"]) == 0:
        raise UserError(f"{file}: {path} is not in the folder of a class, such as 001.Black_footed_Albatross.")
    return int(found["number"]), found["name"].replace("_", " ").strip()


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog."""
    return lists.to_catalog("semi_cub", read(root, settings), root, settings)


SOURCE = Source(
    name="semi_cub",
    summary="Semi-CUB: 100 birds of CUB-200-2011 with labels, the other 100 among the unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
