"""Semi-Fungi: 200 species of fungi with labels, 1194 others among the unlabeled images.

Folder names contain spaces, and some end with a space. There is no validation list (l_train equals l_train_val).
Species names start with a numeric id, as in ``16022_Langermannia_gigantea``.
"""

from __future__ import annotations

from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, Settings


def read(root: Path, settings: Settings) -> Listed:
    """Reads the lists; the images are not needed."""
    return lists.read_species(root, settings, "semi_fungi", "fungi_species_names.txt", _without_id)


def _without_id(name: str) -> str:
    first, _, rest = name.partition(" ")
    return rest if first.isdecimal() else name


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog."""
    return lists.to_catalog("semi_fungi", read(root, settings), root, settings)


SOURCE = Source(
    name="semi_fungi",
    summary="Semi-Fungi: 200 species of fungi with labels, 1194 others among the unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
