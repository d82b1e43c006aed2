"""Statistics of the pseudo-label of each unlabeled image, and the table that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.config import TrainSettings
from semifine.data.catalog import Catalog, PathColumn, Split
from semifine.errors import UserError
from semifine.files import atomic_file, create_folder
from semifine.inference.evaluate import Evaluator
from semifine.methods.base import Method, PseudoLabels
from semifine.models.classifier import Classifier
from semifine.runs.run import Run

MAX_COST = 0.1
"""Largest number of unlabeled images, relative to the training images between two evaluations, for which the statistics
are kept at every evaluation. A prediction costs about a quarter of a training image and a row of the table about 70
bytes, so a run takes at most 3 % longer and 50,000 steps write at most 70 MB."""
LEMMA_SIZE = 11
"""Number of candidates up to which Lemma 1 of the paper proves that selection never raises the entropy."""

Columns = dict[str, NDArray[Any]]


def keep_sample_stats(settings: TrainSettings, unlabeled: int, learns_from_unlabeled: bool) -> bool:
    """Returns whether the statistics are kept at every evaluation; ``auto`` means if they cost little.

    Args:
        settings: The training settings.
        unlabeled: Number of unlabeled images.
        learns_from_unlabeled: Whether the method trains on unlabeled images.
    """
    if settings.keep_sample_stats != "auto":
        return settings.keep_sample_stats == "every"
    images_per_step = settings.batch_size * (1 + settings.mu * learns_from_unlabeled)
    return unlabeled <= MAX_COST * settings.evaluation_interval * images_per_step


@torch.no_grad()
def collect_sample_stats(
    catalog: Catalog,
    evaluator: Evaluator,
    network: Classifier,
    method: Method,
    changes: NDArray[np.int64],
    on_batch: Callable[[Tensor], None] = lambda _: None,
) -> Iterator[Columns]:
    """Yields the columns of the table for each batch of unlabeled images, computed on test views.

    Args:
        catalog: The images and their hidden labels.
        evaluator: Runs the network.
        network: The evaluated network.
        method: Gives the pseudo-labels.
        changes: ``(M,)`` number of prediction changes of each unlabeled image in training.
        on_batch: Called with the probabilities ``(B, K)`` of each batch.
    """
    rows = catalog.rows(Split.UNLABELED)
    paths = PathColumn(catalog.paths)
    start = 0
    for probs in evaluator.predict(network, rows):
        part = rows[start : start + len(probs)]
        truth = torch.from_numpy(catalog.truth[part]).to(probs.device)
        pseudo = method.pseudo_labels(probs)
        on_batch(probs)
        yield {
            "index": np.arange(start, start + len(part)),
            "path": paths.take(part).array.astype(object),
            **{name: value.cpu().numpy() for name, value in sample_stats(pseudo, truth).items()},
            "changes": changes[start : start + len(part)],
            "candidates": pseudo.target.float().cpu().numpy(),
        }
        start += len(part)


def sample_stats(pseudo: PseudoLabels, truth: Tensor) -> dict[str, Tensor]:
    """Returns the statistics of a batch of pseudo-labels as columns ``(B,)``.

    ``z_obj1`` = p_y [y in C] and ``z_obj2`` = |C| are the paper's two objectives for the candidates C and the true
    class y; ``hit`` is whether C contains y.

    Args:
        pseudo: The pseudo-labels.
        truth: ``(B,)`` true classes; -1 if unknown, K or more if out of class.

    Example:
        >>> probs = torch.tensor([[0.7, 0.2, 0.1]])
        >>> pseudo = PseudoLabels(probs, target=torch.tensor([[0.78, 0.22, 0.0]]), accepted=torch.ones(1))
        >>> stats = sample_stats(pseudo, torch.tensor([1]))
        >>> stats["hit"].tolist(), stats["z_obj2"].tolist()
        ([True], [2])
    """
    probs, target = pseudo.probs.float(), pseudo.target.float()
    num_classes = probs.shape[1]
    confidence, prediction = probs.max(dim=1)
    candidates = target > 0
    in_class = (truth >= 0) & (truth < num_classes)
    safe_truth = truth.clamp(0, num_classes - 1)[:, None]
    hit = candidates.gather(1, safe_truth)[:, 0] & in_class
    truth_prob = probs.gather(1, safe_truth)[:, 0]
    return {
        "truth": truth,
        "prediction": prediction,
        "confidence": confidence,
        "correct": (prediction == truth) & in_class,
        "accepted": pseudo.accepted > 0,
        "k": pseudo.k if pseudo.k is not None else torch.full_like(prediction, num_classes),
        "z_obj1": torch.where(hit, truth_prob, 0.0),
        "z_obj2": candidates.sum(dim=1),
        "hit": hit,
        "kept_mass": (probs * candidates).sum(dim=1),
        "entropy_before": entropy(probs),
        "entropy_after": entropy(target),
    }


def entropy(probs: Tensor) -> Tensor:
    """Returns -sum p log p over the last dimension, with 0 log 0 = 0.

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.2, 0.2]]))
        tensor([0.6931, 0.9503])
    """
    plogp: Tensor = torch.special.xlogy(probs, probs)
    return -plogp.sum(dim=-1)


def is_raised(before: Any, after: Any) -> Any:
    """Returns where the entropy increased by more than rounding."""
    return after > before + 1e-6


def summarize(stats: Columns, num_classes: int) -> dict[str, Any]:
    """Returns means over the unlabeled images; accuracies are over in-class images whose true class is known.

    If some images are known to be out of class, ``in_class`` and ``out_of_class`` hold the means of both groups.
    """
    known = (stats["truth"] >= 0) & (stats["truth"] < num_classes)
    outside = stats["truth"] >= num_classes
    means: dict[str, Any] = _means(stats, known)
    means["k"] = {str(k): int(images) for k, images in zip(*np.unique(stats["k"], return_counts=True), strict=True)}
    if outside.any():
        for name, rows in (("in_class", known), ("out_of_class", outside)):
            if rows.any():
                means[name] = _means({key: column[rows] for key, column in stats.items()}, known[rows])
    return means


def _means(stats: Columns, known: NDArray[np.bool_]) -> dict[str, float]:
    size = stats["z_obj2"]
    means = {
        "images": float(len(known)),
        "candidates": float(size.mean()),
        "confidence": float(stats["confidence"].mean()),
        "accepted": float(stats["accepted"].mean()),
        "entropy_before": float(stats["entropy_before"].mean()),
        "entropy_after": float(stats["entropy_after"].mean()),
        "single_candidate": float((size == 1).mean()),
        "within_lemma": float((size <= LEMMA_SIZE).mean()),
        "entropy_raised": float(is_raised(stats["entropy_before"], stats["entropy_after"]).mean()),
    }
    if known.any():
        means |= {
            "pseudo_label_accuracy": 100 * float(stats["correct"][known].mean()),
            "candidate_hit_rate": 100 * float(stats["hit"][known].mean()),
            "z_obj1": float(stats["z_obj1"][known].mean()),
        }
    return means


def write_sample_table(path: Path, batches: Iterator[Columns]) -> Columns | None:
    """Writes batches of columns to a Parquet file.

    The labels ``(B, K)`` in the column ``candidates`` become lists of class ids, the most probable first.

    Returns:
        The numeric columns of all batches, or None if there are no batches.
    """
    import pyarrow as pa  # slow: only needed at evaluations
    import pyarrow.parquet as pq  # slow: only needed at evaluations

    create_folder(path.parent)
    first = next(batches, None)
    if first is None:
        return None

    def as_table(columns: Columns) -> pa.Table:
        lists = pa.ListArray.from_arrays(*_offsets_and_classes(columns["candidates"]))
        return pa.table({**columns, "candidates": lists})

    numeric: list[Columns] = []
    with atomic_file(path, exclusive=True) as partial, pq.ParquetWriter(partial, as_table(first).schema) as writer:
        for columns in chain([first], batches):
            writer.write_table(as_table(columns))
            numeric.append({name: column for name, column in columns.items() if name not in ("path", "candidates")})
    return {name: np.concatenate([part[name] for part in numeric]) for name in numeric[0]}


def read_votes(runs: Sequence[str], catalog: Catalog) -> Tensor | None:
    """Returns the classes that other runs predict for the unlabeled images.

    Args:
        runs: V run folders.
        catalog: The images of the run.

    Returns:
        (M, V) class of each unlabeled image, -1 if the run did not predict it; None without runs.

    Raises:
        UserError: If a run has other classes or predicted none of the images.
    """
    if not runs:
        return None
    paths = PathColumn(catalog.paths).take(catalog.rows(Split.UNLABELED)).array
    place = {str(path): row for row, path in enumerate(paths)}
    votes = np.full((len(place), len(runs)), -1)
    for column, folder in enumerate(runs):
        run = Run(folder)
        if run.class_names != catalog.class_names:
            raise UserError(f"The run in {folder} has other classes than the data; choose another run.")
        samples = run.samples("path", "prediction")
        pairs = zip(samples.get("path", ()), samples.get("prediction", ()), strict=True)
        found = {place[path]: int(prediction) for path, prediction in pairs if path in place}
        if not found:
            raise UserError(f"The run in {folder} has no predictions of these unlabeled images; choose another run.")
        votes[list(found), column] = list(found.values())
    return torch.from_numpy(votes)


def _offsets_and_classes(target: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Converts labels ``(B, K)`` to lists of the classes above 0, as ``(B + 1,)`` offsets and the classes of all rows.

    The most probable class of a row comes first, equally probable ones in the order of the classes.
    """
    sizes = (target > 0).sum(axis=1)
    order = np.argsort(-target, axis=1, kind="stable")
    classes = order[np.arange(target.shape[1]) < sizes[:, None]]
    return np.append(0, sizes.cumsum()).astype(np.int32), classes.astype(np.int32)
