"""What is found out about the evaluated network: its accuracy, and facts of images and classes for the reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semifine.data.catalog import Catalog, Split
from semifine.engine.checkpoint import save_weights
from semifine.engine.cluster_history import ClusterHistory
from semifine.engine.entropy_sweep import EntropySweep
from semifine.engine.evaluation import Evaluator, confusion_matrix
from semifine.engine.facts import collect_sample_facts, summarise
from semifine.engine.history import LabelHistory
from semifine.engine.sample_table import write_sample_table
from semifine.methods.base import Method
from semifine.run_folder import RunFolder


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

    def evaluate(self, step: int, keep_facts: bool) -> dict[str, Any]:
        """The record of an evaluation; ``keep_facts`` leaves the table of all unlabelled images, too."""
        record: dict[str, Any] = {"kind": "evaluation", "step": step, **self.scores(self._network)}
        facts = self._method.class_facts()
        if (transitions := facts.get("transitions")) is not None:
            record |= {"transitions": int(transitions.sum()), "transition_pairs": int((transitions > 0).sum())}
        record |= self._clusters.take_changes(facts)
        if keep_facts:
            record["unlabelled"] = self._write_sample_facts(self._folder.samples_at(step))
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

    def write_facts(self) -> dict[str, Any]:
        """What reports need beyond the metrics: facts of every unlabelled image, and of the classes."""
        if not self._method.trains_classifier:
            return {}
        sweep = EntropySweep()
        means = self._write_sample_facts(self._folder.samples, partial(sweep.update, self._method))
        self._write_class_facts(sweep.table())
        return means

    def _write_sample_facts(self, path: Path, see: Callable[[Tensor], None] = lambda _: None) -> dict[str, Any]:
        """The table of all unlabelled images, and its means; ``see`` is shown the probabilities on the way."""
        changes = self._labels.changes.cpu().numpy()
        batches = collect_sample_facts(self._catalog, self._evaluator, self._network, self._method, changes, see)
        facts = write_sample_table(path, batches)
        return summarise(facts, self._catalog.num_classes) if facts is not None else {}

    def _write_class_facts(self, entropy_by_k: Tensor | None) -> None:
        facts = dict(self._method.class_facts())
        if entropy_by_k is not None:
            facts["entropy_by_k"] = entropy_by_k
        rows = self._catalog.rows(Split.TEST)
        if len(rows):
            probs = torch.cat(list(self._evaluator.predict(self._network, rows))).cpu()
            facts["confusion"] = confusion_matrix(probs, torch.from_numpy(self._catalog.label[rows]))
        save_weights(facts or {"none": torch.zeros(0)}, self._folder.class_facts)
