"""A network together with what must happen to an image's levels before it and to its logits after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from semifine.models.classifier import Classifier, normalization


class ViewClassifier(nn.Module):
    """views (N, S, S, 3), levels 0..255 as uint8 -> probabilities (N, K), logits (N, K), pooled features (N, D).

    This is what is exported, and what predictions run. Probabilities are at the temperature, logits are not.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Classifier, temperature: float = 1.0) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        colors = normalization(network)
        mean, std = (torch.tensor(channel).view(1, 3, 1, 1) for channel in (colors.mean, colors.std))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        images = views.permute(0, 3, 1, 2).float() * self.scale + self.shift
        output = self.network(images)
        logits = output.logits.float()
        return torch.softmax(logits / self.temperature, dim=1), logits, output.features.float()
