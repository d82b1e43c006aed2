"""The studio on photos without a run: features of a pretrained network, and groups of similar photos."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from semifine.config.autotune import choose_network
from semifine.config.train_settings import TrainSettings
from semifine.data import sources
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.store import ImageStore
from semifine.devices import inference_device
from semifine.errors import UserError
from semifine.features.extract import FeatureEvaluator
from semifine.features.pretrained import pretrained_evaluator
from semifine.studio.plain_start import Start, cached_start, compute_start
from semifine.studio.snapshot import (
    ConfusionMap,
    Features,
    Indices,
    ModelSnapshot,
    NewImages,
    drop_repeated_paths,
)

Progress = Callable[[str, int, int], None]
"""Called with a step (``decoding`` or ``features``), the number of finished photos, and the number of all."""


def _no_progress(step: str, done: int, total: int) -> None:
    pass


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
        cache: Folder of decoded images and features; by default the folder of ``train``.
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
    evaluator_of = _evaluator_factory(train, device, cache)

    def compute() -> Start:
        evaluator = evaluator_of(store, progress=lambda done: progress("features", done, len(every_row)))
        return compute_start(evaluator.features(every_row), len(labeled_rows))

    name = f"{train.backbone} {train.image_size} {train.stored_side} {len(labeled_rows)}"
    start = cached_start(cache, name.encode() + store.digest[every_row].tobytes(), len(rows), compute)
    labeled_features, features = np.split(start.features, [len(labeled_rows)])
    group, count = start.group, len(rows)
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
        embed=partial(_embed_new, evaluator_of, start),
    )


def _embed_new(
    evaluator_of: Callable[[ImageStore], FeatureEvaluator], start: Start, catalog: Catalog, store: ImageStore
) -> NewImages:
    """Computes features of other photos, as for the photos at the start."""
    raw = evaluator_of(store).features(np.arange(len(catalog)))
    return NewImages(start.normalize(raw), np.zeros((len(catalog), 0), np.float32))


def _evaluator_factory(
    train: TrainSettings, device: Literal["auto", "cpu", "cuda"], cache: Path | None
) -> Callable[..., FeatureEvaluator]:
    """Returns a function that creates the evaluator of the pretrained network for a store."""
    return partial(
        pretrained_evaluator,
        backbone=train.backbone,
        image_size=train.image_size,
        stored_side=train.stored_side,
        device=inference_device(device),
        cache=cache,
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
    member = csr_array((np.ones(len(group), np.float32), (group, np.arange(len(group)))))
    sums = np.asarray(member @ features)
    typicality = (features * sums[group]).sum(axis=1)
    order = np.lexsort((-typicality, group))
    starts = np.searchsorted(group[order], np.arange(len(sums)))
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - starts[group[order]]
    return np.lexsort((group, rank))
