"""Networks between the probe and the trained network, by interpolation of their weights.

Training starts from the probe, so both networks have the same layers, and weights between them often classify better
than either (WiSE-FT, Wortsman et al., CVPR 2022). The weight 0 is the probe, 1 the trained network.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.inference.calibration import fit_temperature, softmax
from semifine.inference.evaluate import Evaluator
from semifine.models.classifier import Classifier
from semifine.models.lora import merged_state_dict
from semifine.runs.accuracy import describe_difference, short_interval

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DEFAULT_WEIGHT = 0.5
"""Weight without held-out images to choose it."""


@dataclass(frozen=True)
class Comparison:
    """Accuracy in percent and loss on held-out images, for each weight of the trained network."""

    images: int
    top1: tuple[float, ...]
    loss: tuple[float, ...]
    """Mean cross-entropy at the best temperature, which varies less than the accuracy on few images."""

    @property
    def best(self) -> float:
        """The weight with the lowest loss."""
        return WEIGHTS[int(np.argmin(self.loss))]

    def describe(self) -> str:
        """Describes the comparison in one sentence."""
        probe, chosen, trained = (
            short_interval(self.top1[index], self.images) for index in (0, WEIGHTS.index(self.best), -1)
        )
        name = {0.0: "the probe", 1.0: "the trained network"}.get(
            self.best, f"weights between probe and trained network ({self.best:g})"
        )
        return (
            f"on {self.images} held-out images, the probe classified {probe} correctly, the trained network {trained}; "
            f"training changed the accuracy by {describe_difference(self.top1[0], self.top1[-1], self.images)}; the "
            f"result has the lowest loss: {name}, {chosen}"
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Comparison:
        """Reads a comparison from a result."""
        return cls(values["images"], tuple(values["top1"]), tuple(values["loss"]))


@torch.no_grad()
def interpolate(start: Classifier, trained: Classifier, weight: float) -> Classifier:
    """Returns the network with the weights ``(1 - weight) * start + weight * trained``.

    Example:
        >>> from semifine.models.classifier import create_classifier
        >>> start, trained = (create_classifier("test_resnet", 2, 32) for _ in range(2))
        >>> between = interpolate(start, trained, 0.5)
        >>> bool(torch.allclose(2 * between.head.bias, start.head.bias + trained.head.bias))
        True
    """
    network = copy.deepcopy(start)
    other = merged_state_dict(trained)
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            value.lerp_(other[name].to(value.device), weight)
    return network


def compare(
    start: Classifier, trained: Classifier, evaluator: Evaluator, rows: NDArray[np.int64], label: NDArray[np.int64]
) -> Comparison:
    """Evaluates the networks between two networks.

    Args:
        start: The network of weight 0; it must not have been trained on the images.
        trained: The network of weight 1.
        evaluator: Runs the networks.
        rows: The held-out images.
        label: Their classes.
    """
    top1, loss = [], []
    for weight in WEIGHTS:
        outputs = evaluator.outputs(interpolate(start, trained, weight), rows)
        logits = torch.cat([output.logits.cpu() for output in outputs]).double().numpy()
        top1.append(100 * float((logits.argmax(axis=1) == label).mean()))
        probs = softmax(logits, fit_temperature(logits, label)) if np.isfinite(logits).all() else np.zeros_like(logits)
        loss.append(float(-np.log(probs[np.arange(len(label)), label].clip(1e-12)).mean()))
    return Comparison(len(label), tuple(top1), tuple(loss))
