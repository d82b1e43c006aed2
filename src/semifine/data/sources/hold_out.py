"""Setting labelled images aside for validation where the data has no validation split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Split


def hold_out_validation(
    label: NDArray[np.int64], split: NDArray[np.uint8], share: float, seed: int
) -> NDArray[np.uint8]:
    """The splits with about ``share`` of each class's labelled images moved to validation.

    Stratified: every class gives at least one image and keeps at least one, so a class of one gives none.
    Does nothing where a validation split exists already.
    """
    if share == 0 or (split == Split.VAL).any():
        return split
    random = np.random.default_rng(seed)
    split = split.copy()
    for class_id in np.unique(label[split == Split.LABELLED]):
        rows = np.flatnonzero((label == class_id) & (split == Split.LABELLED))
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        split[random.permutation(rows)[:count]] = Split.VAL
    return split
