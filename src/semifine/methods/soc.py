"""SoC: soft labels restricted to the classes that the model confuses with its prediction (AAAI 2024)."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from semifine.errors import UserError
from semifine.fields import setting
from semifine.methods.base import Batch, DataInfo, Method, Progress, PseudoLabels, StepResult
from semifine.methods.levers import Levers, LeverSettings
from semifine.models.forward import Networks, Output
from semifine.soft_labels import ClassCentroids, SoftLabelSelector
from semifine.soft_labels.selector import select_candidates

_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(SoftLabelSelector).parameters.items()}


@dataclass(frozen=True)
class SoCSettings(LeverSettings):
    """Settings of SoC. All but ``weight`` and ``similarity`` are parameters of ``SoftLabelSelector``."""

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
    Settings = SoCSettings
    unlabeled_views = ("weak", "strong")

    def __init__(self, settings: SoCSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        options = {name: value for name, value in dataclasses.asdict(settings).items() if name in _DEFAULTS}
        try:
            self.selector = SoftLabelSelector(info.num_classes, info.num_unlabeled, seed=info.seed, **options)
        except ValueError as error:  # valid values depend on the number of classes
            raise UserError(f"Settings of the method 'soc': {error}") from error
        if settings.similarity != "transitions":
            self.centroids = ClassCentroids(info.num_classes, info.feature_dim)
        self.levers = Levers(settings, info)
        self.needs_ema = self.levers.needs_ema  # type: ignore[misc]  # depends on the settings

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        views = batch.labeled_images("weak"), batch.unlabeled["weak"], batch.unlabeled_images("strong")
        labeled, weak, strong = self.levers.forward_views(networks, *views)
        supervised = batch.labeled_loss(self.levers.adjust_labeled(labeled.logits))
        probs = self.levers.predict(weak.logits)
        assert batch.index is not None
        selected = self.selector(probs, batch.index, self._feature_similarity(labeled, batch.label, weak, probs))
        target = self.levers.sharpen(selected)
        consistency = batch.unlabeled_loss(self.levers.adjust_unlabeled(strong.logits), target)
        loss = supervised + self.settings.weight * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
        }
        return StepResult(loss, metrics, PseudoLabels(probs, target, accepted=probs.new_ones(len(probs))))

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
        selection = self.selector.select(self.levers.correct(probs))
        return PseudoLabels(probs, self.levers.sharpen(selection.target), probs.new_ones(len(probs)), selection.k)

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
