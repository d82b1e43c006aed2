"""Checks of a data set before training: class counts, images that are left out, duplicates, leaks between splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.left_out import LeftOut, describe_left_out
from semifine.data.selection import Selection, find_exact_copies
from semifine.data.store import HASH_SIDE, Hashes, ImageStore

MIN_IMBALANCE = 10
"""A warning is shown if a class has this many times the labeled images of another."""
_SHOWN = 3


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum.

    Example:
        >>> Spread.of(np.array([3, 1, 8]))
        Spread(min=1, median=3.0, max=8)
    """

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
    """Findings of the checks. ``errors`` make results meaningless, ``warnings`` should be looked at.

    All numbers count the images that are used, without ``left_out``.
    """

    name: str
    num_images: int
    splits: dict[str, int]
    """Number of images per split."""
    classes: dict[str, dict[str, int]]
    """Number of labeled, val and test images per class."""
    labeled_per_class: Spread
    unlabeled_truth: dict[str, int]
    """Number of unlabeled images whose hidden class is in the label set, outside of it, or unknown."""
    height: Spread
    """Height of the original images."""
    width: Spread
    """Width of the original images."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Images and classes that are not used."""
    duplicates: list[list[str]] = field(default_factory=list)
    """Groups of exact copies within the training images, or within the validation and test images."""
    overlaps: list[list[str]] = field(default_factory=list)
    """Groups of exact copies that contain both training images and validation or test images of published splits."""
    near_duplicates: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of a training image and a validation or test image that look the same."""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """Path and reason of the unreadable images."""
        return [(item.path, item.reason) for item in self.left_out if item.kind == "unreadable"]

    def describe_left_out(self) -> str:
        """Number of images and classes that are left out, by reason; "" if there are none."""
        return describe_left_out(self.left_out)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def inspect(selection: Selection, *, near_duplicates: bool = False) -> DataReport:
    """Checks labels, sizes and contents of the images that are used.

    Args:
        selection: The images that are used, and the others.
        near_duplicates: Also find near-duplicates, which takes about a second per 100,000 images.

    Example:
        >>> from semifine.data.selection import select_images
        >>> from semifine.data.sources import load_catalog
        >>> from semifine.data.store import open_store
        >>> catalog = load_catalog("synthetic")
        >>> inspect(select_images(catalog, open_store(catalog, size=32))).labeled_per_class
        Spread(min=5, median=5.0, max=5)
    """
    catalog, store = selection.catalog, selection.store
    similar = find_near_duplicates(catalog, store) if near_duplicates else []
    counts = _class_counts(catalog)
    copies = find_exact_copies(store)
    overlaps = [rows for rows in copies if _is_overlap(catalog.split[rows])]
    duplicates = [rows for rows in copies if not _is_overlap(catalog.split[rows])]
    sizes = store.original_size
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
        left_out=list(selection.left_out),
        duplicates=[[catalog.paths[row] for row in rows] for rows in duplicates],
        overlaps=[[catalog.paths[row] for row in rows] for rows in overlaps],
        near_duplicates=[(catalog.paths[train], catalog.paths[test]) for train, test, _ in similar],
        errors=list(selection.errors),
        warnings=[
            *_empty_splits(catalog),
            *_imbalance(catalog, counts[Split.LABELED]),
            *_overlap_warnings(catalog, overlaps),
            *_duplicate_warnings(catalog, duplicates),
            *_label_conflicts(catalog, copies),
            *_near_duplicate_warning(catalog, similar),
        ],
    )


def _class_counts(catalog: Catalog) -> dict[Split, NDArray[np.int64]]:
    """`(classes,)` number of images per class in the splits that have labels."""
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


def _is_overlap(splits: NDArray[np.uint8]) -> bool:
    """Whether copies are both in the training images and in the validation or test images."""
    present = {Split(split) for split in splits}
    return bool(present & {Split.LABELED, Split.UNLABELED}) and bool(present & {Split.VAL, Split.TEST})


def _by_splits(catalog: Catalog, groups: list[list[int]]) -> dict[str, list[list[int]]]:
    """Groups of rows by the names of their splits, such as "labeled and test"."""
    by_splits: dict[str, list[list[int]]] = {}
    for rows in groups:
        splits = " and ".join(split.name.lower() for split in Split if (catalog.split[rows] == split).any())
        by_splits.setdefault(splits, []).append(rows)
    return by_splits


def _overlap_warnings(catalog: Catalog, overlaps: list[list[int]]) -> list[str]:
    return [
        f"{len(groups)} image{'s are' if len(groups) > 1 else ' is'} in {splits} of the published splits, which are "
        f"kept as they are ({_show_paths(catalog, groups)})."
        for splits, groups in _by_splits(catalog, overlaps).items()
    ]


def _duplicate_warnings(catalog: Catalog, duplicates: list[list[int]]) -> list[str]:
    return [
        f"{len(groups)} image{'s have' if len(groups) > 1 else ' has'} exact copies in {splits} "
        f"({_show_paths(catalog, groups)})."
        for splits, groups in _by_splits(catalog, duplicates).items()
    ]


def _label_conflicts(catalog: Catalog, copies: list[list[int]]) -> list[str]:
    groups = [rows for rows in copies if len(set(catalog.label[rows].tolist()) - {UNKNOWN}) > 1]
    if not groups:
        return []
    return [f"{len(groups)} of the copied images have different labels ({_show_paths(catalog, groups)})."]


def _near_duplicate_warning(catalog: Catalog, similar: Pairs) -> list[str]:
    if not similar:
        return []
    several = len(similar) > 1
    pairs = [[train, test] for train, test, _ in similar]
    return [
        f"{len(similar)} validation or test image{'s look' if several else ' looks'} the same as a training image, "
        f"perhaps from one burst; the measured accuracy may be too high ({_show_paths(catalog, pairs)})."
    ]


def _show_paths(catalog: Catalog, groups: list[list[int]]) -> str:
    pairs = [" = ".join(dict.fromkeys(catalog.paths[row] for row in rows[:2])) for rows in groups[:_SHOWN]]
    return "; ".join(pairs) + ("; …" if len(groups) > _SHOWN else "")


def _empty_splits(catalog: Catalog) -> list[str]:
    consequences = {
        Split.UNLABELED: "training uses the labeled images only",
        Split.TEST: "the accuracy of the final model cannot be measured",
    }
    return [
        f"There are no {split.name.lower()} images: {consequence}."
        for split, consequence in consequences.items()
        if not (catalog.split == split).any()
    ]


def _imbalance(catalog: Catalog, labeled: NDArray[np.int64]) -> list[str]:
    if not len(labeled):
        return []
    fewest, most = int(labeled.argmin()), int(labeled.argmax())
    if labeled[fewest] == 0 or labeled[most] < MIN_IMBALANCE * labeled[fewest]:
        return []
    return [
        f"Class '{catalog.class_names[most]}' has {labeled[most]} labeled images, "
        f"class '{catalog.class_names[fewest]}' only {labeled[fewest]}."
    ]


# Near-duplicates

HASH_BITS = HASH_SIDE * HASH_SIDE
HASH_PIECES = 16
"""Hashes are compared if one of their 16 pieces of 16 bits is equal."""
MAX_DISTANCE = HASH_PIECES - 1
"""Largest Hamming distance of near-duplicates. Hashes up to this distance have at least one equal piece."""
MIN_EDGES = 16
"""Hashes with fewer set or unset bits belong to images without features, which all have similar hashes."""
MAX_CANDIDATES = 128
"""Maximum number of comparisons per image and piece. Images of a fixed camera would otherwise need thousands."""
CHUNK_SIZE = 1_000_000
"""Comparisons in memory at a time."""

Pairs = list[tuple[int, int, int]]
"""Row of a training image, row of a validation or test image, and Hamming distance of their hashes."""
Indices = NDArray[np.int64]


def find_near_duplicates(catalog: Catalog, store: ImageStore) -> Pairs:
    """Finds validation and test images that look like a training image, by the distance of their perceptual hashes.

    Returns:
        The most similar training image for each of them, sorted by distance. Exact copies are left out.
    """
    usable = store.readable & _has_features(store.phash)
    is_test = np.isin(catalog.split, (Split.VAL, Split.TEST))
    train, test = np.flatnonzero(usable & ~is_test), np.flatnonzero(usable & is_test)
    nearest = np.full(len(test), HASH_BITS * len(catalog), np.int64)  # distance * rows + training row
    for sources, targets, distance in _close_pairs(store.phash[train], store.phash[test]):
        rows = train[sources]
        equal = np.flatnonzero(distance == 0)
        is_copy = (store.digest[rows[equal]] == store.digest[test[targets[equal]]]).all(axis=1)
        distance[equal[is_copy]] = HASH_BITS
        keys = distance * len(catalog) + rows
        first = np.flatnonzero(np.diff(targets, prepend=-1))
        if len(first):
            nearest[targets[first]] = np.minimum(nearest[targets[first]], np.minimum.reduceat(keys, first))
    distance, rows = np.divmod(nearest, len(catalog))
    pairs = zip(rows.tolist(), test.tolist(), distance.tolist(), strict=True)
    return sorted((pair for pair in pairs if pair[2] < HASH_BITS), key=lambda pair: (pair[2], *pair[:2]))


def _has_features(hashes: Hashes) -> NDArray[np.bool_]:
    set_bits = np.bitwise_count(hashes).sum(axis=1)
    has_features: NDArray[np.bool_] = (set_bits >= MIN_EDGES) & (set_bits <= HASH_BITS - MIN_EDGES)
    return has_features


def _close_pairs(first: Hashes, second: Hashes) -> Iterator[tuple[Indices, Indices, Indices]]:
    """Yields (indices of first, indices of second, distances) of pairs up to ``MAX_DISTANCE``, sorted by the second.

    A pair occurs once for each equal piece.
    """
    shuffled_first, shuffled_second = _shuffle_bits(first), _shuffle_bits(second)
    words_first, words_second = shuffled_first.view(np.uint64), shuffled_second.view(np.uint64)
    for piece in range(HASH_PIECES):
        order = np.argsort(shuffled_first[:, piece], kind="stable")
        keys = shuffled_first[order, piece]
        starts = np.searchsorted(keys, shuffled_second[:, piece], side="left")
        candidates = np.searchsorted(keys, shuffled_second[:, piece], side="right") - starts
        candidates = np.minimum(candidates, MAX_CANDIDATES)
        for chunk in np.split(np.arange(len(second)), _chunk_ends(candidates)):
            targets = np.repeat(chunk, candidates[chunk])
            before = np.repeat(np.cumsum(candidates[chunk]) - candidates[chunk], candidates[chunk])
            sources = order[starts[targets] + np.arange(len(targets)) - before]
            distance = np.bitwise_count(words_first[sources] ^ words_second[targets]).sum(axis=1, dtype=np.int64)
            is_close = distance <= MAX_DISTANCE
            yield sources[is_close], targets[is_close], distance[is_close]


def _chunk_ends(sizes: Indices) -> Indices:
    """Where to split items of these sizes, so that chunks exceed ``CHUNK_SIZE`` by less than one item."""
    return np.flatnonzero(np.diff(np.cumsum(sizes) // CHUNK_SIZE)) + 1


def _shuffle_bits(hashes: Hashes) -> Hashes:
    """Permutes the bits, because many images share pieces of neighboring bits, for example of a sky or a caption."""
    bits = np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), axis=1)
    order = np.random.default_rng(0).permutation(HASH_BITS)
    return np.ascontiguousarray(np.packbits(bits[:, order], axis=1)).view(np.uint16)
