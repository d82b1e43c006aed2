"""Images that look the same although their files differ: resized, compressed anew, or shot a moment later."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.data.perceptual_hash import SIDE, Hash
from semifine.data.store import ImageStore

BITS = SIDE * SIDE
PIECES = 16
"""A hash is cut into so many pieces of 16 bits; hashes that differ in fewer bits share a piece at least."""
MOST_BITS = PIECES - 1
"""Two near-duplicates may differ in so many bits."""
FEWEST_EDGES = 16
"""A hash with fewer bits set, or not set, is of a picture without features: all such look alike."""
MOST_SHARING = 128
"""Of images that share a piece no more are compared with one: the thousands of a fixed camera would be a square."""
AT_ONCE = 1_000_000
"""Comparisons in memory at a time."""

Pairs = list[tuple[int, int, int]]
Rows = NDArray[np.int64]


def near_duplicates(catalog: Catalog, store: ImageStore) -> Pairs:
    """(row for training, row for measuring, bits that differ), the most alike first; exact copies are left out.

    Of each image for measuring only the pair with the image for training that is most alike.
    """
    usable = store.readable & _has_features(store.look)
    is_measured = np.isin(catalog.split, (Split.VAL, Split.TEST))
    train, measured = np.flatnonzero(usable & ~is_measured), np.flatnonzero(usable & is_measured)
    nearest = np.full(len(measured), BITS * len(catalog), np.int64)  # bits that differ * rows + row for training
    for places, targets, bits in _close_pairs(store.look[train], store.look[measured]):
        rows = train[places]
        equal = np.flatnonzero(bits == 0)
        is_copy = (store.digest[rows[equal]] == store.digest[measured[targets[equal]]]).all(axis=1)
        bits[equal[is_copy]] = BITS
        found = bits * len(catalog) + rows
        first = np.flatnonzero(np.diff(targets, prepend=-1))
        if len(first):
            nearest[targets[first]] = np.minimum(nearest[targets[first]], np.minimum.reduceat(found, first))
    bits, rows = np.divmod(nearest, len(catalog))
    pairs = zip(rows.tolist(), measured.tolist(), bits.tolist(), strict=True)
    return sorted((pair for pair in pairs if pair[2] < BITS), key=lambda pair: (pair[2], *pair[:2]))


def _has_features(hashes: Hash) -> NDArray[np.bool_]:
    set_bits = np.bitwise_count(hashes).sum(axis=1)
    enough: NDArray[np.bool_] = (set_bits >= FEWEST_EDGES) & (set_bits <= BITS - FEWEST_EDGES)
    return enough


def _close_pairs(first: Hash, second: Hash) -> Iterator[tuple[Rows, Rows, Rows]]:
    """(places in first, places in second, bits that differ) of pairs up to MOST_BITS, sorted by the second.

    A pair comes again with each piece that is shared.
    """
    mixed_first, mixed_second = _mixed(first), _mixed(second)
    words_first, words_second = mixed_first.view(np.uint64), mixed_second.view(np.uint64)
    for piece in range(PIECES):
        order = np.argsort(mixed_first[:, piece], kind="stable")
        keys = mixed_first[order, piece]
        starts = np.searchsorted(keys, mixed_second[:, piece], side="left")
        sharing = np.searchsorted(keys, mixed_second[:, piece], side="right") - starts
        sharing = np.minimum(sharing, MOST_SHARING)
        for chunk in np.split(np.arange(len(second)), _cuts(sharing)):
            targets = np.repeat(chunk, sharing[chunk])
            before = np.repeat(np.cumsum(sharing[chunk]) - sharing[chunk], sharing[chunk])
            places = order[starts[targets] + np.arange(len(targets)) - before]
            bits = np.bitwise_count(words_first[places] ^ words_second[targets]).sum(axis=1, dtype=np.int64)
            is_close = bits <= MOST_BITS
            yield places[is_close], targets[is_close], bits[is_close]


def _cuts(sizes: Rows) -> Rows:
    """Where to cut a row of things of these sizes so that AT_ONCE is exceeded by less than one of them."""
    return np.flatnonzero(np.diff(np.cumsum(sizes) // AT_ONCE)) + 1


def _mixed(hashes: Hash) -> Hash:
    """The bits in another order: a piece of neighbouring ones, say of a sky or a caption, would be shared by many."""
    bits = np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), axis=1)
    order = np.random.default_rng(0).permutation(BITS)
    return np.ascontiguousarray(np.packbits(bits[:, order], axis=1)).view(np.uint16)
