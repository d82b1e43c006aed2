"""Predictions of a network on the test view of images, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.models.networks import Output
from semifine.models.portions import images_at_once
from semifine.views import ViewMaker


class Evaluator:
    """Runs a network over rows of the image store, in batches, without gradient."""

    def __init__(self, views: ViewMaker, autocast: Callable[[], AbstractContextManager[None]], batch_size: int) -> None:
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
    at_once = images_at_once(len(images), images.shape[-1], images.device)
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
