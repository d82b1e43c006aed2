"""SoC: soft labels restricted to the classes that the model confuses with its prediction (AAAI 2024)."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semifine.distributed import all_gather
from semifine.errors import UserError
from semifine.fields import setting
from semifine.methods.base import Batch, DataInfo, Method, Progress, PseudoLabels, StepResult, predicted_probabilities
from semifine.models.forward import Networks, Output
from semifine.soft_labels import ClassCentroids, SoftLabelSelector
from semifine.soft_labels.selector import select_candidates

_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(SoftLabelSelector).parameters.items()}


@dataclass(frozen=True)
class SoCSettings:
    """Settings of SoC. All without an own comment below are parameters of ``SoftLabelSelector``."""

    # Not in the paper: what the soft labels are computed from, and how they are changed.
    labels_from: Literal["student", "ema"] = setting(
        "student", "network that predicts the soft labels: the trained one, or the average of its weights"
    )
    align: float = setting(
        0.0, "power of the running mean prediction by which predictions are divided (distribution alignment)", low=0
    )
    sharpen: float = setting(1.0, "power to which the selected soft labels are raised", low=0)

    weight: float = setting(1.0, "weight of the unlabeled loss (lambda)", low=0)
    similarity: Literal["transitions", "labeled_features", "pseudo_features"] = setting(
        "transitions", "similarity of classes: class transitions, or features of labeled or of unlabeled images"
    )
    window: int = setting(
        _DEFAULTS["window"], "number of recent batches whose class transitions are counted (N_b)", low=1
    )
    map: Literal["linear", "exponential", "fixed"] = setting(
        _DEFAULTS["map"], "map from confidence to the number of clusters"
    )
    alpha: float = setting(
        _DEFAULTS["alpha"], "linear map: larger gives fewer, larger clusters; at least K/(K-2)", low=1
    )
    beta: float = setting(_DEFAULTS["beta"], "exponential map: larger gives more clusters; at most ln(2-2/K)", low=0)
    k: int | None = setting(_DEFAULTS["k"], "fixed map: number of clusters for every image", low=1)
    rounding: Literal["paper", "official"] = setting(
        _DEFAULTS["rounding"], "rounding of the linear map: as in the paper, or as in the official code"
    )
    refresh: Literal["auto", "occurring", "oldest", "all", "round_robin"] = setting(
        _DEFAULTS["refresh"],
        "clusterings that a step updates. occurring: the clusterings of its batch; oldest: the least recently updated "
        "of these; all; round_robin: one per step; auto: occurring up to 1000 classes, oldest above",
    )
    refresh_limit: int = setting(
        _DEFAULTS["refresh_limit"], "number of clusterings that 'oldest' updates per step", low=1
    )
    directed_update: bool = setting(
        _DEFAULTS["directed_update"], "official code: choose medoids by outgoing transitions only"
    )
    stale_seeds: bool = setting(
        _DEFAULTS["stale_seeds"],
        "official code: assign classes with the initial medoids in their clusters instead of the final ones",
    )
    medoid_init: Literal["warm", "random"] = setting(
        _DEFAULTS["medoid_init"], "start k-medoids from the last medoids, or from random ones each time"
    )
    tie: Literal["first", "random"] = setting(
        _DEFAULTS["tie"], "medoid that a class joins if several are equally similar"
    )
    max_rounds: int = setting(_DEFAULTS["max_rounds"], "largest number of k-medoids rounds", low=1)


ALIGNMENT_MOMENTUM = 0.05
"""Weight of a batch in the running mean prediction."""
MIN_MEAN = 1e-6


def _normalize(values: Tensor) -> Tensor:
    return values / values.sum(dim=1, keepdim=True)


class SoC(Method):
    """loss = L_s + lambda 1/(mu B) sum CE(ptilde, f(strong(u))), ptilde = normalize(g * p).

    There is no threshold: all unlabeled images contribute.
    """

    name = "soc"
    title = "SoC"
    color = "blue"
    group = "soc"
    summary = "soft labels on the classes that the model confuses with its prediction"
    cuda_graph_safe = True
    supports_mixup = True
    mean_probs: Tensor
    """(K,) running mean prediction; only with ``align``."""
    Settings = SoCSettings
    unlabeled_views = ("weak", "strong")

    def __init__(self, settings: SoCSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        options = dataclasses.asdict(settings)
        for name in ("weight", "similarity", "labels_from", "align", "sharpen"):
            del options[name]
        try:
            self.selector = SoftLabelSelector(info.num_classes, info.num_unlabeled, seed=info.seed, **options)
        except ValueError as error:  # valid values depend on the number of classes
            raise UserError(f"Settings of the method 'soc': {error}") from error
        if settings.similarity != "transitions":
            self.centroids = ClassCentroids(info.num_classes, info.feature_dim)
        self.needs_ema = settings.labels_from == "ema"  # type: ignore[misc]  # depends on the settings
        if settings.align:
            self.register_buffer("mean_probs", torch.full((info.num_classes,), 1 / info.num_classes))

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        labeled, weak, strong = self._forward_views(networks, batch)
        supervised = batch.labeled_loss(labeled.logits)
        probs = self._align(predicted_probabilities(weak.logits), update=True)
        assert batch.index is not None
        selected = self.selector(probs, batch.index, self._feature_similarity(labeled, batch.label, weak, probs))
        target = self._sharpen(selected)
        consistency = batch.unlabeled_loss(strong.logits, target)
        loss = supervised + self.settings.weight * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
        }
        return StepResult(loss, metrics, PseudoLabels(probs, target, accepted=probs.new_ones(len(probs))))

    def _forward_views(self, networks: Networks, batch: Batch) -> tuple[Output, Output, Output]:
        """Returns the outputs for labeled, weak and strong views; no gradient passes through the weak ones."""
        labeled, weak, strong = (
            batch.labeled_images("weak"),
            batch.unlabeled["weak"],
            batch.unlabeled_images("strong"),
        )
        if self.settings.labels_from == "student":
            first, second, third = networks(labeled, weak, strong, without_gradient=(1,))
            return first, second, third
        (predicted,) = networks.forward_ema(weak)
        first, third = networks(labeled, strong)
        return first, predicted, third

    def _align(self, probs: Tensor, *, update: bool = False) -> Tensor:
        """Divides probabilities (B, K) by a power of their running mean, against classes that are predicted often."""
        if not self.settings.align:
            return probs
        if update:
            self.mean_probs.lerp_(all_gather(probs).mean(dim=0), ALIGNMENT_MOMENTUM)
        return _normalize(probs / self.mean_probs.clamp_min(MIN_MEAN) ** self.settings.align)

    def _sharpen(self, target: Tensor) -> Tensor:
        return target if self.settings.sharpen == 1 else _normalize(target**self.settings.sharpen)

    def _feature_similarity(self, labeled: Output, label: Tensor, weak: Output, probs: Tensor) -> Tensor | None:
        """Updates the class centroids and returns their (K, K) similarity, or None if transitions are used."""
        if self.settings.similarity == "transitions":
            return None
        if self.settings.similarity == "labeled_features":
            self.centroids.update(labeled.features.detach(), label)
        else:
            self.centroids.update(weak.features.detach(), probs.argmax(dim=1))
        return self.centroids.similarity()

    def renewed(self) -> SoC:
        """Returns the method with up-to-date clusterings, also for k that no recent batch needed."""
        similarity = None if self.settings.similarity == "transitions" else self.centroids.similarity()
        method = copy.copy(self)
        method._modules = {**self._modules, "selector": self.selector.renewed(similarity)}
        return method

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        selection = self.selector.select(self._align(probs))
        return PseudoLabels(probs, self._sharpen(selection.target), probs.new_ones(len(probs)), selection.k)

    def labels_by_k(self, probs: Tensor, limit: int) -> Iterator[tuple[int, Tensor]]:
        first, last = self.selector.k_min, self.selector.k_max
        step = -(-(last - first + 1) // limit)
        prediction = probs.argmax(dim=1)
        for k in range(first, last + 1, step):
            cluster = self.selector.clusters(k)
            yield k, select_candidates(probs, cluster[prediction][:, None] == cluster)

    def notes(self) -> list[str]:
        if self.selector.refresh != "oldest":
            return []
        rows = self.selector.k_max - self.selector.k_min + 1
        limit = min(self.settings.refresh_limit, rows)
        return [
            f"{self.info.num_classes} classes: each step updates at most {limit} of {rows} clusterings, the "
            "least recently updated ones of its batch (--method.refresh, --method.refresh_limit)."
        ]

    def class_stats(self) -> dict[str, Tensor]:
        return {
            "transitions": self.selector.counts,
            "clusters": self.selector.assignment,
            "medoids": self.selector.medoids,
            "cluster_confidence": self.selector.granularity.min_confidences(),
        }
