"""The studio on photos without a run: features of a pretrained network, and groups of similar photos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.config.autotune import choose_network
from semifine.config.train_settings import TrainSettings
from semifine.data import sources
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.devices import inference_device
from semifine.errors import UserError
from semifine.features.live import principal_components
from semifine.features.pretrained import pretrained_evaluator
from semifine.studio.snapshot import (
    ConfusionMap,
    Features,
    Indices,
    ModelSnapshot,
    center_and_normalize,
    drop_repeated_paths,
)

PHOTOS_PER_GROUP = 20
"""Mean size of a group. A person looks through it on one page of the grid."""
MIN_GROUPS, MAX_GROUPS = 8, 500
ROUNDS = 12
SAMPLE = 20_000
"""Photos from which the centers of the groups are computed."""
GROUP_COMPONENTS = 64

Progress = Callable[[str, int, int], None]
"""Called with a step (``decoding`` or ``features``), the number of finished photos, and the number of all."""


def _no_progress(step: str, done: int, total: int) -> None:
    pass


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


def open_photos(data: str, settings: dict[str, Any]) -> Dataset:
    """Opens photos that may have no labels.

    Args:
        data: A folder of photos, a table, or another data source.
        settings: Settings of the data source, such as ``crops``.
    """
    name, _ = sources.resolve(data)
    optional = {"optional_labels": True} if name == "folder" else {}
    return Dataset.open(data, {**plain_settings(name), **optional, **settings})


def plain_settings(source: str) -> dict[str, Any]:
    """Returns settings of a data source with which no labels are held out."""
    return {"val_share": 0.0} if sources.is_own_photos(source) else {}


def take_plain_snapshot(
    path: Path,
    dataset: Dataset,
    device: Literal["auto", "cpu", "cuda"],
    *,
    cache: Path | None = None,
    progress: Progress = _no_progress,
    log: Callable[[str], object] = lambda _: None,
) -> ModelSnapshot:
    """Computes features of all photos with a pretrained network, and groups the unlabeled ones.

    Args:
        path: The folder of photos; its name is the name of the studio.
        dataset: The photos.
        device: Device of the network.
        cache: Folder of decoded images and features; by default that of ``train``.
        progress: Receives the progress.
        log: Receives notes.
    """
    train = _network_settings(dataset)
    store = dataset.open_store(
        train.stored_side, cache_dir=cache, progress=lambda done, total: progress("decoding", done, total), log=log
    )
    catalog = dataset.catalog
    rows = drop_repeated_paths(catalog, catalog.rows(Split.UNLABELED))
    if not len(rows):
        raise UserError(f"{path} has no unlabeled photos: there is nothing to label.")
    labeled_rows = catalog.rows(Split.LABELED)
    every_row = np.concatenate([labeled_rows, rows])
    evaluator = pretrained_evaluator(
        store,
        train.backbone,
        train.image_size,
        train.stored_side,
        device=inference_device(device) if device != "cpu" else torch.device("cpu"),
        cache=cache,
        progress=lambda done: progress("features", done, len(every_row)),
    )
    raw = evaluator.features(every_row)
    normalized = center_and_normalize(raw, raw.mean(axis=0))
    labeled_features, features = normalized[: len(labeled_rows)], normalized[len(labeled_rows) :]
    group = group_photos(principal_components(features, GROUP_COMPONENTS))
    count = len(rows)
    by_group = np.lexsort((np.arange(count), group))
    return ModelSnapshot(
        run=path,
        result={},
        catalog=catalog,
        store=store,
        rows=rows,
        probs=np.zeros((count, 0), np.float32),
        num_candidates=None,
        features=features,
        labeled_rows=labeled_rows,
        labeled_features=labeled_features,
        uncertainty=np.ones(count),
        confusion_map=ConfusionMap([], np.zeros(0, np.int64), [], np.zeros((0, 2))),
        orders={"informative": typical_first(features, group), "cluster": by_group},
        photo_groups=group,
    )


def _network_settings(dataset: Dataset) -> TrainSettings:
    """Returns the network that ``train`` would choose, so that both share decoded images and features."""
    chosen = choose_network(dataset.catalog, {"time", "probe"}, TrainSettings(pretrained=True)).values
    defaults = TrainSettings()
    backbone = str(chosen.get("backbone", defaults.backbone))
    return TrainSettings(backbone=backbone, image_size=int(chosen.get("image_size", defaults.image_size)))


def typical_first(features: Features, group: Indices) -> Indices:
    """Orders photos for the first names: the most typical photo of each group, then the second, and so on.

    Example:
        >>> unit = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], np.float32)
        >>> typical_first(unit, np.array([0, 0, 0, 1])).tolist()
        [1, 3, 2, 0]
    """
    sums = np.zeros((int(group.max()) + 1, features.shape[1]), np.float32)
    np.add.at(sums, group, features)
    typicality = (features * sums[group]).sum(axis=1)
    order = np.lexsort((-typicality, group))
    starts = np.searchsorted(group[order], np.arange(len(sums)))
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - starts[group[order]]
    return np.lexsort((group, rank))
