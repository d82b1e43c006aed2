"""Evaluation of a network on stored images, with the preprocessing and the precision of predictions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.data.store import ImageStore
from semifine.inference.gpu import GpuPreprocessor
from semifine.inference.network import ImageClassifier, InferenceNetwork
from semifine.inference.preprocess import CpuPreprocessor, Preprocessor
from semifine.inference.views import AveragedViews
from semifine.models.classifier import Classifier
from semifine.models.forward import Output

BATCH_SIZE = 256


def create_preprocessor(image_size: int, stored_side: int, device: torch.device) -> Preprocessor:
    """Returns the evaluation transform for a device.

    Example:
        >>> create_preprocessor(224, 256, torch.device("cpu")).stored_side
        256
    """
    if device.type == "cuda":
        return GpuPreprocessor(image_size, stored_side, device)
    return CpuPreprocessor(image_size, stored_side)


class Evaluator:
    """Runs networks over rows of an image store, in batches and without gradient.

    Args:
        store: The decoded images.
        preprocessor: The evaluation transform.
        device: Device of the networks.
        batch_size: Number of images in a batch.
        views: Views of each image, whose outputs are averaged; the preprocessor makes squares of their ``side``.
    """

    def __init__(
        self,
        store: ImageStore,
        preprocessor: Preprocessor,
        device: torch.device,
        batch_size: int = BATCH_SIZE,
        views: AveragedViews | None = None,
    ) -> None:
        self._store = store
        self._preprocessor = preprocessor
        self._device = device
        self._batch_size = batch_size
        self._views = views

    def outputs(self, network: Classifier, rows: NDArray[np.int64], *, flip: bool = False) -> Iterator[Output]:
        """Yields float32 logits and features batch by batch, in the order of the rows.

        Args:
            network: The network, which is evaluated in evaluation mode.
            rows: Rows of the store.
            flip: Mirror the images.
        """
        was_training = network.training
        network.eval()
        forward = InferenceNetwork(ImageClassifier(network, views=self._views), self._device)
        for start in range(0, len(rows), self._batch_size):
            images = self._preprocessor.transform_stored(self._store, rows[start : start + self._batch_size])
            batch = torch.stack([torch.as_tensor(image) for image in images]).to(self._device)
            batch = batch.flip(2) if flip else batch
            # A network that is compiled for the batches of training is not compiled again for these.
            with torch.compiler.set_stance("force_eager"):
                output = forward(batch)
            yield output
        network.train(was_training)

    def predict(self, network: Classifier, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yields probabilities ``(b, K)`` batch by batch, in the order of the rows."""
        for output in self.outputs(network, rows):
            yield torch.softmax(output.logits, dim=1)

    def accuracy(self, network: Classifier, rows: NDArray[np.int64], label: Tensor) -> dict[str, float]:
        """Returns top-1 and top-5 accuracy in percent over the rows."""
        probs = torch.cat(list(self.predict(network, rows)))
        return accuracy(probs, label.to(probs.device))


def accuracy(probs: Tensor, label: Tensor) -> dict[str, float]:
    """Returns top-1 and top-5 accuracy in percent; with fewer than five classes, top-5 counts all of them.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
        {'top1': 50.0, 'top5': 100.0}
    """
    top = probs.topk(min(5, probs.shape[1]), dim=1).indices
    correct = top == label[:, None]
    top1, top5 = torch.stack([correct[:, 0].sum(), correct.any(dim=1).sum()]).tolist()
    return {"top1": 100 * top1 / len(label), "top5": 100 * top5 / len(label)}


def confusion_matrix(probs: Tensor, label: Tensor) -> Tensor:
    """Returns counts ``(K, K)``: the row is the true class, the column the predicted class.

    Example:
        >>> confusion_matrix(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1])).tolist()
        [[1, 0], [1, 0]]
    """
    num_classes = probs.shape[1]
    code = label * num_classes + probs.argmax(dim=1)
    return torch.bincount(code, minlength=num_classes**2).reshape(num_classes, num_classes)
