"""A trial before training: trains without a part of the labels, to compare the probe and the trained network on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.features.probe import stratified_folds
from semifine.inference.calibration import MIN_IMAGES

SHARE = 4
"""A trial holds out one in so many labels, or more of them if a quarter is too few to calibrate the network."""
MIN_HELD_OUT = 10
"""With fewer held-out labels, a comparison says nothing."""


def hold_out_labels(dataset: Dataset, seed: int) -> Dataset | None:
    """Returns the data set with a part of the labeled images as validation images; None if there are too few.

    The images of a class are spread evenly. A class with one image keeps it. Copies of an image stay together. At most
    half of the labels are held out.

    Example:
        >>> dataset = Dataset.open("synthetic", {"genera": 4, "species": 3, "val_per_class": 0})
        >>> held_out = hold_out_labels(Dataset.from_catalog(dataset.catalog, None), seed=0)
        >>> [len(held_out.catalog.rows(split)) for split in (Split.LABELED, Split.VAL)]
        [40, 20]
    """
    catalog = dataset.catalog
    labeled = catalog.rows(Split.LABELED)
    share = int(np.clip(len(labeled) // MIN_IMAGES, 2, SHARE))
    folds = stratified_folds(torch.from_numpy(catalog.label[labeled]), seed, max_folds=share).numpy()
    held_out = labeled[folds == 0]
    if dataset.is_decoded:
        digests = [row.tobytes() for row in dataset.store.digest]
        kept = {digests[row] for row in labeled[folds != 0].tolist()}
        held_out = np.array([row for row in held_out.tolist() if digests[row] not in kept], np.int64)
    if len(held_out) < MIN_HELD_OUT:
        return None
    return Dataset.from_catalog(_as_validation(catalog, held_out), dataset.store if dataset.is_decoded else None)


def _as_validation(catalog: Catalog, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Catalog:
    split = catalog.split.copy()
    split[rows] = Split.VAL
    return dataclasses.replace(catalog, split=split)
