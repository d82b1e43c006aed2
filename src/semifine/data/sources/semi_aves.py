"""Semi-Aves: 200 bird species with labels, 800 others among the unlabeled images.

The unlabeled lists contain the label -1. The true classes are in oracle files, in a different order. Archives unpack to
nested folders.
"""

from __future__ import annotations

from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, Settings


def read(root: Path, settings: Settings) -> Listed:
    """Reads the lists; the images are not needed."""
    return lists.read_species(root, settings, "semi_aves", "semi_aves_species_names.txt")


def load(root: Path, settings: Settings) -> Catalog:
    """Reads the catalog."""
    return lists.to_catalog("semi_aves", read(root, settings), root, settings)


SOURCE = Source(
    name="semi_aves",
    summary="Semi-Aves: 200 bird species with labels, 800 others among the unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
