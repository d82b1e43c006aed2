"""Features and groups of photos without a run; features of many photos are reduced and cached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from semifine.data.store import default_cache_dir
from semifine.features.live import Projection, fit_projection, principal_components
from semifine.files import write_atomically
from semifine.studio.snapshot import Features, Indices, center_and_normalize

LARGE = 10_000
"""Number of photos from which principal components replace the features, and are cached. They open in less time, and
take a fifth of the memory."""
DIM = 256
"""Number of principal components."""
PHOTOS_PER_GROUP = 20
"""Mean size of a group. A person looks through it on one page of the grid."""
MIN_GROUPS, MAX_GROUPS = 8, 500
ROUNDS = 12
SAMPLE = 20_000
"""Photos from which the centers of the groups are computed."""
GROUP_COMPONENTS = 64


@dataclass(frozen=True, eq=False)
class Start:
    """What the studio knows about L labeled and U unlabeled photos before people label.

    Args:
        features: Normalized features ``(L + U, D)``, or their normalized principal components.
        group: Group of similar photos ``(U,)``.
        center: The center of the raw features.
        projection: The projection on principal components; None for all features.
    """

    features: Features
    group: Indices
    center: Features
    projection: Projection | None = None

    def normalize(self, raw: Features) -> Features:
        """Reduces raw features of other photos ``(M, D)`` as the features of this start were reduced."""
        normalized = center_and_normalize(raw, self.center)
        return normalized if self.projection is None else _to_unit_length(self.projection.apply(normalized))


def compute_start(raw: Features, num_labeled: int) -> Start:
    """Normalizes features and groups the unlabeled photos.

    Args:
        raw: Features of the labeled and then the unlabeled photos ``(L + U, D)``.
        num_labeled: L.
    """
    center = raw.mean(axis=0)
    features, projection = center_and_normalize(raw, center), None
    if len(raw) - num_labeled >= LARGE:
        projection = fit_projection(features, DIM)
        features = projection.apply(features)
        group = group_photos(features[num_labeled:, :GROUP_COMPONENTS])
        features = _to_unit_length(features)
    else:
        group = group_photos(principal_components(features[num_labeled:], GROUP_COMPONENTS))
    return Start(features, group, center, projection)


def _to_unit_length(features: Features) -> Features:
    return center_and_normalize(features, np.zeros(features.shape[1], np.float32))


def cached_start(cache: Path | None, key: bytes, unlabeled: int, compute: Callable[[], Start]) -> Start:
    """Reads the start of many photos from the cache; computes and writes it if it is missing or damaged.

    Args:
        cache: Folder of the cache; by default the folder of decoded images.
        key: Everything on which the start depends.
        unlabeled: Number of unlabeled photos. Fewer than ``LARGE`` are not cached.
        compute: Computes the start.
    """
    if unlabeled < LARGE:
        return compute()
    folder = default_cache_dir() if cache is None else Path(cache).expanduser()
    file = folder / f"studio-{hashlib.blake2b(key, digest_size=12).hexdigest()}.safetensors"
    try:
        found = load_file(file)
        projection = Projection(found["matrix"], found["offset"], np.float32(found["scale"][0]))
        return Start(found["features"], found["group"], found["center"], projection)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError):
        start = compute()
    if start.projection is not None:
        matrix, offset, scale = start.projection
        arrays: dict[str, NDArray[Any]] = {"features": start.features, "group": start.group, "center": start.center}
        arrays |= {"matrix": matrix, "offset": offset, "scale": np.array([scale], np.float32)}
        try:
            # The format ignores the order of arrays in memory.
            write_atomically(file, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
        except OSError:  # without permission or space, it is computed again at the next start
            return start
    return start


def group_photos(components: Features, seed: int = 0) -> Indices:
    """Groups similar photos by spherical k-means. The groups are numbered by size, the largest is 0.

    Args:
        components: Features of the photos ``(U, D)``.
        seed: Seed of the first centers.

    Returns:
        The group of each photo ``(U,)``.

    Example:
        >>> angle = np.repeat([0.0, 2.0], [30, 20])
        >>> group_photos(np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)).tolist()[::10]
        [0, 0, 0, 1, 1]
    """
    count = len(components)
    k = min(MAX_GROUPS, max(1, min(count // 4, MIN_GROUPS), round(count / PHOTOS_PER_GROUP)))
    unit = center_and_normalize(components, np.zeros(components.shape[1], np.float32))
    random = np.random.default_rng(seed)
    sample = unit if count <= SAMPLE else unit[np.sort(random.choice(count, SAMPLE, replace=False))]
    centers = _spread_centers(sample, k, random)
    for _ in range(ROUNDS):
        nearest = (sample @ centers.T).argmax(axis=1)
        sums = np.zeros_like(centers)
        np.add.at(sums, nearest, sample)
        length = np.linalg.norm(sums, axis=1, keepdims=True)
        centers = np.where(length > 0, sums / np.maximum(length, 1e-12), centers)
    group = (unit @ centers.T).argmax(axis=1)
    sizes = np.bincount(group, minlength=k)
    rank = np.empty(k, np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(k)
    numbered: Indices = rank[group]
    return numbered


def _spread_centers(sample: Features, k: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Chooses the first centers as k-means++: far photos are more probable."""
    chosen = [int(random.integers(len(sample)))]
    distance = np.maximum(1 - sample @ sample[chosen[0]], 0)
    for _ in range(k - 1):
        total = float(distance.sum())
        weights = distance / total if total > 1e-9 else np.full(len(sample), 1 / len(sample))
        chosen.append(int(random.choice(len(sample), p=weights / weights.sum())))
        distance = np.minimum(distance, np.maximum(1 - sample @ sample[chosen[-1]], 0))
    return sample[chosen].copy()
