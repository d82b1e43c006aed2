"""The network of a trained model: normalization, forward pass and softmax in one module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from semifine.data.decode import Pixels
from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.inference.views import AveragedViews
from semifine.models.classifier import Classifier, normalization
from semifine.models.folding import fold_batch_norms
from semifine.models.forward import Output, micro_batch_size


class ImageClassifier(nn.Module):
    """A classifier for uint8 images, preceded by normalization and followed by softmax.

    Predictions run this module, and exported files contain it.

    Args:
        network: The trained network. It is not copied.
        temperature: Temperature of the softmax.
        views: Views of each image, whose logits and features are averaged; by default the image itself.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Classifier, temperature: float = 1.0, views: AveragedViews | None = None) -> None:
        super().__init__()
        self.network = network
        self.views = views
        self.temperature = temperature
        config = normalization(network)
        device = next(network.parameters()).device
        mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (config.mean, config.std))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Classifies images ``(N, S, S, 3)`` of type uint8.

        Returns:
            Probabilities at the temperature ``(N, K)``, logits ``(N, K)`` and pooled features ``(N, D)``.
        """
        logits, features = self._outputs(images)
        return torch.softmax(logits / self.temperature, dim=1), logits, features

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.views is not None and self.views.count > 1:
            outputs = [self._output(view) for view in self.views.of(images)]
            logits, features = (torch.stack(parts).mean(dim=0) for parts in zip(*outputs, strict=True))
            return logits, features
        return self._output(images)

    def _output(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network(images.permute(0, 3, 1, 2).float() * self.scale + self.shift)
        return output.logits.float(), output.features.float()


class InferenceNetwork:
    """Forward passes without gradient, in the precision that all evaluations and predictions share.

    A CPU computes in float32, in micro-batches that fit its caches, with batch norms folded into convolutions. A GPU
    computes in float16, which is closer to float32 than bfloat16 is, and changes to float32 for good at the first
    logits that are too large for float16.
    """

    def __init__(self, classifier: ImageClassifier, device: torch.device, *, half: bool | None = None) -> None:
        self.half = device.type == "cuda" if half is None else half
        self._classifier: nn.Module = classifier
        self._device = device
        self._is_folded = device.type != "cpu" or not isinstance(classifier, nn.Module)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Output:
        """Images ``(N, S, S, 3)`` -> float32 logits ``(N, K)`` and features ``(N, D)``."""
        output = self.forward(images)
        if self.half and not bool(torch.isfinite(output.logits).all()):
            self.half = False
            output = self.forward(images)
        return output

    def forward(self, images: Tensor) -> Output:
        """The forward pass in the current precision, without a look at the result."""
        if not self._is_folded:
            self._classifier, self._is_folded = fold_batch_norms(self._classifier, images[:1]), True
        size = micro_batch_size(len(images), images.shape[1], self._device)
        with torch.autocast(self._device.type, torch.float16, enabled=self.half):
            parts = [self._classifier(part)[1:] for part in images.split(size)]
        logits, features = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return Output(logits, features)


def random_images(count: int, size: int) -> Pixels:
    """Reproducible images ``(count, size, size, 3)`` from smooth to noisy: noise alone activates few features."""
    random = np.random.default_rng(count)
    images = []
    for _ in range(count):
        cells = int(random.integers(2, size + 1))
        coarse = random.integers(0, 256, (cells, cells, 3), np.uint8)
        index = np.arange(size) * cells // size
        images.append(coarse[np.ix_(index, index)])
    return np.stack(images)


class DivergedError(UserError):
    """The network gives logits that are not finite."""


def check_finite(logits: Logits, folder: Path) -> None:
    """Raises ``DivergedError`` for the run in ``folder`` if its logits are not finite."""
    if not np.isfinite(logits).all():
        raise DivergedError(
            f"The weights of {folder} give no finite numbers (the training diverged): train again with a lower --lr."
        )


NUM_RANDOM_IMAGES = 5


def check_network(network: Classifier, image_size: int, folder: Path) -> None:
    """Raises ``DivergedError`` if the network gives logits that are not finite for a few random images."""
    images = torch.from_numpy(random_images(NUM_RANDOM_IMAGES, image_size))
    device = next(network.parameters()).device
    output = InferenceNetwork(ImageClassifier(network), device, half=False)(images.to(device))
    check_finite(output.logits.cpu().numpy(), folder)
