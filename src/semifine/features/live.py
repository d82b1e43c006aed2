"""A classifier on frozen features that is fitted again within a second, while people label.

It is multinomial logistic regression on principal components, as an addition to the logits of a start model. Each fit
starts from the last one and takes few steps. Unlabeled images take part with soft labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from semifine.features.probe import SELF_TRAINING, SelfTraining, class_weights, soft_labels

Features = NDArray[np.float32]


@dataclass(frozen=True)
class LiveSettings:
    """Settings of the live classifier; the defaults were chosen in simulated labeling (``live_labeling.py``)."""

    dim: int = 256
    """Principal components of the features."""
    strength: float = 30.0
    """Inverse regularization strength, as for the probe."""
    steps: int = 12
    """Steps of L-BFGS on the labeled images."""
    unlabeled_steps: int = 8
    """Steps of L-BFGS on labeled and unlabeled images; 0 leaves the unlabeled ones out."""
    max_soft_labels: int = 400_000
    """Soft labels (images times classes) of unlabeled images that take part in a fit."""
    self_training: SelfTraining = SELF_TRAINING


LIVE_SETTINGS = LiveSettings()
FREE_BIAS = 1e-3
"""Penalty of the bias relative to the weights, without a start model."""
PCA_SAMPLE = 6000
"""Images from which principal components are computed."""


class Projection(NamedTuple):
    """A projection on principal components."""

    matrix: Features
    """``(D, dim)``"""
    offset: Features
    """``(dim,)``"""
    scale: np.float32
    """The root of the mean squared norm of the projected images."""

    def apply(self, features: Features) -> Features:
        """Projects features ``(N, D)``."""
        return np.asarray((features @ self.matrix - self.offset) / self.scale, np.float32)


def principal_components(features: Features, dim: int, seed: int = 0) -> Features:
    """Returns features ``(N, min(dim, D))``: centered, projected, and scaled to a mean squared norm of 1.

    Example:
        >>> principal_components(np.array([[0, 1], [0, 3], [0, 5]], np.float32), dim=1).round().tolist()
        [[-1.0], [0.0], [1.0]]
    """
    return fit_projection(features, dim, seed).apply(features)


def fit_projection(features: Features, dim: int, seed: int = 0) -> Projection:
    """Computes principal components from a sample of the images.

    Example:
        >>> fit_projection(np.eye(5, dtype=np.float32), dim=2).matrix.shape
        (5, 2)
    """
    count = len(features)
    chosen = np.arange(count)
    if count > PCA_SAMPLE:
        chosen = np.sort(np.random.default_rng(seed).choice(count, PCA_SAMPLE, replace=False))
    sample = features[chosen].astype(np.float64)
    mean = sample.mean(axis=0)
    sample -= mean
    variance, vectors = np.linalg.eigh(sample.T @ sample / max(len(sample), 1))
    order = np.argsort(-variance)[:dim]
    vectors = vectors[:, order] * np.where(vectors[:, order].sum(axis=0) < 0, -1, 1)
    scale = np.sqrt(max(float(variance[order].sum()), 1e-12))
    return Projection(vectors.astype(np.float32), (mean @ vectors).astype(np.float32), np.float32(scale))


class LiveFit(NamedTuple):
    """A fitted live classifier: an addition to the logits of the start model."""

    weight: Tensor
    """``(classes, dim)``"""
    bias: Tensor
    """``(classes,)``"""

    def grown(self, num_classes: int) -> LiveFit:
        """Returns the classifier with zero rows for new classes."""
        more = num_classes - len(self.bias)
        weight = torch.cat([self.weight, self.weight.new_zeros(more, self.weight.shape[1])])
        return LiveFit(weight, torch.cat([self.bias, self.bias.new_zeros(more)]))


class LiveClassifier:
    """Fits a classifier on labels of some images and predicts all images.

    Args:
        features: Features of all images ``(N, D)``.
        start_logits: Logits of a start model ``(N, classes)``; None without a model.
        settings: Sizes and steps.

    Example:
        >>> features = np.array([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]], np.float32)
        >>> classifier = LiveClassifier(features)
        >>> fit = classifier.fit(np.array([0, 2]), np.array([0, 1]), num_classes=2)
        >>> classifier.predict(fit).argmax(axis=1).tolist()
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        features: Features,
        start_logits: NDArray[np.float32] | None = None,
        settings: LiveSettings = LIVE_SETTINGS,
    ) -> None:
        self.settings = settings
        self.features = torch.from_numpy(principal_components(features, settings.dim))
        self._first = self._start = None if start_logits is None else log_softmax(torch.from_numpy(start_logits), dim=1)

    def merge(self, final: NDArray[np.int64]) -> None:
        """Adds the start model's probabilities of merged classes to the classes that they were merged into.

        Args:
            final: For each class the class that it was merged into, or itself ``(classes,)``.
        """
        if self._first is None:
            return
        known = self._first.shape[1]
        into = torch.from_numpy(final[:known])
        if bool((into == torch.arange(known)).all()):
            self._start = self._first
            return
        probs = self._first.new_zeros(len(self._first), max(known, int(into.max()) + 1))
        probs.index_add_(1, into, self._first.exp())
        self._start = probs.clamp_min(1e-8).log()

    def offset(self, num_classes: int, rows: Tensor | None = None) -> Tensor | None:
        """Returns the logits of the start model ``(n, num_classes)``; new classes have the mean of the others."""
        if self._start is None:
            return None
        start = self._start if rows is None else self._start[rows]
        more = num_classes - start.shape[1]
        return torch.cat([start, start.mean(dim=1, keepdim=True).expand(-1, more)], dim=1) if more else start

    def fit(
        self,
        rows: NDArray[np.int64],
        label: NDArray[np.int64],
        num_classes: int,
        initial: LiveFit | None = None,
        *,
        with_unlabeled: bool = True,
    ) -> LiveFit:
        """Fits the classifier.

        Args:
            rows: The labeled images ``(n,)``.
            label: Their class ids ``(n,)``.
            num_classes: Number of classes; may rise from fit to fit.
            initial: The last fit, from which this one starts.
            with_unlabeled: Whether unlabeled images take part.
        """
        settings, known = self.settings, torch.from_numpy(np.asarray(rows, np.int64))
        classes = torch.from_numpy(np.asarray(label, np.int64))
        dim = self.features.shape[1]
        fit = LiveFit(torch.zeros(0, dim), torch.zeros(0)) if initial is None else initial
        fit = fit.grown(num_classes)
        if not len(known) or not num_classes:
            return fit
        target, weight = one_hot(classes, num_classes).float(), class_weights(classes, num_classes)
        steps = settings.steps if initial is not None else 4 * settings.steps
        fit = _minimize(
            self.features[known], target, weight, self.offset(num_classes, known), settings.strength, fit, steps
        )
        others = self._sample_of_others(known, max(1, settings.max_soft_labels // num_classes))
        is_used = with_unlabeled and settings.unlabeled_steps > 0
        if not is_used or not len(others) or len(classes.unique()) < 2:
            return fit
        all_rows = torch.cat([known, others])
        soft = self._soft_labels(fit, others, num_classes, classes)
        return _minimize(
            self.features[all_rows],
            torch.cat([target, soft]),
            torch.cat([weight, weight.new_full((len(others),), settings.self_training.weight)]),
            self.offset(num_classes, all_rows),
            settings.strength,
            fit,
            settings.unlabeled_steps,
        )

    def _sample_of_others(self, known: Tensor, limit: int) -> Tensor:
        is_other = torch.ones(len(self.features), dtype=torch.bool)
        is_other[known] = False
        others = is_other.nonzero().flatten()
        if len(others) <= limit:
            return others
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(others))[:limit])
        return others[order.sort().values]

    def _soft_labels(self, fit: LiveFit, rows: Tensor, num_classes: int, seen: Tensor) -> Tensor:
        """Soft labels of unlabeled images; classes without any label get none if there is no start model."""
        logits = self._logits(fit, rows)
        if self._start is None:
            unseen = torch.bincount(seen, minlength=num_classes) == 0
            logits = logits.masked_fill(unseen, -torch.inf)
        return soft_labels(torch.softmax(logits, dim=1), self.settings.self_training)

    def _logits(self, fit: LiveFit, rows: Tensor | None = None) -> Tensor:
        features = self.features if rows is None else self.features[rows]
        logits = torch.addmm(fit.bias, features, fit.weight.t())
        offset = self.offset(len(fit.bias), rows)
        return logits if offset is None else logits + offset

    def predict(
        self, fit: LiveFit, allowed: NDArray[np.bool_] | None = None, rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Returns probabilities ``(n, classes)``, by default of all images; classes that are not ``allowed`` get 0."""
        logits = self._logits(fit, None if rows is None else torch.from_numpy(rows))
        if allowed is not None and not allowed.all() and allowed.any():
            logits = logits.masked_fill(~torch.from_numpy(allowed), -torch.inf)
        probs: NDArray[np.float32] = torch.softmax(logits, dim=1).numpy()
        return probs


def _minimize(
    features: Tensor,
    target: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    strength: float,
    initial: LiveFit,
    steps: int,
) -> LiveFit:
    """Minimizes ``strength * sum_i w_i CE(target_i, offset_i + logits_i) + ||W||^2 / 2`` with L-BFGS.

    The gradient is written out, because it takes two matrix products and no graph.
    """
    dim = initial.weight.shape[1]
    parameters = torch.cat([initial.weight, initial.bias[:, None]], dim=1).requires_grad_()
    inputs = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    penalty = torch.ones(dim + 1)
    penalty[dim] = FREE_BIAS if offset is None else 1.0  # few labels must not shift the priors of a start model
    scale = strength / len(features)
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=steps,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )

    @torch.no_grad()
    def closure() -> Tensor:
        logits = inputs @ parameters.t()
        log_probs = log_softmax(logits if offset is None else logits + offset, dim=1)
        loss = -scale * (weight * (target * log_probs).sum(dim=1)).sum()
        residual = (log_probs.exp() - target) * (weight * scale)[:, None]
        regularized = parameters * (penalty / len(features))
        parameters.grad = residual.t() @ inputs + regularized
        return loss + (parameters * regularized).sum() / 2

    optimizer.step(closure)  # it sets the gradient itself
    found = parameters.detach()
    return LiveFit(found[:, :dim].clone(), found[:, dim].clone())
