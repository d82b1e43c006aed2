"""Semi-iNat: 810 species with labels; 313,248 unlabeled images of these and 1629 other species.

There is no list of the unlabeled images; all images in the folder ``u_train`` are unlabeled. Their true classes are
unknown, so ``unlabeled`` must be ``inout``. Class names come from ``all_taxa_info.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.image_files import find_images
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, ListFile, Part
from semifine.errors import UserError
from semifine.fields import setting
from semifine.files import read_text


@dataclass(frozen=True)
class Settings(lists.Settings):
    """Settings of the published data sets, with other unlabeled images."""

    unlabeled: Literal["in", "inout"] = setting(
        "inout", "only inout, because it is unknown which unlabeled images are of known classes"
    )

    def __post_init__(self) -> None:
        if self.unlabeled == "in":
            raise UserError(
                "semi_inat does not list which unlabeled images are of known classes: set data.unlabeled to inout."
            )


def read(root: Path, settings: Settings) -> Listed:
    """Reads the lists of labeled images; the images are not needed."""
    folder = lists.find_lists(root, "semi_inat")
    num_classes, parts = lists.read_labeled(folder, settings)
    names, groups = _names(folder / "all_taxa_info.json", num_classes)
    return Listed(names, groups, parts)


def _names(file: Path, num_classes: int) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Species and genus of each class; taxon numbers below ``num_classes`` are the labels."""
    if not file.is_file():
        return lists.species_names([], num_classes), None
    try:
        taxa = json.loads(read_text(file))
        chosen = [taxa[str(label)] for label in range(num_classes)]
        species, genera = ([taxon[rank] for taxon in chosen] for rank in ("species", "genus"))
        if not all(isinstance(name, str) for name in (*species, *genera)):
            raise TypeError("a name is not text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} does not name species and genus of the classes 0 to {num_classes - 1}.") from error
    return lists.check_names(species, file), tuple(genera)


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog."""
    listed = read(root, settings)
    return lists.to_catalog("semi_inat", _with_unlabeled(listed, root, settings), root, settings)


def _with_unlabeled(listed: Listed, root: Path, settings: Settings) -> Listed:
    base = Path(settings.images).expanduser().absolute() if settings.images else root
    folder = base / "u_train"
    paths = find_images(base, "u_train") if folder.is_dir() else []
    if not paths:
        raise UserError(f"No unlabeled images were found in {folder}: unpack u_train there.")
    scanned = ListFile(folder, paths, np.full(len(paths), UNKNOWN, np.int64))
    part = Part(scanned, Split.UNLABELED, scanned.labels)
    return Listed(listed.class_names, listed.class_groups, [*listed.parts, part])


SOURCE = Source(
    name="semi_inat",
    summary="Semi-iNat: 810 species with labels, 1629 others among 313,248 unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
