"""Images that look the same although their files differ: resized, compressed anew, or shot a moment later."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import Catalog, Split
from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.store import ImageStore

SIDE = 16
BANDS = SIDE
"""A hash is cut into so many pieces of 16 bits; hashes that differ in fewer bits share a piece at least."""
MOST_BITS = BANDS - 1
"""Of the 256 bits two near-duplicates may differ in so many."""
FEWEST_EDGES = 16
"""A hash with fewer bits set, or not set, is of a picture without features: all such look alike."""

Hashes = NDArray[np.uint16]
Pairs = list[tuple[int, int, int]]


def near_duplicates(catalog: Catalog, store: ImageStore) -> Pairs:
    """(row for training, row for measuring, bits that differ), the most alike first; exact copies are left out."""
    hashes = perceptual_hashes(store)
    usable = store.readable & _has_features(hashes)
    is_measured = np.isin(catalog.split, (Split.VAL, Split.TEST))
    train, measured = np.flatnonzero(usable & ~is_measured), np.flatnonzero(usable & is_measured)
    found = {
        (int(train[a]), int(measured[b])): bits
        for a, b, bits in _close_pairs(hashes[train], hashes[measured])
        if not np.array_equal(store.digest[train[a]], store.digest[measured[b]])
    }
    return sorted(((a, b, bits) for (a, b), bits in found.items()), key=lambda pair: (pair[2], *pair[:2]))


def perceptual_hashes(store: ImageStore) -> Hashes:
    """(rows, 16) 256 bits an image: whether each of 16 x 16 cells is brighter than its neighbour to the left."""
    return np.stack(list(map_in_order(lambda row: _hash(store, row), range(len(store)), usable_cores())))


def _hash(store: ImageStore, row: int) -> Hashes:
    if not store.readable[row]:
        return np.zeros(BANDS, np.uint16)
    grey = Image.fromarray(store.image(row).numpy()).convert("L")
    cells = np.asarray(grey.resize((SIDE + 1, SIDE), Image.Resampling.BOX), np.int16)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1], axis=1)
    return bits.view(np.uint16)[:, 0]


def _has_features(hashes: Hashes) -> NDArray[np.bool_]:
    set_bits = np.bitwise_count(hashes).sum(axis=1)
    enough: NDArray[np.bool_] = (set_bits >= FEWEST_EDGES) & (set_bits <= 16 * BANDS - FEWEST_EDGES)
    return enough


def _close_pairs(first: Hashes, second: Hashes) -> Iterator[tuple[int, int, int]]:
    """(index in first, index in second, bits that differ) of all pairs up to MOST_BITS; a pair may come repeatedly."""
    for band in range(BANDS):
        order = np.argsort(first[:, band], kind="stable")
        keys = first[order, band]
        starts = np.searchsorted(keys, second[:, band], side="left")
        ends = np.searchsorted(keys, second[:, band], side="right")
        for b in np.flatnonzero(ends > starts).tolist():
            alike = order[starts[b] : ends[b]]
            bits = np.bitwise_count(first[alike] ^ second[b]).sum(axis=1)
            for place in np.flatnonzero(bits <= MOST_BITS).tolist():
                yield int(alike[place]), b, int(bits[place])
