"""A trained model: the network of a run with its preprocessing and its calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment import AugmentPipeline, AugmentSettings
from semifine.data.catalog import Split
from semifine.data.decode import Pixels
from semifine.data.store import ImageStore
from semifine.devices import inference_device
from semifine.errors import UserError
from semifine.inference import pipeline
from semifine.inference.calibration import Calibration, Chosen, ClassClusters, Probabilities, candidates
from semifine.inference.fit_calibration import calibration_of, weights_identity
from semifine.inference.gpu import GpuNetwork, GpuPreprocessor
from semifine.inference.pipeline import ImageInput, gather_given
from semifine.inference.predict import Checkpoint, Device
from semifine.inference.prediction import ModelMetadata, Prediction, PredictOptions, predict_from_logits
from semifine.inference.preprocess import CpuPreprocessor, Preprocessor
from semifine.inference.taxonomy import read_taxonomy
from semifine.inference.view_classifier import ViewClassifier, check_finite
from semifine.models.classifier import normalization
from semifine.models.forward import micro_batch_size
from semifine.runs.run import Run
from semifine.training.evaluate import Evaluator, accuracy

BATCH = 256


class Scores(NamedTuple):
    """What the network makes of a batch of b images, on the host."""

    features: NDArray[np.float32]
    """(b, D) pooled features."""
    logits: NDArray[np.float32]
    """(b, K)"""
    probabilities: NDArray[np.float32]
    """(b, K) softmax of the logits, as training sees them."""


class TrainedModel:
    """A trained network with its preprocessing and its calibration.

    Args:
        run: The run, or its folder.
        checkpoint: ``"last"``, or ``"best_val"`` for the weights with the best validation accuracy.
        device: ``"auto"`` is a GPU if there is one.

    Example:
        >>> model = TrainedModel("runs/birds")  # doctest: +SKIP
        >>> model.predict(["a.jpg"])[0].name  # doctest: +SKIP
        'Parus major'
    """

    def __init__(
        self,
        run: Run | str | Path,
        checkpoint: Checkpoint = "last",
        device: Device = "auto",
    ) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.checkpoint = checkpoint
        self.settings = self.run.train_settings
        self.device, self._autocast = inference_device(device, self.settings.precision)
        self.network = self.run.load_network(checkpoint).to(self.device)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the K classes, by class id."""
        return self.run.class_names

    def scores(self, rows: NDArray[np.int64]) -> Iterator[Scores]:
        """Features and probabilities of rows of the run's own catalog, batch after batch, in their order."""
        return self._scores(self.run.dataset.store, np.asarray(rows, np.int64))

    @cached_property
    def clusters(self) -> ClassClusters | None:
        """The clusterings of classes that the run learned; None where its method learns none."""
        stats = self.run.class_stats
        return ClassClusters(stats["clusters"], stats["cluster_confidence"]) if "clusters" in stats else None

    def candidates(self, probs: Probabilities) -> Chosen:
        """(N, K) the classes that each image may be of: SoC's cluster of the prediction, the smaller the surer.

        Where the method learned no clusters: the fewest classes that hold 90 % of the probability.
        """
        return candidates(probs, self.clusters)

    @cached_property
    def identity(self) -> str:
        """A hash of the weights."""
        return weights_identity(self.run.folder.checkpoints / self.checkpoint)

    @property
    def calibration(self) -> Calibration:
        """What validation images say about confidences; fitted on first use and kept in the folder."""
        return self._calibrated[0]

    @property
    def calibration_note(self) -> str:
        """One sentence about it."""
        return self._calibrated[1]

    @cached_property
    def _calibrated(self) -> tuple[Calibration, str]:
        self._check_classifier()
        return calibration_of(self, self.identity)

    @cached_property
    def metadata(self) -> ModelMetadata:
        """Everything beside the network that predictions need."""
        return replace(self.uncalibrated, calibration=self.calibration)

    @cached_property
    def uncalibrated(self) -> ModelMetadata:
        """The same without a look at validation images."""
        colors = normalization(self.network)
        return ModelMetadata(
            class_names=self.class_names,
            image_size=self.settings.image_size,
            stored_side=self.settings.stored_side,
            mean=colors.mean,
            std=colors.std,
            backbone=self.settings.backbone,
            clusters=self.clusters,
        )

    @cached_property
    def preprocessor(self) -> Preprocessor:
        """How it gets to see images: on a GPU that does what it can."""
        if self._on_gpu:
            return GpuPreprocessor(self.uncalibrated, self.device)
        return CpuPreprocessor(self.uncalibrated)

    @property
    def batch_size(self) -> int:
        """How many images at a time suit predictions: a GPU wants many, on a CPU each batch takes a second."""
        return BATCH if self._on_gpu else pipeline.BATCH

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def logits(self, views: Sequence[Pixels | Tensor]) -> NDArray[np.float32]:
        """N views of its sight, (S, S, 3) levels each -> (N, K)."""
        self._check_classifier()
        tensors = [torch.as_tensor(view) for view in views]
        return self._device_network.logits(tensors) if self._on_gpu else self._logits_on_cpu(tensors)

    @torch.inference_mode()
    def _logits_on_cpu(self, views: list[Tensor]) -> NDArray[np.float32]:
        at_once = micro_batch_size(len(views), self.settings.image_size, self.device)
        parts = [self._view_classifier(part)[1] for part in torch.stack(views).split(at_once)]
        found: NDArray[np.float32] = torch.cat(parts).numpy()
        return found

    @cached_property
    def _device_network(self) -> GpuNetwork:
        return GpuNetwork(self._view_classifier, self.device)

    @cached_property
    def _view_classifier(self) -> ViewClassifier:
        """The network with the normalization before it, in eval mode."""
        classifier = ViewClassifier(self.network).to(self.device)
        return classifier.to(memory_format=torch.channels_last).eval()

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Top-1 and top-5 in percent on a split of the run's data set."""
        catalog = self.run.dataset.catalog
        rows = catalog.rows(Split[split.upper()])
        if not len(rows):
            raise UserError(f"{catalog.name} has no {split} images.")
        probs = np.concatenate([scores.probabilities for scores in self.scores(rows)])
        label = torch.from_numpy(catalog.label[rows])
        return {"split": split, "images": len(rows), **accuracy(torch.from_numpy(probs), label)}

    def predict(
        self,
        images: Sequence[ImageInput],
        top: int = 5,
        *,
        coverage: float = 0.9,
        taxonomy: str | Path | None = None,
    ) -> list[Prediction]:
        """What the run says about each image; images are paths, Pillow images or (H, W, 3) arrays.

        ``coverage`` is how often the conformal set holds the true class, ``taxonomy`` a CSV file of higher ranks.
        """
        if not len(images):
            raise UserError("There are no images to predict.")
        ranks = read_taxonomy(Path(taxonomy), self.class_names) if taxonomy else None
        questions = PredictOptions(top=top, coverage=coverage, taxonomy=ranks)
        predictions: list[Prediction] = []
        groups = gather_given(self.preprocessor, images)
        for answered in pipeline.answer(self.logits, self.preprocessor, groups, self.batch_size):
            for place, reason in answered.problems.items():
                raise UserError(f"Image {len(predictions) + place} cannot be used: {reason}.")
            predictions += predict_from_logits(answered.logits, self.metadata, questions)
        return predictions

    def _scores(self, store: ImageStore, rows: NDArray[np.int64]) -> Iterator[Scores]:
        self._check_classifier()
        colors = normalization(self.network)
        view_settings = AugmentSettings(size=self.settings.image_size, mean=colors.mean, std=colors.std)
        views = AugmentPipeline(store, view_settings, seed=0, device=self.device)
        for output in Evaluator(views, self._autocast, BATCH).outputs(self.network, rows):
            probs, logits = torch.softmax(output.logits, dim=1), output.logits.cpu().numpy()
            check_finite(logits, self.run.folder.path)  # the score of a training that diverged looks like a bad guess
            yield Scores(output.features.cpu().numpy(), logits, probs.cpu().numpy())

    def _check_classifier(self) -> None:
        if not self.network.num_classes:
            raise UserError(
                f"The run in {self.run.folder.path} learned features and no classifier; train one from them with "
                f"--weights {self.run.folder.checkpoints / 'last' / 'model.safetensors'}."
            )


def load(path: str | Path, checkpoint: Checkpoint = "last", device: Device = "auto") -> TrainedModel:
    """Opens a trained model.

    Args:
        path: Folder of a run.
        checkpoint: ``"last"``, or ``"best_val"`` for the weights with the best validation accuracy.
        device: ``"auto"`` is a GPU if there is one.
    """
    return TrainedModel(path, checkpoint, device)
