"""A network together with what must happen to an image's levels before it and to its logits after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from semifine.data.decode import Pixels
from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.models.classifier import Classifier, normalization

if TYPE_CHECKING:
    from semifine.inference.model import TrainedModel


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


def pictures(count: int, size: int) -> Pixels:
    """(count, size, size, 3) levels, smooth to noisy, since noise alone excites few features; always the same ones."""
    random = np.random.default_rng(count)
    drawn = []
    for _ in range(count):
        cells = int(random.integers(2, size + 1))
        coarse = random.integers(0, 256, (cells, cells, 3), np.uint8)
        places = np.arange(size) * cells // size
        drawn.append(coarse[np.ix_(places, places)])
    return np.stack(drawn)


PICTURES = 5


class DivergedError(UserError):
    """The weights are of no use, unlike data that cannot be found, without which a run still predicts."""


def check_finite(logits: Logits, folder: Path) -> None:
    """Refuses the weights of the run in a folder by what they answered."""
    if not np.isfinite(logits).all():
        raise DivergedError(
            f"The weights of {folder} give no finite numbers (the training diverged): train again with a lower --lr."
        )


@torch.inference_mode()
def try_out(model: TrainedModel) -> None:
    """Refuses weights that answer a few pictures without finite numbers; all of them may be finite themselves.

    In float32, and not by ``model.logits``: on a GPU such pictures could change its number format for good.
    """
    views = torch.from_numpy(pictures(PICTURES, model.settings.image_size)).to(model.device)
    _, logits, _ = ViewClassifier(model.network).to(model.device)(views)
    check_finite(logits.cpu().numpy(), model.run.folder.path)
