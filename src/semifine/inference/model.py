"""A trained model: the network of a run with its preprocessing and its calibration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.data.catalog import Split
from semifine.data.decode import Pixels, try_decode_row
from semifine.devices import inference_device
from semifine.errors import UserError
from semifine.files import read_json, write_atomically
from semifine.inference.calibration import (
    MIN_IMAGES,
    Calibration,
    ClassClusters,
    Logits,
    Mask,
    Probabilities,
    calibrate,
    candidates,
)
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.inference.evaluate_files import evaluate
from semifine.inference.gpu import GpuNetwork
from semifine.inference.network import DivergedError, ImageClassifier, InferenceNetwork, check_finite, check_network
from semifine.inference.pipeline import BATCH_SIZE, ImageInput, decode_inputs, run_inference
from semifine.inference.prediction import (
    Checkpoint,
    Device,
    ModelMetadata,
    Prediction,
    PredictOptions,
    predict_from_logits,
)
from semifine.inference.preprocess import Preprocessor, decode_batches
from semifine.inference.taxonomy import read_taxonomy
from semifine.inference.views import AveragedViews
from semifine.models.classifier import normalization
from semifine.models.forward import Output
from semifine.runs.run import Run

GPU_BATCH_SIZE = 256
"""Batch size of predictions on a GPU. On a CPU, such a batch would take many seconds."""


class TrainedModel:
    """A trained network with its preprocessing and its calibration.

    Args:
        run: The run, or its folder.
        checkpoint: ``"auto"`` for the result of the run, ``"last"``, ``"best_val"`` for the weights with the best
            validation accuracy, or ``"probe"``.
        device: ``"auto"`` uses a GPU if one is available.
        views: Number of views of each image whose predictions are averaged, see :class:`AveragedViews`.

    Example:
        >>> model = TrainedModel("runs/birds")  # doctest: +SKIP
        >>> model.predict(["a.jpg"])[0].name  # doctest: +SKIP
        'Parus major'
    """

    def __init__(
        self, run: Run | str | Path, checkpoint: Checkpoint = "auto", device: Device = "auto", views: int = 1
    ) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.checkpoint = self.run.find_checkpoint(checkpoint)
        self.settings = self.run.train_settings
        self.views = AveragedViews(views, self.settings.image_size)
        self.device = inference_device(device)
        self.network = self.run.load_network(self.checkpoint).to(self.device)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the K classes, by class id."""
        return self.run.class_names

    @cached_property
    def clusters(self) -> ClassClusters | None:
        """The clusterings of classes that the run learned; None if its method learns none."""
        stats = self.run.class_stats
        return ClassClusters(stats["clusters"], stats["cluster_confidence"]) if "clusters" in stats else None

    def candidates(self, probs: Probabilities) -> Mask:
        """Returns the candidate classes of each image as a mask ``(N, K)``.

        The candidates are SoC's cluster of the predicted class: the higher the confidence, the smaller the cluster.
        If the method learned no clusters, they are the fewest classes with 90 % of the probability.
        """
        return candidates(probs, self.clusters)

    @property
    def identity(self) -> str:
        """Hash of the weights, with the number of views if there are several."""
        return self.weights_hash if self.views.count == 1 else f"{self.weights_hash}-{self.views.count}"

    @cached_property
    def weights_hash(self) -> str:
        """Hash of the weights."""
        with (self.run.folder.checkpoints / self.checkpoint / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]

    @property
    def calibration(self) -> Calibration:
        """The calibration, which is stored in the run folder; fitted on validation images if it is missing."""
        return self._calibration_and_note[0]

    @property
    def calibration_note(self) -> str:
        """Description of the calibration in one sentence."""
        return self._calibration_and_note[1]

    @cached_property
    def _calibration_and_note(self) -> tuple[Calibration, str]:
        self._check_classifier()
        return _load_or_fit_calibration(self)

    def store_calibration(self, calibration: Calibration) -> None:
        """Stores a calibration for these weights in the run folder."""
        _store_calibration(self, calibration)

    @cached_property
    def metadata(self) -> ModelMetadata:
        """Everything except the weights that predictions need."""
        colors = normalization(self.network)
        return ModelMetadata(
            class_names=self.class_names,
            image_size=self.settings.image_size,
            stored_side=self.settings.stored_side,
            mean=colors.mean,
            std=colors.std,
            backbone=self.settings.backbone,
            backbone_args=self.settings.backbone_args,
            calibration=self.calibration,
            clusters=self.clusters,
        )

    @cached_property
    def preprocessor(self) -> Preprocessor:
        """The evaluation transform on the device of the network."""
        stored_side = max(self.settings.stored_side, self.views.side)
        return create_preprocessor(self.views.side, stored_side, self.device)

    @property
    def batch_size(self) -> int:
        """Default batch size of predictions."""
        return max(1, (GPU_BATCH_SIZE if self.device.type == "cuda" else BATCH_SIZE) // self.views.count)

    def logits(self, images: Sequence[Pixels | Tensor]) -> Logits:
        """Returns logits ``(N, K)`` of N preprocessed images, each ``(S, S, 3)`` uint8."""
        self._check_classifier()
        tensors = [torch.as_tensor(image) for image in images]
        if self.device.type == "cuda":
            return self._gpu_network.logits(tensors)
        logits: Logits = self._inference_network(torch.stack(tensors)).logits.numpy()
        return logits

    @cached_property
    def _gpu_network(self) -> GpuNetwork:
        return GpuNetwork(ImageClassifier(self.network, views=self.views), self.device)

    @cached_property
    def _inference_network(self) -> InferenceNetwork:
        return InferenceNetwork(ImageClassifier(self.network, views=self.views), self.device)

    def outputs(self, rows: NDArray[np.int64]) -> Iterator[Output]:
        """Yields logits and features for rows of the catalog of the run, batch by batch, in order."""
        self._check_classifier()
        evaluator = Evaluator(self.run.dataset.store, self.preprocessor, self.device, views=self.views)
        for output in evaluator.outputs(self.network, np.asarray(rows, np.int64)):
            # Without this check, the accuracy of a diverged training would look like random guessing.
            check_finite(output.logits.cpu().numpy(), self.run.folder.path)
            yield Output(output.logits.cpu(), output.features.cpu())

    def evaluate(self, split_or_path: str | Path = "test") -> dict[str, Any]:
        """Returns accuracies with 95 % intervals, calibration error and conformal coverage, in percent.

        Args:
            split_or_path: ``"test"`` or ``"val"`` for images of the data set of the run. Else the path of labeled
                photos: a folder with one folder per class, or a table with the columns ``path`` and ``label``.
        """
        return evaluate(self, split_or_path).as_dict()

    def predict(
        self,
        images: Sequence[ImageInput],
        top: int = 5,
        *,
        coverage: float = 0.9,
        taxonomy: str | Path | None = None,
    ) -> list[Prediction]:
        """Predicts images in memory or in files.

        Args:
            images: Paths, Pillow images or arrays ``(H, W, 3)``.
            top: Number of classes to name.
            coverage: Probability that the conformal set contains the true class.
            taxonomy: CSV file with a column of classes and columns of higher ranks.
        """
        if not len(images):
            raise UserError("There are no images to predict.")
        ranks = read_taxonomy(Path(taxonomy), self.class_names) if taxonomy else None
        options = PredictOptions(top=top, coverage=coverage, taxonomy=ranks)
        predictions: list[Prediction] = []
        groups = decode_inputs(self.preprocessor, images)
        for batch in run_inference(self.logits, self.preprocessor, groups, len(self.class_names), self.batch_size):
            for index, error in batch.errors.items():
                raise UserError(f"Image {len(predictions) + index} cannot be used: {error}.")
            predictions += predict_from_logits(batch.logits, self.metadata, options)
        return predictions

    def _check_classifier(self) -> None:
        if not self.network.num_classes:
            raise UserError(
                f"The run in {self.run.folder.path} learned features and no classifier; train one from them with "
                f"--weights {self.run.folder.checkpoints / 'last' / 'model.safetensors'}."
            )


def load(path: str | Path, checkpoint: Checkpoint = "auto", device: Device = "auto", views: int = 1) -> TrainedModel:
    """Opens a trained model.

    Args:
        path: Folder of a run.
        checkpoint: ``"auto"`` for the result of the run, ``"last"``, ``"best_val"`` for the weights with the best
            validation accuracy, or ``"probe"``.
        device: ``"auto"`` uses a GPU if one is available.
        views: Number of views of each image whose predictions are averaged: 1 for the center crop, 2 with its mirror
            image, 5 for crops at the center and the corners, 10 for these with their mirror images.

    Example:
        >>> model = load("runs/birds")  # doctest: +SKIP
        >>> model.predict(["new/IMG_0001.jpg"])[0].name  # doctest: +SKIP
        'Parus major'
    """
    return TrainedModel(path, checkpoint, device, views)


def _load_or_fit_calibration(model: TrainedModel) -> tuple[Calibration, str]:
    """Returns the calibration of the weights and its description; stores a newly fitted calibration in the run folder.

    Raises:
        DivergedError: If the logits of the network are not finite.
    """
    path = model.run.folder.calibration
    stored = _read_calibrations(path)
    if model.identity in stored:
        return stored[model.identity], stored[model.identity].describe()
    try:
        calibration = _fit_calibration(model)
        note = calibration.describe()
    except DivergedError:
        raise
    except UserError as error:
        calibration, note = Calibration(), f"not calibrated, because the data of the run cannot be used: {error}"
    if calibration.is_fitted:
        with suppress(OSError):  # without permission to write, it is fitted again at each use
            _store_calibration(model, calibration)
    else:
        check_network(model.network, model.settings.image_size, model.run.folder.path)
        if model.weights_hash in stored:  # of one view, which is better than none
            return stored[model.weights_hash], f"{stored[model.weights_hash].describe()}, for one view of each image"
    return calibration, note


def _store_calibration(model: TrainedModel, calibration: Calibration) -> None:
    path = model.run.folder.calibration
    by_identity = {**_read_calibrations(path), model.identity: calibration}
    text = json.dumps({identity: value.as_dict() for identity, value in by_identity.items()})
    write_atomically(path, text + "\n")


def _fit_calibration(model: TrainedModel) -> Calibration:
    """Fits the calibration on the validation images of the run; never reads test images."""
    run = model.run
    catalog = run.dataset.catalog if run.is_dataset_open else run.catalog
    rows = catalog.rows(Split.VAL)
    if len(rows) < MIN_IMAGES:
        return Calibration()
    if run.is_dataset_open:
        logits = torch.cat([output.logits for output in model.outputs(rows)]).numpy()
    else:
        logits, rows = _logits_from_files(model, rows)
    check_finite(logits, run.folder.path)
    return calibrate(logits, catalog.label[rows])


def _logits_from_files(model: TrainedModel, rows: NDArray[np.int64]) -> tuple[Logits, NDArray[np.int64]]:
    """Decodes rows of the catalog without a store, which would decode all images of the data set.

    Returns:
        Logits ``(n, K)`` of the readable images, and their rows ``(n,)``.
    """
    catalog, preprocessor = model.run.catalog, model.preprocessor

    def decode(row: int) -> Pixels | str:
        decoded = try_decode_row(catalog.reader, row, preprocessor.stored_side)
        return decoded if isinstance(decoded, str) else decoded.pixels

    groups = decode_batches(rows.tolist(), decode, preprocessor)
    logits, readable = [], []
    for batch in run_inference(model.logits, preprocessor, groups, catalog.num_classes, model.batch_size):
        logits.append(batch.logits)
        readable += [index not in batch.errors for index in range(batch.size)]
    return np.concatenate(logits), rows[np.array(readable)]


def _read_calibrations(path: Path) -> dict[str, Calibration]:
    """Reads the calibrations in a run folder, by the identity of their weights."""
    try:
        if not path.exists():
            return {}
        return {identity: Calibration.from_dict(values) for identity, values in read_json(path).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is damaged, or of a later version: remove it, and the calibration will be fitted again."
        ) from error
