"""ReMixMatch: aligned and sharpened labels for several strong views, mixup of all images, and rotations (ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from semifine.distributed import rank
from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import Batch, DataInfo, Method, Progress, PseudoLabels, StepResult, soft_pseudo_labels
from semifine.methods.components import hashed_beta, hashed_uniform
from semifine.methods.levers import Levers, LeverSettings
from semifine.models.forward import Networks

ROTATION = "rotation"
"""Name of the head that predicts rotations."""


@dataclass(frozen=True)
class ReMixMatchSettings(LeverSettings):
    align: float = setting(
        1.0, "power of the running mean prediction by which predictions are divided (distribution alignment)", low=0
    )
    align_to: Literal["uniform", "labels", "em"] = setting(
        "labels",
        "class distribution to which predictions are aligned: uniform, of the labels, or of the unlabeled images as "
        "estimated by EM",
    )
    align_decay: float = setting(
        0.99, "decay of the running mean prediction and of the distribution estimated by EM", low=0, high=1
    )
    sharpen: float = setting(
        2.0, "power to which soft labels are raised; 1 / sharpen is the temperature of the paper", low=0
    )
    weight: float = setting(1.5, "weight of the loss of mixed unlabeled images (lambda_U)", low=0)
    weight_strong: float = setting(1.5, "weight of the loss of strong views that are not mixed (lambda_U1)", low=0)
    weight_rotation: float = setting(0.5, "weight of the loss of rotations (lambda_r)", low=0)
    mixup: float = setting(0.75, "parameter of the Beta distribution of the mixing weights; 0: no mixup", low=0)


class ReMixMatch(Method):
    """loss = CE(X') + lambda_U CE(U') + lambda_U1 CE(q, f(strong(u))) + lambda_r CE(r, f_r(rotate(strong(u), r))).

    q is the aligned and sharpened prediction on the weak view. X' and U' are the labeled images and all views of the
    unlabeled images, each mixed with a random image of both: m x + (1 - m) x', m = max(b, 1 - b), b ~ Beta(mixup).

    Differences to the paper: there are two strong views instead of eight, by RandAugment instead of CTAugment. Labeled
    images have the weak view. The mean prediction is an exponential average instead of the mean of 128 batches. Images
    are mixed with images of the same process. A quarter of the strong views gets each rotation.
    """

    name = "remixmatch"
    title = "ReMixMatch"
    color = "orange"
    line_style = "-."
    summary = "aligned, sharpened labels, mixup of all images, and prediction of rotations"
    Settings = ReMixMatchSettings
    unlabeled_views = ("weak", "strong", "strong:2")
    supports_frozen_stages = False  # activations of a rotated image are not rotated activations
    cuda_graph_safe = True

    steps: Tensor
    """Number of steps with unlabeled images."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.levers = Levers(settings, info)
        self.needs_ema = self.levers.needs_ema  # type: ignore[misc]  # depends on the settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:  # noqa: ARG003
        return nn.ModuleDict({ROTATION: nn.Linear(feature_dim, 4)})

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        weak, strong, second = (batch.unlabeled[view] for view in self.unlabeled_views)
        images = torch.cat([batch.labeled["weak"], strong, second, weak])
        partner, weight = self._draw_mixing(len(images), images.device)
        mixed = torch.lerp(images[partner], images, weight[:, None, None, None])
        rotated, rotation = rotate_quarters(strong)

        sizes = [len(batch.label), *3 * [len(weak)]]
        mixed_labeled, *mixed_unlabeled = mixed.split(sizes)
        labeled, predicted, *outputs = self.levers.forward_views(
            networks, mixed_labeled, weak, *mixed_unlabeled, strong, rotated
        )
        *unlabeled, plain, turned = outputs
        pseudo = self._make_labels(self.levers.predict(predicted.logits))
        hard = one_hot(batch.label, self.info.num_classes).to(pseudo.target.dtype)
        target = torch.cat([hard, pseudo.target, pseudo.target, pseudo.target])
        target = torch.lerp(target[partner], target, weight[:, None])

        supervised = soft_cross_entropy(self.levers.adjust_labeled(labeled.logits), target[: sizes[0]])
        logits = self.levers.adjust_unlabeled(torch.cat([output.logits for output in unlabeled]))
        consistency = soft_cross_entropy(logits, target[sizes[0] :])
        anchored = soft_cross_entropy(self.levers.adjust_unlabeled(plain.logits), pseudo.target)
        turning = supervised_cross_entropy(turned.heads[ROTATION], rotation)
        settings = self.settings
        loss = supervised + settings.weight * consistency + settings.weight_strong * anchored
        loss = loss + settings.weight_rotation * turning
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "loss_strong": anchored.detach(),
            "loss_rotation": turning.detach(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return replace(self._make_labels(self.levers.correct(probs)), probs=probs)

    def _make_labels(self, probs: Tensor) -> PseudoLabels:
        return replace(soft_pseudo_labels(probs, threshold=0.0), target=self.levers.sharpen(probs))

    def _draw_mixing(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the (count,) partners of the images and their own (count,) weights for this step."""
        key = self.info.seed, self.steps, rank(), torch.arange(count, device=device)
        partner = hashed_uniform(*key, 2).argsort()
        mixing = self.settings.mixup
        weight = hashed_beta(mixing, *key) if mixing else torch.ones(count, device=device)
        self.steps.add_(1)
        return partner, torch.maximum(weight, 1 - weight)


def rotate_quarters(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates a quarter of the images by each of 0, 90, 180 and 270 degrees.

    Batches are in random order, so the rotation of an image can depend on its position.

    Args:
        images: (B, C, S, S).

    Returns:
        (B, C, S, S) rotated images, in another order, and their (B,) rotations 0..3.

    Example:
        >>> rotated, rotation = rotate_quarters(torch.arange(8.0).view(2, 1, 2, 2))
        >>> rotated[1, 0], rotation
        (tensor([[5., 7.],
                [4., 6.]]), tensor([0, 1]))
    """
    parts = [torch.rot90(images[turns::4], turns, dims=(2, 3)) for turns in range(4)]
    rotation = torch.cat([torch.full((len(part),), turns, device=images.device) for turns, part in enumerate(parts)])
    return torch.cat(parts), rotation
