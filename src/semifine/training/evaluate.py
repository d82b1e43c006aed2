"""Evaluation of a network during and after training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semifine.augment.pipeline import AugmentPipeline
from semifine.data.catalog import Catalog, Split
from semifine.methods.base import Method
from semifine.models.forward import Output, micro_batch_size
from semifine.runs.checkpoint import save_weights
from semifine.runs.folder import RunFolder
from semifine.training.sample_stats import LabelHistory, collect_sample_stats, entropy, summarize, write_sample_table


class Evaluator:
    """Runs a network over rows of the image store, in batches, without gradient."""

    def __init__(
        self, views: AugmentPipeline, autocast: Callable[[], AbstractContextManager[None]], batch_size: int
    ) -> None:
        self._views = views
        self._autocast = autocast
        self._batch_size = batch_size

    @torch.inference_mode()
    def outputs(self, network: torch.nn.Module, rows: NDArray[np.int64]) -> Iterator[Output]:
        """Logits and features, in float32, of batch after batch, in the order of the rows."""
        was_training = network.training
        network.eval()
        for start in range(0, len(rows), self._batch_size):
            images = self._views.make(rows[start : start + self._batch_size], ("test",), 0, "evaluation")["test"]
            # A network that is compiled for the batches of training is not compiled again for these.
            with self._autocast(), torch.compiler.set_stance("force_eager"):
                outputs: list[Output] = [network(portion) for portion in _portions(images)]
            logits = torch.cat([output.logits for output in outputs])
            yield Output(logits.float(), torch.cat([output.features for output in outputs]).float())
        network.train(was_training)

    def predict(self, network: torch.nn.Module, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """(b, K) probabilities of batch after batch, in the order of the rows."""
        for output in self.outputs(network, rows):
            yield torch.softmax(output.logits, dim=1)

    def accuracy(self, network: torch.nn.Module, rows: NDArray[np.int64], label: Tensor) -> dict[str, float]:
        """Top-1 and top-5 in percent over the rows."""
        probs = torch.cat(list(self.predict(network, rows)))
        return accuracy(probs, label.to(probs.device))


def _portions(images: Tensor) -> tuple[Tensor, ...]:
    """(N, 3, S, S) images in the numbers and the layout that suit their device."""
    if images.device.type == "cpu":
        images = images.contiguous(memory_format=torch.channels_last)
    at_once = micro_batch_size(len(images), images.shape[-1], images.device)
    return torch.split(images, at_once)


def accuracy(probs: Tensor, label: Tensor) -> dict[str, float]:
    """Top-1 and top-5 accuracy in percent; with fewer than five classes top-5 counts them all."""
    top = probs.topk(min(5, probs.shape[1]), dim=1).indices
    found = top == label[:, None]
    first, any_of_five = torch.stack([found[:, 0].sum(), found.any(dim=1).sum()]).tolist()
    return {"top1": 100 * first / len(label), "top5": 100 * any_of_five / len(label)}


def confusion_matrix(probs: Tensor, label: Tensor) -> Tensor:
    """(K, K) counts: row is the true class, column the predicted one."""
    num_classes = probs.shape[1]
    code = label * num_classes + probs.argmax(dim=1)
    return torch.bincount(code, minlength=num_classes**2).reshape(num_classes, num_classes)


NEVER = -1


class ClusterHistory(nn.Module):
    """Remembers every clustering as it was at the last evaluation; empty for a method without clusters.

    Its buffer is part of a checkpoint, so that a resumed run compares with the evaluation before it. It stays on the
    CPU: an evaluation waits for the device anyway, and a GPU has no deterministic way to sum over clusters.
    """

    medoid_of: Tensor

    def __init__(self, class_stats: Mapping[str, Tensor]) -> None:
        super().__init__()
        shape = class_stats["clusters"].shape if "clusters" in class_stats else (0, 0)
        self.register_buffer("medoid_of", torch.full(shape, NEVER, dtype=torch.int32))

    def take_changes(self, class_stats: Mapping[str, Tensor]) -> dict[str, float]:
        """Classes whose cluster has other members, and whose medoid is another one, as means over the clusterings.

        Nothing at the first evaluation. ``class_stats`` holds (n, K) ``clusters`` and (n, k) ``medoids``.
        """
        if not self.medoid_of.numel():
            return {}
        before = self.medoid_of.long()
        now = class_stats["medoids"].cpu().gather(1, class_stats["clusters"].cpu().long()).long()
        self.medoid_of.copy_(now)
        if (before == NEVER).any():
            return {}
        return {
            "cluster_changes": _mean_classes(_members(before) != _members(now)),
            "medoid_changes": _mean_classes(before != now),
        }


def _mean_classes(changed: Tensor) -> float:
    """(n, K) -> the mean number of classes in a row."""
    return float(changed.sum(dim=1, dtype=torch.float64).mean())


def _members(medoid_of: Tensor) -> Tensor:
    """(n, K) a number that stands for the members of each class's cluster, whichever of them is the medoid.

    It is the sum of 64 random bits a member: two different clusters agree by a chance of 2^-64.
    """
    num_classes = medoid_of.shape[1]
    generator = torch.Generator().manual_seed(num_classes)
    bits = torch.randint(-(2**63), 2**63 - 1, (num_classes,), generator=generator)
    sums = torch.zeros_like(medoid_of).scatter_add_(1, medoid_of, bits.expand_as(medoid_of))
    return sums.gather(1, medoid_of)


MAX_K = 50
"""Numbers of clusters that are tried at most: more would cost much with thousands of classes, and show no more."""


class EntropySweep:
    """Mean and spread over all images; empty for a method without clusters."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def update(self, method: Method, probs: Tensor) -> None:
        """Adds a batch of (B, K) probabilities."""
        for k, target in method.labels_by_k(probs, MAX_K):
            values = entropy(target.float()).double()
            sums = torch.stack([values.sum(), values.square().sum(), values.new_tensor(len(values))])
            self._sums[k] = self._sums.get(k, 0) + sums

    def table(self) -> Tensor | None:
        """(n, 4): k, mean, standard deviation and number of images; None where there is nothing."""
        rows = []
        for k, sums in sorted(self._sums.items()):
            total, squares, images = sums.tolist()
            mean = total / images
            rows.append([k, mean, max(squares / images - mean**2, 0.0) ** 0.5, images])
        return torch.tensor(rows, dtype=torch.float64) if rows else None


class Assessment:
    """Looks at one network of a run, at evaluations and at the end; training goes on as if it had not."""

    def __init__(
        self,
        folder: RunFolder,
        catalog: Catalog,
        evaluator: Evaluator,
        network: nn.Module,
        method: Method,
        labels: LabelHistory,
        clusters: ClusterHistory,
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self._evaluator = evaluator
        self._network = network
        self._method = method
        self._labels = labels
        self._clusters = clusters

    def evaluate(self, step: int, keep_sample_stats: bool) -> dict[str, Any]:
        """The record of an evaluation; ``keep_sample_stats`` leaves the table of all unlabeled images, too."""
        record: dict[str, Any] = {"kind": "evaluation", "step": step, **self.scores(self._network)}
        stats = self._method.class_stats()
        if (transitions := stats.get("transitions")) is not None:
            record |= {"transitions": int(transitions.sum()), "transition_pairs": int((transitions > 0).sum())}
        record |= self._clusters.take_changes(stats)
        if keep_sample_stats:
            record["unlabeled"] = self._write_sample_stats(self._folder.samples_at(step))
        return record

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Accuracies of any network on the validation and test images that there are, such as ``test_top1``."""
        scores: dict[str, float] = {}
        for split in (Split.VAL, Split.TEST):
            rows = self._catalog.rows(split)
            if len(rows):
                accuracies = self._evaluator.accuracy(network, rows, torch.from_numpy(self._catalog.label[rows]))
                scores |= {f"{split.name.lower()}_{name}": value for name, value in accuracies.items()}
        return scores

    def write_stats(self) -> dict[str, Any]:
        """What reports need beyond the metrics: facts of every unlabeled image, and of the classes."""
        if not self._method.trains_classifier:
            return {}
        sweep = EntropySweep()
        means = self._write_sample_stats(self._folder.samples, partial(sweep.update, self._method))
        self._write_class_stats(sweep.table())
        return means

    def _write_sample_stats(self, path: Path, see: Callable[[Tensor], None] = lambda _: None) -> dict[str, Any]:
        """The table of all unlabeled images, and its means; ``see`` is shown the probabilities on the way."""
        changes = self._labels.changes.cpu().numpy()
        batches = collect_sample_stats(self._catalog, self._evaluator, self._network, self._method, changes, see)
        stats = write_sample_table(path, batches)
        return summarize(stats, self._catalog.num_classes) if stats is not None else {}

    def _write_class_stats(self, entropy_by_k: Tensor | None) -> None:
        stats = dict(self._method.class_stats())
        if entropy_by_k is not None:
            stats["entropy_by_k"] = entropy_by_k
        rows = self._catalog.rows(Split.TEST)
        if len(rows):
            probs = torch.cat(list(self._evaluator.predict(self._network, rows))).cpu()
            stats["confusion"] = confusion_matrix(probs, torch.from_numpy(self._catalog.label[rows]))
        save_weights(stats or {"none": torch.zeros(0)}, self._folder.class_stats)
