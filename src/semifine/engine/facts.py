"""Per-sample facts of the unlabelled set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.data.catalog import Catalog, Split
from semifine.data.paths import PathColumn
from semifine.engine.evaluation import Evaluator
from semifine.methods.base import Method, PseudoLabels

Columns = dict[str, NDArray[Any]]

LEMMA_SIZE = 11
"""Up to so many candidates, selection is proven never to raise the entropy (Lemma 1 of the paper)."""


@torch.no_grad()
def collect_sample_facts(
    catalog: Catalog,
    evaluator: Evaluator,
    network: torch.nn.Module,
    method: Method,
    changes: NDArray[np.int64],
    see: Callable[[Tensor], None] = lambda _: None,
) -> Iterator[Columns]:
    """Columns of facts for batch after batch of the unlabelled images.

    The network is the evaluated one, on the test view; the labels are those that the method would give.
    ``changes`` (M,) says how often the prediction of each image changed in training; ``see`` is shown the
    (B, K) probabilities of each batch.
    """
    rows = catalog.rows(Split.UNLABELLED)
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
            **{name: value.cpu().numpy() for name, value in sample_facts(pseudo, truth).items()},
            "changes": changes[start : start + len(part)],
            "candidates": pseudo.target.float().cpu().numpy(),
        }
        start += len(part)


def sample_facts(pseudo: PseudoLabels, truth: Tensor) -> dict[str, Tensor]:
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


def summarise(facts: Columns, num_classes: int) -> dict[str, Any]:
    """Means over the unlabelled set; those that need a truth over the in-class images whose truth is known.

    Where some images are known to be out of class, ``in_class`` and ``out_of_class`` tell them apart.
    """
    known = (facts["truth"] >= 0) & (facts["truth"] < num_classes)
    outside = facts["truth"] >= num_classes
    means: dict[str, Any] = _means(facts, known)
    means["k"] = {str(k): int(images) for k, images in zip(*np.unique(facts["k"], return_counts=True), strict=True)}
    if outside.any():
        for name, rows in (("in_class", known), ("out_of_class", outside)):
            if rows.any():
                means[name] = _means({key: column[rows] for key, column in facts.items()}, known[rows])
    return means


def _means(facts: Columns, known: NDArray[np.bool_]) -> dict[str, float]:
    size = facts["z_obj2"]
    means = {
        "images": float(len(known)),
        "candidates": float(size.mean()),
        "confidence": float(facts["confidence"].mean()),
        "accepted": float(facts["accepted"].mean()),
        "entropy_before": float(facts["entropy_before"].mean()),
        "entropy_after": float(facts["entropy_after"].mean()),
        "single_candidate": float((size == 1).mean()),
        "within_lemma": float((size <= LEMMA_SIZE).mean()),
        "entropy_raised": float(is_raised(facts["entropy_before"], facts["entropy_after"]).mean()),
    }
    if known.any():
        means |= {
            "pseudo_label_accuracy": 100 * float(facts["correct"][known].mean()),
            "candidate_hit_rate": 100 * float(facts["hit"][known].mean()),
            "z_obj1": float(facts["z_obj1"][known].mean()),
        }
    return means
