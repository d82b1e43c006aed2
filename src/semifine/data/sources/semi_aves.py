"""Semi-Aves: 200 bird species with labels, 800 others among the unlabeled images.

Particular: unlabeled lists carry -1, the truth is in oracle files of another order; archives unpack nested.
"""

from __future__ import annotations

from pathlib import Path

from semifine.data.catalog import Catalog
from semifine.data.sources import lists
from semifine.data.sources.lists import Listed, Settings

__all__ = ["Settings", "load", "read"]


def read(root: Path, settings: Settings) -> Listed:
    """What the lists say; needs no images."""
    return lists.read_species(root, settings, "semi_aves", "semi_aves_species_names.txt")


def load(root: Path | None, settings: Settings) -> Catalog:
    assert root is not None
    return lists.to_catalog("semi_aves", read(root, settings), root, settings)
