"""Per-sample statistics of the unlabeled images, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semifine.config import TrainSettings
from semifine.data.catalog import Catalog, PathColumn, Split
from semifine.distributed import all_gather, last_occurrence
from semifine.files import atomic_file
from semifine.methods.base import Method, PseudoLabels

SMALL = 0.1
"""Of the images trained on since the evaluation before. A look at an image costs about a quarter of training on it, a
row of the table about 70 bytes: a run becomes about 3 % longer at most, and 50,000 steps leave about 70 MB at most."""

if TYPE_CHECKING:
    from semifine.training.evaluate import Evaluator


def keep_sample_stats(settings: TrainSettings, unlabeled: int, learns_from_unlabeled: bool) -> bool:
    """As the settings say; ``auto``: where there are few unlabeled images beside those of the steps in between."""
    if settings.keep_sample_stats != "auto":
        return settings.keep_sample_stats == "every"
    images_a_step = settings.batch_size * (1 + settings.mu * learns_from_unlabeled)
    return unlabeled <= SMALL * settings.evaluation_interval * images_a_step


Columns = dict[str, NDArray[Any]]

LEMMA_SIZE = 11
"""Up to so many candidates, selection is proven never to raise the entropy (Lemma 1 of the paper)."""


@torch.no_grad()
def collect_sample_stats(
    catalog: Catalog,
    evaluator: Evaluator,
    network: torch.nn.Module,
    method: Method,
    changes: NDArray[np.int64],
    see: Callable[[Tensor], None] = lambda _: None,
) -> Iterator[Columns]:
    """Columns of facts for batch after batch of the unlabeled images.

    The network is the evaluated one, on the test view; the labels are those that the method would give.
    ``changes`` (M,) says how often the prediction of each image changed in training; ``see`` is shown the
    (B, K) probabilities of each batch.
    """
    rows = catalog.rows(Split.UNLABELED)
    paths = PathColumn(catalog.paths)
    start = 0
    for probs in evaluator.predict(network, rows):
        part = rows[start : start + len(probs)]
        truth = torch.from_numpy(catalog.truth[part]).to(probs.device)
        pseudo = method.pseudo_labels(probs)
        see(probs)
        yield {
            "index": np.arange(start, start + len(part)),
            "path": paths.take(part).array.astype(object),
            **{name: value.cpu().numpy() for name, value in sample_stats(pseudo, truth).items()},
            "changes": changes[start : start + len(part)],
            "candidates": pseudo.target.float().cpu().numpy(),
        }
        start += len(part)


def sample_stats(pseudo: PseudoLabels, truth: Tensor) -> dict[str, Tensor]:
    """What became of each image, as columns of length B.

    ``truth`` is -1 where unknown, K or more out of class. z_obj1 = p_y [y in C] and z_obj2 = |C| are the
    paper's two objectives; ``hit`` says whether the candidates C hold the true class y.
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
    """-sum p log p over the last dimension, with 0 log 0 = 0."""
    plogp: Tensor = torch.special.xlogy(probs, probs)
    return -plogp.sum(dim=-1)


def is_raised(before: Any, after: Any) -> Any:
    """Where the selection made a label less certain than the prediction, beyond rounding."""
    return after > before + 1e-6


def summarize(stats: Columns, num_classes: int) -> dict[str, Any]:
    """Means over the unlabeled set; those that need a truth over the in-class images whose truth is known.

    Where some images are known to be out of class, ``in_class`` and ``out_of_class`` tell them apart.
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
    """Writes batch after batch, and returns the numeric columns whole; None when there is no batch.

    The (B, K) labels in the column ``candidates`` become lists of class ids, the most probable first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
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


def _offsets_and_classes(target: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The classes above 0 in the rows of (B, K) labels, one row after the other, and (B + 1,) where each row begins.

    The most probable class of a row comes first, equally probable ones in the order of the classes.
    """
    sizes = (target > 0).sum(axis=1)
    order = np.argsort(-target, axis=1, kind="stable")
    classes = order[np.arange(target.shape[1]) < sizes[:, None]]
    return np.append(0, sizes.cumsum()).astype(np.int32), classes.astype(np.int32)


NEVER = -1


class LabelHistory(nn.Module):
    """How often the prediction of each image changed, and how many labels each class got; the same on all ranks.

    Its buffers are part of a checkpoint, so that a resumed run counts on. Nothing flows back from it.
    """

    last: Tensor
    changes: Tensor
    predicted: Tensor
    accepted: Tensor

    def __init__(self, num_samples: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((num_samples,), NEVER))
        self.register_buffer("changes", torch.zeros(num_samples, dtype=torch.int64))
        self.register_buffer("predicted", torch.zeros(num_classes))
        self.register_buffer("accepted", torch.zeros(num_classes))

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        """Adds the labels of a step's unlabeled images; the host does not wait."""
        index = all_gather(index)
        prediction = all_gather(pseudo.probs.argmax(dim=1))
        accepted = all_gather(pseudo.accepted.float())
        before = self.last[index]
        changed = (before != NEVER) & (before != prediction)
        place = last_occurrence(index)  # of an image that occurs twice in a batch, the later counts
        self.changes.index_copy_(0, index, (self.changes[index] + changed)[place])
        self.last.index_copy_(0, index, prediction[place])
        is_class = (prediction[:, None] == torch.arange(len(self.predicted), device=index.device)).float()
        self.predicted.add_(is_class.sum(dim=0))
        self.accepted.add_((is_class * accepted[:, None]).sum(dim=0))

    def pop_class_counts(self) -> dict[str, list[int]]:
        """Labels that each class got since the last time: all predictions, and those that trained the network."""
        counts = torch.stack([self.predicted, self.accepted]).round().long().tolist()
        self.predicted.zero_()
        self.accepted.zero_()
        return dict(zip(("predicted", "accepted"), counts, strict=True))
