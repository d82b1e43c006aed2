"""A finished run, opened to measure it or to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.config import read_settings_file, read_train_settings, resolve
from semifine.data.catalog import Split
from semifine.engine.dataset import open_dataset
from semifine.engine.devices import create_fabric
from semifine.engine.display import Display
from semifine.engine.evaluation import Evaluator, accuracy
from semifine.engine.trained import load_trained
from semifine.errors import UserError
from semifine.inference.images import ImageInput, store_of_images
from semifine.inference.prediction import Prediction
from semifine.models.classifier import normalisation
from semifine.run_folder import RunFolder
from semifine.views import ViewMaker, ViewSettings

if TYPE_CHECKING:
    from semifine.data.store import ImageStore


class Run:
    """A run folder with its network in memory."""

    def __init__(
        self, path: Path, checkpoint: Literal["last", "best_val"], device: Literal["auto", "cpu", "cuda"]
    ) -> None:
        self.folder = RunFolder.open(path)
        self.settings = replace(read_train_settings(self.folder.settings), device=device)
        self.class_names = self.folder.read_class_names()
        self._fabric = create_fabric(self.settings)
        self._network = load_trained(self.folder, checkpoint).to(self._fabric.device)

    @property
    def result(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        return self.folder.read_result()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        return list(self.folder.read_metrics())

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Top-1 and top-5 in percent on a split of the run's data set."""
        settings = resolve([read_settings_file(self.folder.settings)])
        dataset = open_dataset(settings, Display())
        rows = dataset.catalog.rows(Split[split.upper()])
        if not len(rows):
            raise UserError(f"{settings.data} has no {split} images.")
        label = torch.from_numpy(dataset.catalog.label[rows]).to(self._fabric.device)
        probs = self._probabilities(dataset.store, rows)
        return {"split": split, "images": len(rows), **accuracy(probs, label)}

    def predict(self, images: Sequence[ImageInput], top: int = 5) -> list[Prediction]:
        """The most probable classes of each image; images are paths, Pillow images or (H, W, 3) arrays."""
        store = store_of_images(images, self.settings.stored_side)
        probs = self._probabilities(store, np.arange(len(images)))
        values, classes = probs.topk(min(top, probs.shape[1]), dim=1)
        return [
            Prediction(names=[self.class_names[c] for c in row_classes], probabilities=row_values)
            for row_classes, row_values in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _probabilities(self, store: ImageStore, rows: NDArray[np.int64]) -> torch.Tensor:
        if not self._network.num_classes:
            raise UserError(
                f"The run in {self.folder.path} learnt features and no classifier; train one from them with "
                f"--weights {self.folder.checkpoints / 'last' / 'model.safetensors'}."
            )
        colours = normalisation(self._network)
        view_settings = ViewSettings(size=self.settings.image_size, mean=colours.mean, std=colours.std)
        views = ViewMaker(store, view_settings, seed=0, device=self._fabric.device)
        evaluator = Evaluator(views, self._fabric.autocast, batch_size=256)
        return torch.cat(list(evaluator.predict(self._network, rows)))


def load(
    path: str | Path, checkpoint: Literal["last", "best_val"] = "last", device: Literal["auto", "cpu", "cuda"] = "auto"
) -> Run:
    """Opens a run folder."""
    return Run(Path(path), checkpoint, device)
