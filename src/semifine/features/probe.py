"""The probe: multinomial logistic regression on frozen features, with self-training on unlabeled images.

The functions are pure and run on any device. A fitted probe is one linear layer on the raw features of a network, so it
can serve as the classification head of that network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from semifine.data.samplers import is_long_tailed

STRENGTHS = (3.0, 30.0, 300.0)
"""Inverse regularization strengths that cross-validation compares (``C`` of scikit-learn, for features of mean squared
norm 1)."""
MAX_FOLDS = 5
MAX_STEPS = 60
"""Steps of L-BFGS for one fit from zero; a fit that continues from another one needs fewer."""


class Linear(NamedTuple):
    """A linear layer: ``logits = features @ weight.T + bias``."""

    weight: Tensor
    """``(classes, dim)``"""
    bias: Tensor
    """``(classes,)``"""

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits ``(n, classes)`` of features ``(n, dim)``."""
        return features @ self.weight.t() + self.bias


class Scaling(NamedTuple):
    """Centers features and scales them to mean squared norm 1, which makes the regularization comparable."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Scaling:
        """Returns the scaling of features ``(n, dim)``."""
        mean = features.mean(dim=0)
        return cls(mean, (features - mean).square().sum(dim=1).mean().sqrt().clamp_min(1e-12))

    def apply(self, features: Tensor) -> Tensor:
        """Returns the scaled features."""
        return (features - self.mean) / self.scale

    def fold_into(self, linear: Linear) -> Linear:
        """Returns the layer on raw features that equals ``linear`` on scaled ones."""
        weight = linear.weight / self.scale
        return Linear(weight, linear.bias - weight @ self.mean)

    def unfold_from(self, linear: Linear) -> Linear:
        """Returns the layer on scaled features that equals ``linear`` on raw ones."""
        return Linear(linear.weight * self.scale, linear.bias + linear.weight @ self.mean)


WHITENING_POWER = 0.25
"""Directions of the features are divided by their standard deviation to this power before self-training."""
SMALLEST_VARIANCE = 1e-3
"""Added to the variance of each direction, relative to the mean variance."""


class Whitening(NamedTuple):
    """Centers features and partly equalizes the variances of their directions; the mean squared norm becomes 1.

    Self-training gains from it: a few directions of large variance decide less often which images are alike.
    """

    mean: Tensor
    matrix: Tensor
    """``(dim, dim)``, symmetric."""

    @classmethod
    def of(cls, features: Tensor, power: float = WHITENING_POWER) -> Whitening:
        """Returns the whitening of features ``(n, dim)``; with ``power=0``, all directions are scaled alike."""
        mean = features.mean(dim=0)
        centered = (features - mean).double()
        variance, directions = torch.linalg.eigh(centered.t() @ centered / len(features))
        variance = variance.clamp_min(0)
        variance = variance + SMALLEST_VARIANCE * variance.mean().clamp_min(1e-12)
        matrix = directions * variance ** (-power / 2) @ directions.t()
        norm = (centered @ matrix).square().sum(dim=1).mean().sqrt().clamp_min(1e-12)
        return cls(mean, (matrix / norm).to(features.dtype))

    def apply(self, features: Tensor) -> Tensor:
        """Returns the whitened features."""
        return (features - self.mean) @ self.matrix

    def fold_into(self, linear: Linear) -> Linear:
        """Returns the layer on raw features that equals ``linear`` on whitened ones."""
        weight = linear.weight @ self.matrix
        return Linear(weight, linear.bias - weight @ self.mean)


def fit_logistic_regression(
    features: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    strength: float = 30.0,
    initial: Linear | None = None,
    max_steps: int = MAX_STEPS,
    fitted: Tensor | None = None,
) -> Linear:
    """Minimizes ``strength * sum_i w_i CE(target_i, logits_i) + ||W||^2 / 2`` with L-BFGS; the bias is free.

    Args:
        features: ``(n, dim)`` float32.
        target: Class probabilities ``(n, classes)``.
        weight: Weight of each sample ``(n,)``; None weights all by 1.
        strength: Inverse regularization strength.
        initial: Start of the search; zeros by default.
        max_steps: Maximum number of L-BFGS steps.
        fitted: Mask ``(classes,)`` of the rows to fit; the others keep their initial values. None fits all.

    Example:
        >>> features = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> probe = fit_logistic_regression(features, torch.eye(2))
        >>> probe.logits(features).argmax(dim=1).tolist()
        [0, 1]
    """
    classes = target.shape[1]
    start = initial or Linear(features.new_zeros(classes, features.shape[1]), features.new_zeros(classes))
    matrix, bias = (value.clone().requires_grad_() for value in start)
    sample_weight = features.new_ones(len(features)) if weight is None else weight
    optimizer = torch.optim.LBFGS(
        [matrix, bias], max_iter=max_steps, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = -(target * log_softmax(Linear(matrix, bias).logits(features), dim=1)).sum(dim=1)
        loss = (strength * (sample_weight * losses).sum() + matrix.square().sum() / 2) / len(features)
        loss.backward()
        if fitted is not None:
            for parameter in (matrix, bias):
                assert parameter.grad is not None
                parameter.grad[~fitted] = 0
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return Linear(matrix.detach(), bias.detach())


def stratified_folds(label: Tensor, seed: int = 0, max_folds: int = MAX_FOLDS) -> Tensor:
    """Assigns each sample to a fold, so that the samples of a class spread over all folds.

    The number of folds is the size of the smallest class with two samples or more, at most ``max_folds``. A class with
    one sample stays in every training part: its fold is -1.

    Example:
        >>> stratified_folds(torch.tensor([0, 0, 0, 1, 1, 2])).tolist()[-1]
        -1
    """
    random = np.random.default_rng(seed)
    classes = label.cpu().numpy()
    counts = np.bincount(classes)
    repeated = counts[counts >= 2]
    folds = np.full(len(classes), -1, np.int64)
    if not len(repeated):
        return torch.from_numpy(folds)
    count = int(max(2, min(max_folds, repeated.min())))
    offset = 0
    for name in np.flatnonzero(counts >= 2):
        rows = random.permutation(np.flatnonzero(classes == name))
        folds[rows] = (np.arange(len(rows)) + offset) % count
        offset += len(rows)  # the next class continues where this one stopped, so that folds have equal sizes
    return torch.from_numpy(folds)


@dataclass(frozen=True)
class SelfTraining:
    """Settings of self-training on the unlabeled images; the defaults were chosen on validation data."""

    rounds: int = 4
    power: float = 0.5
    """The mean prediction to this power is divided out, against classes that are predicted too often."""
    sharpening: float = 1.5
    """Soft labels are raised to this power."""
    weight: float = 0.3
    """Weight of an unlabeled image relative to a labeled one."""
    smoothing: float = 1.0
    """Weight of the mean label of an image's neighbors, relative to its own log-probabilities."""
    smoothing_rounds: int = 5


SELF_TRAINING = SelfTraining()
NEIGHBORS = 10
"""Nearest unlabeled images whose labels smooth the label of an image."""
CHUNK = 2048
"""Images whose neighbors are searched at a time."""


@dataclass(frozen=True)
class UnlabeledFeatures:
    """Features of unlabeled images from one or several views, and the nearest neighbors of each image among them."""

    views: tuple[Tensor, ...]
    """Each ``(m, dim)``. The first one determines the neighbors."""
    neighbors: Tensor
    """``(m, k)`` rows of the most similar images."""
    similarity: Tensor
    """``(m, k)`` weights of the neighbors, which sum to 1 or are all 0."""

    @classmethod
    def of(cls, *views: Tensor, count: int = NEIGHBORS) -> UnlabeledFeatures:
        """Finds the neighbors by cosine similarity; negative similarities count as 0.

        Example:
            >>> found = UnlabeledFeatures.of(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), count=1)
            >>> found.neighbors.flatten().tolist()
            [2, 2, 0]
        """
        unit = torch.nn.functional.normalize(views[0], dim=1)
        rows = torch.arange(len(unit), device=unit.device)
        count = min(count, len(unit) - 1)
        parts = []
        for start in range(0, len(unit), CHUNK):
            cosine = unit[start : start + CHUNK] @ unit.t()
            cosine[rows[: len(cosine)], rows[start : start + len(cosine)]] = -2  # no image is its own neighbor
            parts.append(cosine.topk(count, dim=1))
        similarity = torch.cat([part.values for part in parts]).clamp_min(0)
        similarity = similarity / similarity.sum(dim=1, keepdim=True).clamp_min(1e-12)
        return cls(views, torch.cat([part.indices for part in parts]), similarity)

    def predict(self, probe: Linear) -> Tensor:
        """Returns the mean probabilities ``(m, classes)`` of a probe over the views."""
        return torch.stack([torch.softmax(probe.logits(view), dim=1) for view in self.views]).mean(dim=0)

    def smooth(self, probs: Tensor, settings: SelfTraining) -> Tensor:
        """Moves the probabilities ``(m, classes)`` of each image towards the labels of its neighbors.

        Repeats ``q <- softmax(log p + smoothing * mean q of the neighbors)``, as LaplacianShot (Ziko et al., ICML 2020)
        does with the distances to class prototypes in the place of ``log p``.
        """
        log_probs, smoothed = probs.clamp_min(1e-9).log(), probs
        for _ in range(settings.smoothing_rounds):
            around = torch.zeros_like(probs)
            for column in range(self.neighbors.shape[1]):  # (m, k, classes) would be large
                around += self.similarity[:, column, None] * smoothed[self.neighbors[:, column]]
            smoothed = torch.softmax(log_probs + settings.smoothing * around, dim=1)
        return smoothed


def soft_labels(probs: Tensor, settings: SelfTraining, unlabeled: UnlabeledFeatures | None = None) -> Tensor:
    """Returns soft labels ``(n, classes)``: probabilities with their mean divided out, smoothed and sharpened.

    Args:
        probs: Predicted probabilities ``(n, classes)``.
        settings: Power, smoothing and sharpening.
        unlabeled: The images, for smoothing over their neighbors.

    Example:
        >>> soft_labels(torch.tensor([[0.5, 0.5]]), SelfTraining()).tolist()
        [[0.5, 0.5]]
    """
    aligned = probs / probs.mean(dim=0).clamp_min(1e-6) ** settings.power
    aligned = aligned / aligned.sum(dim=1, keepdim=True)
    if unlabeled is not None:
        aligned = unlabeled.smooth(aligned, settings)
    sharp = aligned**settings.sharpening
    return sharp / sharp.sum(dim=1, keepdim=True)


def class_weights(label: Tensor, num_classes: int) -> Tensor:
    """Returns a weight ``(n,)`` per sample that balances the classes if their sizes differ much.

    Example:
        >>> class_weights(torch.tensor([0] * 8 + [1] * 4), num_classes=2).unique().tolist()
        [1.0]
        >>> class_weights(torch.tensor([0] * 9 + [1]), num_classes=2).unique().tolist()
        [0.5555555820465088, 5.0]
    """
    counts = torch.bincount(label, minlength=num_classes)
    present = counts[counts > 0]
    if not is_long_tailed(counts.cpu().numpy()):
        return torch.ones(len(label), device=label.device)
    return len(label) / (len(present) * counts[label].float())


@dataclass(frozen=True)
class LabeledFeatures:
    """Scaled features of labeled images from several views, such as an image and its mirror image."""

    views: tuple[Tensor, ...]
    """Each ``(n, dim)``. Cross-validation predicts the first one."""
    label: Tensor
    """``(n,)`` class ids."""
    num_classes: int

    def take(self, rows: Tensor) -> LabeledFeatures:
        """Returns a subset of the images."""
        return LabeledFeatures(tuple(view[rows] for view in self.views), self.label[rows], self.num_classes)

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns features, one-hot targets and weights of all views; the weights of an image sum to its weight."""
        count = len(self.views)
        target = one_hot(self.label, self.num_classes).to(self.views[0].dtype)
        weight = class_weights(self.label, self.num_classes) / count
        return torch.cat(self.views), target.repeat(count, 1), weight.repeat(count)


def fit_probe(
    labeled: LabeledFeatures,
    strength: float,
    unlabeled: UnlabeledFeatures | None = None,
    settings: SelfTraining = SELF_TRAINING,
    initial: Linear | None = None,
) -> Linear:
    """Fits a probe on labeled images, then, with unlabeled images, repeatedly on all images with soft labels.

    Args:
        labeled: Features and labels.
        strength: Inverse regularization strength.
        unlabeled: Features of unlabeled images, with the same scaling; None trains on labeled images
            only.
        settings: Settings of self-training.
        initial: Start of the search; zeros by default.
    """
    features, target, weight = labeled.stacked()
    probe = fit_logistic_regression(features, target, weight, strength, initial)
    if unlabeled is None or not len(unlabeled.neighbors):
        return probe
    everything = torch.cat([features, *unlabeled.views])
    count = len(unlabeled.views)
    weights = torch.cat([weight, features.new_full((len(everything) - len(features),), settings.weight / count)])
    for _ in range(settings.rounds):
        soft = soft_labels(unlabeled.predict(probe), settings, unlabeled)
        targets = torch.cat([target, soft.repeat(count, 1)])
        probe = fit_logistic_regression(everything, targets, weights, strength, initial=probe, max_steps=MAX_STEPS // 2)
    return probe


class CrossValidation(NamedTuple):
    """Predictions of labeled images by probes that were fitted without them."""

    rows: Tensor
    """``(m,)`` images that were held out once; images that are the only one of their class are missing."""
    logits: Tensor
    """``(m, classes)`` logits."""
    label: Tensor
    """``(m,)`` class ids."""

    @property
    def correct(self) -> Tensor:
        """``(m,)`` whether the prediction is right."""
        return self.logits.argmax(dim=1) == self.label

    @property
    def loss(self) -> float:
        """Mean cross-entropy; infinity without images."""
        return cross_entropy(self.logits, self.label).item() if len(self.rows) else math.inf


def cross_validate(
    labeled: LabeledFeatures, folds: Tensor, strengths: Sequence[float], unlabeled: UnlabeledFeatures | None = None
) -> dict[float, CrossValidation]:
    """Predicts each labeled image with a probe that was fitted on the other folds, for several strengths.

    Args:
        labeled: Features and labels.
        folds: ``(n,)`` fold of each image, -1 for images in every training part; see :func:`stratified_folds`.
        strengths: Inverse regularization strengths.
        unlabeled: Features of unlabeled images, for probes with self-training.
    """
    held_out = (folds >= 0).nonzero().flatten()
    logits = {strength: labeled.views[0].new_zeros(len(labeled.label), labeled.num_classes) for strength in strengths}
    for fold in range(int(folds.max()) + 1):
        train, test = (folds != fold).nonzero().flatten(), folds == fold
        fitted = None
        for strength in sorted(strengths):  # each fit starts from the one with the next stronger regularization
            fitted = fit_probe(labeled.take(train), strength, unlabeled, initial=fitted)
            logits[strength][test] = fitted.logits(labeled.views[0][test])
    return {s: CrossValidation(held_out, z[held_out], labeled.label[held_out]) for s, z in logits.items()}
