"""Which images may be left out because they cannot be read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError


def rows_to_keep(catalog: Catalog, reasons: Mapping[int, str], skip_unreadable: bool) -> NDArray[np.int64]:
    """The rows without those that ``reasons`` say to be unreadable.

    A broken labelled, val or test image is a UserError, because results would silently be about other data, unless
    ``skip_unreadable`` allows it.
    """
    broken = np.array(sorted(reasons), np.int64)
    needed = broken[catalog.split[broken] != Split.UNLABELLED]
    if len(needed) and not skip_unreadable:
        row = int(needed[0])
        more = f", nor can {len(needed) - 1} others" if len(needed) > 1 else ""
        raise UserError(
            f"The {Split(catalog.split[row]).name.lower()} image {catalog.paths[row]} cannot be read{more} "
            f"({reasons[row]}): replace it, or set skip_unreadable to leave it out."
        )
    kept = np.delete(np.arange(len(catalog)), broken)
    labelled = catalog.label[kept][catalog.split[kept] == Split.LABELLED]
    empty = np.flatnonzero(np.bincount(labelled, minlength=catalog.num_classes) == 0)
    if len(broken) and len(empty):
        raise UserError(f"All labelled images of class '{catalog.class_names[empty[0]]}' are unreadable: replace them.")
    return kept
