"""A finished run, opened to measure it or to use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from semifine.config import read_settings_file, read_train_settings, resolve
from semifine.data.catalog import Split
from semifine.data.store import ImageStore
from semifine.engine.dataset import Dataset, open_dataset
from semifine.engine.devices import create_fabric
from semifine.engine.display import Display
from semifine.engine.evaluation import Evaluator, accuracy
from semifine.engine.extra_labels import read_frozen_log
from semifine.engine.trained import class_names, load_trained
from semifine.errors import UserError
from semifine.inference.candidates import Chosen, ClassClusters, Probabilities, candidates
from semifine.inference.images import ImageInput, store_of_images
from semifine.inference.prediction import Prediction
from semifine.models.classifier import normalisation
from semifine.run_folder import RunFolder
from semifine.views import ViewMaker, ViewSettings

BATCH = 256


class Scores(NamedTuple):
    """What the network makes of a batch of b images, on the host."""

    features: NDArray[np.float32]
    """(b, D) pooled features."""
    logits: NDArray[np.float32]
    """(b, K)"""
    probabilities: NDArray[np.float32]
    """(b, K) softmax of the logits, as training sees them."""


class Run:
    """A run folder with its network in memory."""

    def __init__(
        self, path: Path, checkpoint: Literal["last", "best_val"], device: Literal["auto", "cpu", "cuda"]
    ) -> None:
        self.folder = RunFolder.open(path)
        self.settings = replace(read_train_settings(self.folder.settings), device=device)
        self.class_names = class_names(self.folder)
        self._fabric = create_fabric(self.settings)
        self._network = load_trained(self.folder, checkpoint).to(self._fabric.device)

    @property
    def result(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        return self.folder.read_result()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        return list(self.folder.read_metrics())

    @cached_property
    def dataset(self) -> Dataset:
        """Catalog and decoded images that the run learnt from."""
        settings = resolve([read_settings_file(self.folder.settings)])
        return open_dataset(settings, Display(quiet=True), read_frozen_log(self.folder.labels))

    def scores(self, rows: NDArray[np.int64]) -> Iterator[Scores]:
        """Features and probabilities of rows of the run's own catalog, batch after batch, in their order."""
        return self._scores(self.dataset.store, np.asarray(rows, np.int64))

    @cached_property
    def clusters(self) -> ClassClusters | None:
        """The clusterings of classes that the run learnt; None where its method learns none."""
        if not self.folder.class_facts.is_file():
            return None
        facts = load_file(self.folder.class_facts)
        return ClassClusters(facts["clusters"], facts["cluster_confidence"]) if "clusters" in facts else None

    def candidates(self, probs: Probabilities) -> Chosen:
        """(N, K) the classes that each image may be of: SoC's cluster of the prediction, the smaller the surer.

        Where the method learnt no clusters: the fewest classes that hold 90 % of the probability.
        """
        return candidates(probs, self.clusters)

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Top-1 and top-5 in percent on a split of the run's data set."""
        catalog = self.dataset.catalog
        rows = catalog.rows(Split[split.upper()])
        if not len(rows):
            raise UserError(f"{catalog.name} has no {split} images.")
        probs = np.concatenate([scores.probabilities for scores in self.scores(rows)])
        label = torch.from_numpy(catalog.label[rows])
        return {"split": split, "images": len(rows), **accuracy(torch.from_numpy(probs), label)}

    def predict(self, images: Sequence[ImageInput], top: int = 5) -> list[Prediction]:
        """The most probable classes of each image; images are paths, Pillow images or (H, W, 3) arrays."""
        store = store_of_images(images, self.settings.stored_side)
        probs = np.concatenate([scores.probabilities for scores in self._scores(store, np.arange(len(images)))])
        classes = np.argsort(-probs, axis=1, kind="stable")[:, :top]
        values = np.take_along_axis(probs, classes, axis=1)
        return [
            Prediction(names=[self.class_names[c] for c in row_classes], probabilities=row_values)
            for row_classes, row_values in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _scores(self, store: ImageStore, rows: NDArray[np.int64]) -> Iterator[Scores]:
        self._check_classifier()
        colours = normalisation(self._network)
        view_settings = ViewSettings(size=self.settings.image_size, mean=colours.mean, std=colours.std)
        views = ViewMaker(store, view_settings, seed=0, device=self._fabric.device)
        for output in Evaluator(views, self._fabric.autocast, BATCH).outputs(self._network, rows):
            probs = torch.softmax(output.logits, dim=1)
            yield Scores(output.features.cpu().numpy(), output.logits.cpu().numpy(), probs.cpu().numpy())

    def _check_classifier(self) -> None:
        if not self._network.num_classes:
            raise UserError(
                f"The run in {self.folder.path} learnt features and no classifier; train one from them with "
                f"--weights {self.folder.checkpoints / 'last' / 'model.safetensors'}."
            )


def load(
    path: str | Path, checkpoint: Literal["last", "best_val"] = "last", device: Literal["auto", "cpu", "cuda"] = "auto"
) -> Run:
    """Opens a run folder."""
    return Run(Path(path), checkpoint, device)
