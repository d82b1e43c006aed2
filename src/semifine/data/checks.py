"""Checks of a data set before training: counts, duplicates, leaks between splits, unreadable images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import digest_of
from semifine.data.store import ImageStore, unreadable_images
from semifine.data.store_files import SIDE, Hash

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


def find_near_duplicates(catalog: Catalog, store: ImageStore) -> Pairs:
    """(row for training, row for measuring, bits that differ), the most alike first; exact copies are left out.

    Of each image for measuring only the pair with the image for training that is most alike.
    """
    usable = store.readable & _has_features(store.phash)
    is_measured = np.isin(catalog.split, (Split.VAL, Split.TEST))
    train, measured = np.flatnonzero(usable & ~is_measured), np.flatnonzero(usable & is_measured)
    nearest = np.full(len(measured), BITS * len(catalog), np.int64)  # bits that differ * rows + row for training
    for places, targets, bits in _close_pairs(store.phash[train], store.phash[measured]):
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
    """The bits in another order: a piece of neighboring ones, say of a sky or a caption, would be shared by many."""
    bits = np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), axis=1)
    order = np.random.default_rng(0).permutation(BITS)
    return np.ascontiguousarray(np.packbits(bits[:, order], axis=1)).view(np.uint16)


IMBALANCE = 10
"""A class with this many times the labeled images of another is worth a warning."""
_SHOWN = 3


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some numbers."""

    min: int
    median: float
    max: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> Spread:
        if not len(values):
            return cls(0, 0.0, 0)
        return cls(int(values.min()), float(np.median(values)), int(values.max()))


@dataclass(frozen=True)
class DataReport:
    """The findings; ``errors`` make results meaningless, ``warnings`` are worth a look."""

    name: str
    num_images: int
    splits: dict[str, int]
    """Images of each split."""
    classes: dict[str, dict[str, int]]
    """Labeled, val and test images of each class."""
    labeled_per_class: Spread
    unlabeled_truth: dict[str, int]
    """Unlabeled images that are known to be of a known class, of another, or of which nothing is known."""
    height: Spread
    """Before any resizing."""
    width: Spread
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason."""
    duplicates: list[list[str]] = field(default_factory=list)
    """Groups of exact copies that are not overlaps."""
    overlaps: list[list[str]] = field(default_factory=list)
    """Groups of exact copies of which one is for training and one for val or test."""
    near_duplicates: list[tuple[str, str]] = field(default_factory=list)
    """Images for measuring, each after one for training that looks the same, where they were looked for."""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def inspect(catalog: Catalog, store: ImageStore, *, near_duplicates: bool = False) -> DataReport:
    """Looks at every image's label, size and content; ``near_duplicates`` seeks near-duplicates too.

    That takes about a second for 100,000 images.
    """
    alike = find_near_duplicates(catalog, store) if near_duplicates else []
    counts = _counts(catalog)
    copies = _copies(catalog, store)
    overlaps = [rows for rows in copies if _is_overlap(catalog.split[rows])]
    duplicates = [rows for rows in copies if not _is_overlap(catalog.split[rows])]
    unreadable = unreadable_images(catalog, store)
    sizes = store.original_size[store.readable]
    return DataReport(
        name=catalog.name,
        num_images=len(catalog),
        splits={split.name.lower(): int((catalog.split == split).sum()) for split in Split},
        classes={
            name: {split.name.lower(): int(counts[split][class_id]) for split in counts}
            for class_id, name in enumerate(catalog.class_names)
        },
        labeled_per_class=Spread.of(counts[Split.LABELED]),
        unlabeled_truth=_truth_counts(catalog),
        height=Spread.of(sizes[:, 0]),
        width=Spread.of(sizes[:, 1]),
        unreadable=unreadable,
        duplicates=[[catalog.paths[row] for row in rows] for rows in duplicates],
        overlaps=[[catalog.paths[row] for row in rows] for rows in overlaps],
        near_duplicates=[(catalog.paths[a], catalog.paths[b]) for a, b, _ in alike],
        errors=[*_missing_classes(catalog, counts), *_overlap_errors(catalog, overlaps)],
        warnings=[
            *_empty_splits(catalog),
            *_imbalance(catalog, counts[Split.LABELED]),
            *_duplicate_warnings(catalog, duplicates),
            *_conflicts(catalog, copies),
            *_look_alike_warning(catalog, alike),
            *_unreadable_warning(unreadable),
        ],
    )


def _counts(catalog: Catalog) -> dict[Split, NDArray[np.int64]]:
    """Images of each class in the splits that have labels."""
    return {
        split: np.bincount(catalog.label[catalog.split == split], minlength=catalog.num_classes)
        for split in (Split.LABELED, Split.VAL, Split.TEST)
    }


def _truth_counts(catalog: Catalog) -> dict[str, int]:
    truth = catalog.truth[catalog.split == Split.UNLABELED]
    return {
        "known_class": int(((truth >= 0) & (truth < catalog.num_classes)).sum()),
        "other_class": int((truth >= catalog.num_classes).sum()),
        "unknown": int((truth == UNKNOWN).sum()),
    }


def _copies(catalog: Catalog, store: ImageStore) -> list[list[int]]:
    """Groups of rows with the same content; an unreadable image has only its path to go by."""
    keys = store.digest.copy()
    for row in np.flatnonzero(~store.readable).tolist():
        keys[row] = np.frombuffer(digest_of(b"path" + catalog.paths[row].encode()), np.uint8)
    _, group, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    repeated = np.flatnonzero(size[group] > 1)
    groups: dict[int, list[int]] = {}
    for row in repeated.tolist():
        groups.setdefault(int(group[row]), []).append(row)
    return list(groups.values())


def _is_overlap(splits: NDArray[np.uint8]) -> bool:
    """Whether an image is for training and for measuring at once."""
    present = {Split(split) for split in splits}
    return bool(present & {Split.LABELED, Split.UNLABELED}) and bool(present & {Split.VAL, Split.TEST})


def _splits_of(catalog: Catalog, rows: list[int]) -> str:
    return " and ".join(split.name.lower() for split in Split if (catalog.split[rows] == split).any())


def _by_splits(catalog: Catalog, groups: list[list[int]]) -> dict[str, list[list[int]]]:
    sorted_out: dict[str, list[list[int]]] = {}
    for rows in groups:
        sorted_out.setdefault(_splits_of(catalog, rows), []).append(rows)
    return sorted_out


def _overlap_errors(catalog: Catalog, overlaps: list[list[int]]) -> list[str]:
    return [
        f"{len(groups)} image{'s are' if len(groups) > 1 else ' is'} in {splits} at once, so the measured "
        f"accuracy would be too good: remove the copies from one ({_shown(catalog, groups)})."
        for splits, groups in _by_splits(catalog, overlaps).items()
    ]


def _duplicate_warnings(catalog: Catalog, duplicates: list[list[int]]) -> list[str]:
    return [
        f"{len(groups)} image{'s have' if len(groups) > 1 else ' has'} exact copies in {splits} "
        f"({_shown(catalog, groups)})."
        for splits, groups in _by_splits(catalog, duplicates).items()
    ]


def _conflicts(catalog: Catalog, copies: list[list[int]]) -> list[str]:
    groups = [rows for rows in copies if len(set(catalog.label[rows].tolist()) - {UNKNOWN}) > 1]
    if not groups:
        return []
    return [f"{len(groups)} of the copied images have different labels ({_shown(catalog, groups)})."]


def _look_alike_warning(catalog: Catalog, alike: Pairs) -> list[str]:
    if not alike:
        return []
    pairs = [[train, measured] for train, measured, _ in alike]
    return [
        f"{len(alike)} image{'s' if len(alike) > 1 else ''} for measuring look{'' if len(alike) > 1 else 's'} the same "
        "as one for training, perhaps of one burst; the measured accuracy may be too good "
        f"({_shown(catalog, pairs)})."
    ]


def _shown(catalog: Catalog, groups: list[list[int]]) -> str:
    pairs = [" = ".join(dict.fromkeys(catalog.paths[row] for row in rows[:2])) for rows in groups[:_SHOWN]]
    return "; ".join(pairs) + ("; …" if len(groups) > _SHOWN else "")


def _missing_classes(catalog: Catalog, counts: dict[Split, NDArray[np.int64]]) -> list[str]:
    return [
        f"Class '{catalog.class_names[class_id]}' has no labeled image: add at least one."
        for class_id in np.flatnonzero(counts[Split.LABELED] == 0)
    ]


def _empty_splits(catalog: Catalog) -> list[str]:
    meaning = {
        Split.UNLABELED: "there is nothing to learn from but the labeled images",
        Split.TEST: "the accuracy of the final model cannot be measured",
    }
    return [
        f"There are no {split.name.lower()} images: {what}."
        for split, what in meaning.items()
        if not (catalog.split == split).any()
    ]


def _imbalance(catalog: Catalog, labeled: NDArray[np.int64]) -> list[str]:
    few, many = int(labeled.argmin()), int(labeled.argmax())
    if labeled[few] == 0 or labeled[many] < IMBALANCE * labeled[few]:
        return []
    return [
        f"Class '{catalog.class_names[many]}' has {labeled[many]} labeled images, "
        f"class '{catalog.class_names[few]}' only {labeled[few]}."
    ]


def _unreadable_warning(unreadable: list[tuple[str, str]]) -> list[str]:
    if not unreadable:
        return []
    names = ", ".join(path for path, _ in unreadable[:_SHOWN]) + (", …" if len(unreadable) > _SHOWN else "")
    return [f"{len(unreadable)} image{'s' if len(unreadable) > 1 else ''} cannot be read ({names})."]
