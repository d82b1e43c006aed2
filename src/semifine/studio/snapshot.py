"""What a run's model says about the images of its data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.data.store import ImageStore
from semifine.errors import UserError
from semifine.inference.calibration import softmax
from semifine.inference.model import TrainedModel
from semifine.report.class_order import choose_k, has_transitions
from semifine.runs.analysis import ConfusedPair, class_clusters, drop_unlinked, most_confused_pairs
from semifine.runs.run import Run

# Among the most uncertain images this many are put in an order that spreads them; beyond, uncertainty alone decides.
POOL = 2000


SPREAD = 500


def uncertainty(probs: NDArray[Any]) -> NDArray[np.float64]:
    """(N,) one minus the lead of the best class over the second: 1 where two classes are level, 0 for a sure one."""
    if probs.shape[1] < 2:
        return np.zeros(len(probs))
    best_two = np.partition(probs.astype(np.float64), -2, axis=1)[:, -2:]
    return np.asarray(1 - (best_two[:, 1] - best_two[:, 0]))


def most_worth(doubt: NDArray[np.float64], features: Features, known: Features) -> Places:
    """All places, those whose label teaches most first: uncertain, and unlike what is known and what comes before."""
    by_doubt = np.argsort(-doubt, kind="stable")
    pool = by_doubt[:POOL]
    first = pool[spread_out(doubt[pool], features[pool], known, SPREAD)]
    rest = by_doubt[~np.isin(by_doubt, first)]
    return np.concatenate([first, rest])


def cluster_by_cluster(doubt: NDArray[np.float64], cluster: NDArray[np.int64]) -> Places:
    """All places, those of one cluster together; the cluster with the most doubt and its most doubtful first."""
    total = np.bincount(cluster, weights=doubt)
    return np.lexsort((-doubt, cluster, -total[cluster]))


Features = NDArray[np.float32]
Places = NDArray[np.int64]


def comparable(features: Features, center: Features) -> Features:
    """(N, D) of unit length around a common center, so that a dot product is a cosine.

    Pooled features are positive: without a center all images look much alike.
    """
    moved = features - center
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    result: Features = (moved / np.maximum(length, 1e-12)).astype(np.float32)
    return result


def nearest(features: Features, to: Features, count: int) -> Places:
    """Places of the ``count`` rows of ``features`` that are most similar to one image, (D,), the nearest first."""
    cosine = features @ to
    return np.argsort(-cosine, kind="stable")[:count]


def spread_out(uncertainty: NDArray[Any], features: Features, known: Features, count: int) -> Places:
    """Places of ``count`` images, each the most uncertain and the least like what is known when it is chosen.

    Greedy k-center: an image counts its uncertainty times its distance to the nearest image that is labeled or
    chosen already. ``features`` (N, D) and ``known`` (M, D) are comparable.
    """
    nearest_known = _highest_cosine(features, known)
    chosen: list[int] = []
    weight = uncertainty.astype(np.float64)
    for _ in range(min(count, len(features))):
        worth = weight * (1 - nearest_known)
        worth[chosen] = -np.inf
        best = int(worth.argmax())
        chosen.append(best)
        nearest_known = np.maximum(nearest_known, features @ features[best])
    return np.array(chosen, np.int64)


def _highest_cosine(features: Features, known: Features, block: int = 2048) -> NDArray[np.float32]:
    highest = np.full(len(features), -1, np.float32)
    for start in range(0, len(known), block):
        highest = np.maximum(highest, (features @ known[start : start + block].T).max(axis=1))
    return highest


MOST_PAIRS = 12
# Probabilities become whole counts at this scale, so that the same clustering serves them.
COUNTS_PER_IMAGE = 1000


@dataclass(frozen=True, eq=False)
class ConfusionMap:
    """Clusters of classes, the pairs that are confused most, and a place on a plane for each class."""

    clusters: list[list[int]]
    """Lists of class ids; classes that are confused with none stand alone at the end."""
    cluster_of: NDArray[np.int64]
    """(K,) the cluster of each class."""
    pairs: list[ConfusedPair]
    position: NDArray[np.float64]
    """(K, 2) in 0..1: classes whose images look alike lie close."""


def confusion_map(stats: Run, probs: NDArray[np.float32], features: Features) -> ConfusionMap:
    """By the transitions that SoC counted; for other methods by the probability that predictions leave to others."""
    counts = stats.transitions if has_transitions(stats) and stats.transitions is not None else soft_confusion(probs)
    blocks, alone = drop_unlinked(class_clusters(counts, choose_k(stats)[0]), counts)
    clusters = [*blocks, *([label] for label in alone)]
    cluster_of = np.zeros(stats.num_classes, np.int64)
    for number, members in enumerate(clusters):
        cluster_of[members] = number
    return ConfusionMap(clusters, cluster_of, most_confused_pairs(counts, MOST_PAIRS), positions(probs, features))


def soft_confusion(probs: NDArray[np.float32]) -> NDArray[np.int64]:
    """(K, K) how much probability the images predicted as the row's class leave to the column's."""
    num_classes = probs.shape[1]
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, probs.argmax(axis=1), probs.astype(np.float64))
    return np.asarray(np.rint(counts * COUNTS_PER_IMAGE), np.int64)


def positions(probs: NDArray[Any], features: Features) -> NDArray[np.float64]:
    """The two main directions in which the mean features of the classes differ."""
    weight = probs / np.maximum(probs.sum(axis=0), 1e-12)
    centroids = weight.T.astype(np.float64) @ features
    centered = centroids - centroids.mean(axis=0)
    left, size, _ = np.linalg.svd(centered, full_matrices=False)
    plane = np.zeros((len(centered), 2))
    found = min(2, left.shape[1])
    plane[:, :found] = left[:, :found] * size[:found]
    low, high = plane.min(axis=0), plane.max(axis=0)
    return np.asarray((plane - low) / np.maximum(high - low, 1e-12))


MOST_CANDIDATES = 9  # one for each number key
FEWEST_CANDIDATES = 3


@dataclass(frozen=True, eq=False)
class ModelSnapshot:
    """Columns over the U unlabeled images; a place is a position in them, a row one in the catalog."""

    run: Path
    result: dict[str, Any]
    catalog: Catalog
    store: ImageStore
    rows: Places
    """(U,) their rows in the catalog, each of another path."""
    probs: NDArray[np.float32]
    """(U, K), calibrated where the run has validation images."""
    num_candidates: NDArray[np.int64]
    """(U,) how many classes the image may be of: the surer the model, the fewer."""
    features: Features
    """(U, D) comparable."""
    known_rows: Places
    """(L,) rows of the images that came with a label."""
    known_features: Features
    """(L, D) comparable."""
    doubt: NDArray[np.float64]
    map: ConfusionMap
    orders: dict[str, Places]
    """The places in each order that the queue can have."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.catalog.class_names

    @cached_property
    def prediction(self) -> NDArray[np.int64]:
        return np.asarray(self.probs.argmax(axis=1), np.int64)

    def short_list(self, place: int) -> list[int]:
        """The candidates to choose from, the most probable first.

        As many as SoC's cluster of the prediction has, within bounds: a single one would be no choice. They are the
        most probable classes rather than the cluster itself, which more often lacks the true class.
        """
        length = int(np.clip(self.num_candidates[place], FEWEST_CANDIDATES, MOST_CANDIDATES))
        return [int(c) for c in np.argsort(-self.probs[place], kind="stable")[:length]]


def take_snapshot(path: Path, device: Literal["auto", "cpu", "cuda"]) -> ModelSnapshot:
    """Runs the network once over all labeled and unlabeled images of the run's data set."""
    model = TrainedModel(path, device=device)
    run = model.run
    catalog = run.dataset.catalog
    rows = first_of_each_path(catalog, catalog.rows(Split.UNLABELED))
    if not len(rows):
        raise UserError(f"{catalog.name} has no unlabeled images: there is nothing to label in {path}.")
    features, logits = _look(model, rows)
    probs = model.calibration.probabilities(logits).astype(np.float32)
    known_rows = catalog.rows(Split.LABELED)
    known_features, _ = _look(model, known_rows)
    center = features.mean(axis=0)
    features, known_features = comparable(features, center), comparable(known_features, center)
    doubt = uncertainty(probs)
    confused = confusion_map(run, probs, features)
    return ModelSnapshot(
        run=path,
        result=run.result,
        catalog=catalog,
        store=run.dataset.store,
        rows=rows,
        probs=probs,
        # SoC chooses clusters by the confidence that training saw, which is not calibrated.
        num_candidates=model.candidates(softmax(logits)).sum(axis=1),
        features=features,
        known_rows=known_rows,
        known_features=known_features,
        doubt=doubt,
        map=confused,
        orders={
            "worth": most_worth(doubt, features, known_features),
            "cluster": cluster_by_cluster(doubt, confused.cluster_of[probs.argmax(axis=1)]),
        },
    )


def first_of_each_path(catalog: Catalog, rows: Places) -> Places:
    """Without the rows that name an image once more: a table may list one twice, and it needs one answer."""
    _, first = np.unique([str(catalog.paths[row]) for row in rows], return_index=True)
    return rows[np.sort(first)]


def _look(model: TrainedModel, rows: Places) -> tuple[Features, NDArray[np.float32]]:
    batches = list(model.scores(rows))
    return np.concatenate([b.features for b in batches]), np.concatenate([b.logits for b in batches])
