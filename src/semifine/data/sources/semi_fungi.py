"""Semi-Fungi: 200 species of fungi with labels, 1194 others among the unlabeled images.

Particular: folder names hold spaces, some end in one; there is no validation list (l_train is l_train_val);
species names carry a numeric id, as in ``16022_Langermannia_gigantea``.
"""

from __future__ import annotations

from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, Settings


def read(root: Path, settings: Settings) -> Listed:
    """What the lists say; needs no images."""
    return lists.read_species(root, settings, "semi_fungi", "fungi_species_names.txt", _without_id)


def _without_id(name: str) -> str:
    first, _, rest = name.partition(" ")
    return rest if first.isdecimal() else name


def load(root: Path, settings: Settings) -> Catalog:
    return lists.to_catalog("semi_fungi", read(root, settings), root, settings)


SOURCE = Source(
    name="semi_fungi",
    summary="Semi-Fungi: 200 species of fungi with labels, 1194 others among the unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
