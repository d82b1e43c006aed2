"""Evaluation of a run during and after training: accuracy, clusters, and the files that reports read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semifine.data.catalog import Catalog, Split
from semifine.inference.evaluate import Evaluator, confusion_matrix
from semifine.methods.base import Method
from semifine.models.classifier import Classifier
from semifine.runs.checkpoint import save_weights
from semifine.runs.folder import RunFolder
from semifine.training.meters import LabelHistory
from semifine.training.sample_stats import collect_sample_stats, entropy, summarize, write_sample_table

NEVER = -1


class ClusterHistory(nn.Module):
    """Compares the clusterings of classes with the previous evaluation; empty for methods without clusters.

    The buffer is part of a checkpoint, so that a resumed run compares with the evaluation before it. It stays on the
    CPU: an evaluation waits for the device anyway, and scatter_add on a GPU is not deterministic.

    Args:
        class_stats: The statistics of the method, of which the shape of ``clusters`` matters.
    """

    medoid_of: Tensor

    def __init__(self, class_stats: Mapping[str, Tensor]) -> None:
        super().__init__()
        shape = class_stats["clusters"].shape if "clusters" in class_stats else (0, 0)
        self.register_buffer("medoid_of", torch.full(shape, NEVER, dtype=torch.int32))

    def update(self, class_stats: Mapping[str, Tensor]) -> dict[str, float]:
        """Returns how many classes changed, as means over the clusterings; empty at the first evaluation.

        Args:
            class_stats: ``clusters`` ``(n, K)`` and ``medoids`` ``(n, k)``.

        Returns:
            ``cluster_changes``: classes whose cluster has other members. ``medoid_changes``: classes with another
            medoid.
        """
        if not self.medoid_of.numel():
            return {}
        before = self.medoid_of.long()
        now = class_stats["medoids"].cpu().gather(1, class_stats["clusters"].cpu().long()).long()
        self.medoid_of.copy_(now)
        if (before == NEVER).any():
            return {}
        return {
            "cluster_changes": _mean_count(_hash_members(before) != _hash_members(now)),
            "medoid_changes": _mean_count(before != now),
        }


def _mean_count(changed: Tensor) -> float:
    """Returns the mean number of True entries per row of ``(n, K)``."""
    return float(changed.sum(dim=1, dtype=torch.float64).mean())


def _hash_members(medoid_of: Tensor) -> Tensor:
    """Returns a hash ``(n, K)`` of the members of each class's cluster, which does not depend on the medoid.

    The hash is the sum of 64 random bits per member, so two different clusters collide with probability 2^-64.
    """
    num_classes = medoid_of.shape[1]
    generator = torch.Generator().manual_seed(num_classes)
    bits = torch.randint(-(2**63), 2**63 - 1, (num_classes,), generator=generator)
    sums = torch.zeros_like(medoid_of).scatter_add_(1, medoid_of, bits.expand_as(medoid_of))
    return sums.gather(1, medoid_of)


MAX_NUM_K = 50
"""Largest number of k in the sweep: more would be expensive with thousands of classes."""


class EntropySweep:
    """Entropy of the pseudo-labels for each number of clusters k; empty for methods without clusters."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def update(self, method: Method, probs: Tensor) -> None:
        """Adds a batch of probabilities ``(B, K)``."""
        for k, target in method.labels_by_k(probs, MAX_NUM_K):
            values = entropy(target.float()).double()
            sums = torch.stack([values.sum(), values.square().sum(), values.new_tensor(len(values))])
            self._sums[k] = self._sums.get(k, 0) + sums

    def table(self) -> Tensor | None:
        """Returns rows ``(n, 4)`` of k, mean, standard deviation and number of images; None without clusters."""
        rows = []
        for k, sums in sorted(self._sums.items()):
            total, squares, images = sums.tolist()
            mean = total / images
            rows.append([k, mean, max(squares / images - mean**2, 0.0) ** 0.5, images])
        return torch.tensor(rows, dtype=torch.float64) if rows else None


class RunEvaluator:
    """Evaluates a run during and after training, without any effect on training.

    Args:
        folder: The run folder.
        catalog: The images, their labels and hidden labels.
        evaluator: Runs networks on the stored images.
        network: The evaluated network of the run.
        method: The method, for pseudo-labels and statistics of classes.
        history: Prediction changes during training.
        clusters: The clusterings at the previous evaluation.
    """

    def __init__(
        self,
        folder: RunFolder,
        catalog: Catalog,
        evaluator: Evaluator,
        network: Classifier,
        method: Method,
        history: LabelHistory,
        clusters: ClusterHistory,
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self.evaluator = evaluator
        self._network = network
        self._method = method
        self._history = history
        self._clusters = clusters

    def for_network(self, network: Classifier) -> RunEvaluator:
        """Returns the same evaluator for another network."""
        return RunEvaluator(
            self._folder, self._catalog, self.evaluator, network, self._method, self._history, self._clusters
        )

    def evaluate(self, step: int, keep_sample_stats: bool) -> dict[str, Any]:
        """Returns the record of an evaluation for ``metrics.jsonl``.

        Args:
            step: Number of finished steps.
            keep_sample_stats: Also write the statistics of all unlabeled images to a file of this step.
        """
        record: dict[str, Any] = {"kind": "evaluation", "step": step, **self.scores(self._network)}
        stats = self._method.class_stats()
        if (transitions := stats.get("transitions")) is not None:
            record |= {"transitions": int(transitions.sum()), "transition_pairs": int((transitions > 0).sum())}
        record |= self._clusters.update(stats)
        if keep_sample_stats:
            record["unlabeled"] = self._write_sample_stats(self._method.renewed(), self._folder.samples_at(step))
        return record

    def scores(self, network: Classifier) -> dict[str, float]:
        """Returns the accuracies of any network on the validation and test images, such as ``test_top1``."""
        scores: dict[str, float] = {}
        for split in (Split.VAL, Split.TEST):
            rows = self._catalog.rows(split)
            if len(rows):
                accuracies = self.evaluator.accuracy(network, rows, torch.from_numpy(self._catalog.label[rows]))
                scores |= {f"{split.name.lower()}_{name}": value for name, value in accuracies.items()}
        return scores

    def write_stats(self, *, with_samples: bool = True) -> dict[str, Any]:
        """Writes the statistics of unlabeled images and classes for reports, and returns the means over the images."""
        if not self._method.trains_classifier:
            return {}
        sweep, method, means = EntropySweep(), self._method.renewed(), {}
        if with_samples:
            means = self._write_sample_stats(method, self._folder.samples, partial(sweep.update, method))
        self._write_class_stats(method, sweep.table())
        return means

    def _write_sample_stats(
        self, method: Method, path: Path, on_batch: Callable[[Tensor], None] = lambda _: None
    ) -> dict[str, Any]:
        changes = self._history.changes.cpu().numpy()
        batches = collect_sample_stats(self._catalog, self.evaluator, self._network, method, changes, on_batch)
        stats = write_sample_table(path, batches)
        return summarize(stats, self._catalog.num_classes) if stats is not None else {}

    def _write_class_stats(self, method: Method, entropy_by_k: Tensor | None) -> None:
        stats = dict(method.class_stats())
        if entropy_by_k is not None:
            stats["entropy_by_k"] = entropy_by_k
        rows = self._catalog.rows(Split.TEST)
        if len(rows):
            probs = torch.cat(list(self.evaluator.predict(self._network, rows))).cpu()
            stats["confusion"] = confusion_matrix(probs, torch.from_numpy(self._catalog.label[rows]))
        save_weights(stats or {"none": torch.zeros(0)}, self._folder.class_stats)
