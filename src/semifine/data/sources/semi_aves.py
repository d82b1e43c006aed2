"""Semi-Aves: 200 bird species with labels, 800 others among the unlabeled images.

Particular: unlabeled lists carry -1, the truth is in oracle files of another order; archives unpack nested.
"""

from __future__ import annotations

from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.sources import Source, lists
from semifine.data.sources.lists import Listed, Settings


def read(root: Path, settings: Settings) -> Listed:
    """What the lists say; needs no images."""
    return lists.read_species(root, settings, "semi_aves", "semi_aves_species_names.txt")


def load(root: Path, settings: Settings) -> Catalog:
    return lists.to_catalog("semi_aves", read(root, settings), root, settings)


SOURCE = Source(
    name="semi_aves",
    summary="Semi-Aves: 200 bird species with labels, 800 others among the unlabeled images.",
    path_kind="folder",
    settings_class=Settings,
    load=load,
)
