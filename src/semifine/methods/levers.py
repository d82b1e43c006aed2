"""Levers that any method can use: changes of its labels and losses, all off by default.

Settings of a method inherit :class:`LeverSettings`, the method creates :class:`Levers` from them and calls it where it
makes labels and losses. ``docs/explanation/levers.md`` explains each lever.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semifine.distributed import all_gather
from semifine.fields import setting
from semifine.methods.base import DataInfo, predicted_probabilities
from semifine.models.forward import Networks, Output

SMALLEST_PRIOR = 1e-6
"""Lower bound of the probabilities that are divisors or arguments of a logarithm."""


@dataclass(frozen=True)
class LabeledLeverSettings:
    """Settings of the levers for methods that make no pseudo-labels."""

    adjust_labeled: float = setting(
        0.0, "strength of the logit adjustment by the class frequencies of the labels in the labeled loss", low=0
    )


@dataclass(frozen=True)
class PredictionLeverSettings(LabeledLeverSettings):
    """Settings of the levers for methods that choose the network of their labels themselves."""

    label_temperature: float = setting(
        1.0, "temperature of the predictions from which labels are made; below 1 sharpens them", low=1e-3
    )
    align: float = setting(
        0.0, "power of the running mean prediction by which predictions are divided (distribution alignment)", low=0
    )
    align_to: Literal["uniform", "labels", "em"] = setting(
        "uniform",
        "class distribution to which predictions are aligned: uniform, of the labels, or of the unlabeled images as "
        "estimated by EM",
    )
    align_decay: float = setting(
        0.95, "decay of the running mean prediction and of the distribution estimated by EM", low=0, high=1
    )
    sharpen: float = setting(1.0, "power to which the selected soft labels are raised", low=0)
    adjust_unlabeled: float = setting(
        0.0, "strength of the logit adjustment in the loss of pseudo-labeled images", low=0
    )
    adjust_by: Literal["predictions", "labels", "em"] = setting(
        "predictions",
        "class distribution of this adjustment: running mean prediction, distribution of the labels, or estimate by EM",
    )


@dataclass(frozen=True)
class LeverSettings(PredictionLeverSettings):
    """Settings of all levers.

    Example:
        >>> @dataclass(frozen=True)
        ... class Settings(LeverSettings):
        ...     threshold: float = setting(0.95, "smallest confidence of an accepted pseudo-label", low=0)
        >>> Settings(threshold=0.7, align=0.5).align
        0.5
    """

    labels_from: Literal["student", "ema"] = setting(
        "student", "network that predicts the soft labels: the trained one, or the average of its weights"
    )


class Levers(nn.Module):
    """The levers of a method. With the default settings, every call returns its argument.

    Args:
        settings: Settings of the method; levers that it does not declare are off.
        info: Properties of the training data.

    Example::

        >>> levers = Levers(LeverSettings(align=1.0), DataInfo(num_classes=2, num_labeled=4, num_unlabeled=8))
        >>> probs = levers.predict(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))  # also updates the running mean
        >>> levers.mean_probs.argmax(), (probs[:, 0] < 0.95).all()
        (tensor(0), tensor(True))
    """

    label_prior: Tensor
    """(K,) class frequencies of the labels."""
    mean_probs: Tensor
    """(K,) running mean prediction, if a lever needs it."""
    unlabeled_prior: Tensor
    """(K,) class distribution of the unlabeled images estimated by EM, if a lever needs it."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__()
        given = {
            field.name: getattr(settings, field.name)
            for field in fields(LeverSettings)
            if hasattr(settings, field.name)
        }
        self.settings = chosen = LeverSettings(**given)
        self.register_buffer("label_prior", class_frequencies(info.label, info.num_classes), persistent=False)
        sources = {chosen.adjust_by} if chosen.adjust_unlabeled else set()
        self._tracks_mean = bool(chosen.align) or "predictions" in sources
        self._tracks_prior = "em" in sources or (bool(chosen.align) and chosen.align_to == "em")
        if self._tracks_mean:
            self.register_buffer("mean_probs", torch.full((info.num_classes,), 1 / info.num_classes))
        if self._tracks_prior:
            self.register_buffer("unlabeled_prior", self._network_prior().clone())

    @property
    def needs_ema(self) -> bool:
        """Whether :meth:`forward_views` uses the averaged network."""
        return self.settings.labels_from == "ema"

    def forward_views(self, networks: Networks, labeled: Tensor, weak: Tensor, *strong: Tensor) -> list[Output]:
        """Returns the outputs for all views in this order; no gradient passes through the weak view.

        The weak view passes through the student, or through the averaged network with ``labels_from="ema"``.
        """
        if not self.needs_ema:
            return networks(labeled, weak, *strong, without_gradient=(1,))
        (predicted,) = networks.forward_ema(weak)
        first, *others = networks(labeled, *strong)
        return [first, predicted, *others]

    def predict(self, logits: Tensor) -> Tensor:
        """Returns the probabilities from which a training step makes its labels, after updating running means.

        Shapes: (B, K) -> (B, K).
        """
        probs = sharpen(predicted_probabilities(logits), 1 / self.settings.label_temperature)
        if self._tracks_mean or self._tracks_prior:
            self._update(all_gather(probs))
        return self._align(probs)

    def correct(self, probs: Tensor) -> Tensor:
        """Returns probabilities (B, K) with temperature and alignment applied, without changing the state."""
        return self._align(sharpen(probs, 1 / self.settings.label_temperature))

    def sharpen(self, target: Tensor) -> Tensor:
        """Returns soft labels (B, K) raised to a power and normalized."""
        return sharpen(target, self.settings.sharpen)

    def adjust_labeled(self, logits: Tensor) -> Tensor:
        """Returns the logits (B, K) of the labeled loss."""
        return adjust_logits(logits, self.label_prior, self.settings.adjust_labeled)

    def adjust_unlabeled(self, logits: Tensor) -> Tensor:
        """Returns the logits (B, K) of the loss of pseudo-labeled images."""
        if not self.settings.adjust_unlabeled:
            return logits
        priors = {"predictions": "mean_probs", "labels": "label_prior", "em": "unlabeled_prior"}
        return adjust_logits(logits, getattr(self, priors[self.settings.adjust_by]), self.settings.adjust_unlabeled)

    @torch.no_grad()
    def _update(self, probs: Tensor) -> None:
        weight = 1 - self.settings.align_decay
        if self._tracks_mean:
            self.mean_probs.lerp_(probs.mean(dim=0), weight)
        if self._tracks_prior:
            posterior = posterior_under_prior(probs, self.unlabeled_prior, self._network_prior())
            self.unlabeled_prior.lerp_(posterior.mean(dim=0), weight)

    def _align(self, probs: Tensor) -> Tensor:
        if not self.settings.align:
            return probs
        targets = {"uniform": None, "labels": "label_prior", "em": "unlabeled_prior"}
        name = targets[self.settings.align_to]
        return align_distribution(probs, self.mean_probs, self.settings.align, getattr(self, name) if name else None)

    def _network_prior(self) -> Tensor:
        """Returns the (K,) class distribution for which the network predicts: adjusted logits do not contain it."""
        prior = self.label_prior ** (1 - self.settings.adjust_labeled)
        return prior / prior.sum()


def class_frequencies(label: Tensor | None, num_classes: int) -> Tensor:
    """Returns the (K,) class frequencies of labels. A class without labels counts as one label.

    Example:
        >>> class_frequencies(torch.tensor([0, 0, 0, 1]), num_classes=2)
        tensor([0.7500, 0.2500])
    """
    if label is None:
        return torch.full((num_classes,), 1 / num_classes)
    counts = torch.bincount(label, minlength=num_classes).clamp(min=1).float()
    return counts / counts.sum()


def sharpen(probs: Tensor, power: float) -> Tensor:
    """Returns normalize(p^power), the probabilities (B, K) at the temperature 1 / power.

    Example:
        >>> sharpen(torch.tensor([[0.8, 0.2]]), power=2.0)
        tensor([[0.9412, 0.0588]])
    """
    return probs if power == 1 else _normalize(probs**power)


def align_distribution(probs: Tensor, mean: Tensor, power: float, target: Tensor | None = None) -> Tensor:
    """Distribution alignment: normalize(p (target / mean)^power).

    Args:
        probs: (B, K) predicted probabilities p.
        mean: (K,) running mean prediction.
        power: 0 changes nothing, 1 is the alignment of ReMixMatch.
        target: (K,) class distribution. Default: uniform.

    Example:
        >>> align_distribution(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]), power=0.5)
        tensor([[0.3333, 0.6667]])
    """
    weighted = probs / mean.clamp_min(SMALLEST_PRIOR) ** power
    return _normalize(weighted if target is None else weighted * target**power)


def posterior_under_prior(probs: Tensor, prior: Tensor, network_prior: Tensor) -> Tensor:
    """Returns normalize(p prior / network_prior), the E-step of the estimation of class priors by EM.

    Args:
        probs: (B, K) predicted probabilities p.
        prior: (K,) current estimate of the class distribution of the images.
        network_prior: (K,) class distribution for which the network predicts.

    Example:
        >>> posterior_under_prior(torch.tensor([[0.5, 0.5]]), torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5]))
        tensor([[0.9000, 0.1000]])
    """
    return _normalize(probs * prior / network_prior.clamp_min(SMALLEST_PRIOR))


def adjust_logits(logits: Tensor, prior: Tensor, strength: float) -> Tensor:
    """Logit adjustment: z + strength log prior.

    A network trained on adjusted logits learns predictions that do not contain the prior.

    Args:
        logits: (B, K) logits z.
        prior: (K,) class distribution of the images in the loss.
        strength: 0 changes nothing.

    Example:
        >>> adjust_logits(torch.zeros(1, 2), torch.tensor([0.5, 0.25]), strength=1.0).softmax(dim=1)
        tensor([[0.6667, 0.3333]])
    """
    return logits if strength == 0 else logits.float() + strength * prior.clamp_min(SMALLEST_PRIOR).log()


def _normalize(values: Tensor) -> Tensor:
    return values / values.sum(dim=1, keepdim=True)
