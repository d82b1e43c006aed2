"""SoftLabelSelector: transition tracking, clustering and confidence -> k put together."""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from semifine.soft_labels.clustering import draw_medoids, hashed, k_medoids, may_host_look, unlinked_assignment
from semifine.soft_labels.granularity import Granularity, MapName, Rounding, check_choice
from semifine.soft_labels.transitions import TransitionTracker

Refresh = Literal["auto", "occurring", "oldest", "all", "round_robin"]
MedoidInit = Literal["warm", "random"]
Tie = Literal["first", "random"]

# With more classes than this, renewing every clustering that a batch needs would cost more than the training step.
MANY_CLASSES = 1000

# By how much probabilities in half precision may miss 0, 1 and their sum; each is right to 2 parts in a thousand.
ROUNDING = 0.01

OFFICIAL_CODE: Final[Mapping[str, Any]] = {
    "window": 5119,  # it clears the next slot of 5120 before it sums
    "alpha": 2.5,  # its default, used for Semi-Aves; Semi-Fungi: 4.0
    "rounding": "official",
    "refresh": "round_robin",
    "directed_update": True,
    "stale_seeds": True,
}
"""Settings with which ``SoftLabelSelector(..., **OFFICIAL_CODE)`` behaves as the authors' released code.

One difference is left: the released code stops after 2000 rounds, ours after ``max_rounds``; 1 to 8 occur in practice.
"""


class Selection(NamedTuple):
    """Selected soft labels of a batch and how they came about."""

    target: Tensor
    """(batch, K) the selected soft labels ptilde = normalize(g * p)."""
    candidates: Tensor
    """(batch, K) bool, the indicator g of the candidate classes."""
    k: Tensor
    """(batch,) number of clusters."""
    prediction: Tensor
    """(batch,) predicted class."""
    confidence: Tensor
    """(batch,) its probability."""


def check_probabilities(probs: Tensor) -> None:
    """Raises where rows (batch, K) are no probabilities, but logits, say; a NaN is left to whoever watches the loss."""
    if not len(probs):
        return
    (low, high), (least, most) = probs.aminmax(), probs.sum(dim=1).aminmax()
    if low < -ROUNDING or high > 1 + ROUNDING or least < 1 - ROUNDING or most > 1 + ROUNDING:
        raise ValueError(
            "probs must be probabilities, from 0 to 1 and 1 in sum for each image, but they reach from "
            f"{low:.3g} to {high:.3g} and their sums from {least:.3g} to {most:.3g}; give the softmax of the logits."
        )


def select_candidates(probs: Tensor, candidates: Tensor) -> Tensor:
    """ptilde = g * p / sum(g * p). Shapes: probs (batch, K), candidates (batch, K) bool -> (batch, K)."""
    kept = probs * candidates
    return kept / kept.sum(dim=1, keepdim=True)


class SoftLabelSelector(nn.Module):
    """Soft labels restricted to the classes that the model confuses with its own prediction (SoC, AAAI 2024).

    Usage, in any training loop::

        selector = SoftLabelSelector(num_classes=200, num_samples=len(unlabeled))
        soft = selector(probs, index)
        loss = cross_entropy(strong_logits, soft)

    ``probs`` (batch, K) are the probabilities of the weakly augmented unlabeled images, ``index`` (batch,) their
    places in the unlabeled set, ``soft`` (batch, K) the targets, detached. On the CPU, ``probs`` that are none, say
    logits, are refused; on a GPU they are not looked at, since the host would have to wait for them.

    For each sample, k_i = f_conf(max p_i) clusters of classes are formed from the class transitions C of the last
    ``window`` batches; the cluster that holds the prediction gives the candidate classes g_i, and the soft label is
    normalize(g_i * p_i).

    The state is in persistent buffers: ``state_dict()`` is a complete checkpoint. It follows ``probs`` to their device.
    With several processes (``torch.distributed``) the observations of all ranks are joined in rank order, so that
    all ranks hold the same state; all ranks must give batches of the same size.

    Settings (the defaults are the paper's):
        window: number of batches whose transitions count.
        map, alpha, beta, k, rounding: the map from confidence to k, see ``Granularity``.
        refresh: which clusterings each batch brings up to date: "occurring", those of the k that occur in it; "oldest",
            of these the ``refresh_limit`` that were longest not refreshed; "all"; or "round_robin", one k a step, after
            all of them at the first step. "auto" is "occurring" up to 1,000 classes, then "oldest".
        directed_update, stale_seeds: quirks of the official code, see ``k_medoids``.
        medoid_init: "warm" starts from the last medoids of that k, "random" from new ones each time.
        tie: a class with several most similar medoids joins the "first" in the list, or the first from
            a "random" place on.
        max_rounds: cap of the k-medoids rounds.
        seed: of the random draws, which depend on nothing but seed, step and k.
        host_sync: whether the host may wait for a GPU's results to save it work, see ``k_medoids``; by default only
            with more than 512 classes and where Triton's kernels are not to be had.
    """

    medoids: Tensor
    assignment: Tensor
    refreshed: Tensor
    step: Tensor
    sizes: Tensor

    def __init__(
        self,
        num_classes: int,
        num_samples: int,
        *,
        window: int = 5120,
        map: MapName = "linear",
        alpha: float = 5.0,
        beta: float = math.log(1.2),
        k: int | None = None,
        rounding: Rounding = "paper",
        refresh: Refresh = "auto",
        refresh_limit: int = 8,
        directed_update: bool = False,
        stale_seeds: bool = False,
        medoid_init: MedoidInit = "warm",
        tie: Tie = "first",
        max_rounds: int = 20,
        seed: int = 0,
        host_sync: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("refresh", refresh, get_args(Refresh))
        check_choice("medoid_init", medoid_init, get_args(MedoidInit))
        check_choice("tie", tie, get_args(Tie))
        for name, number in (("max_rounds", max_rounds), ("refresh_limit", refresh_limit)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        self.num_classes = num_classes
        self.granularity = Granularity(num_classes, map, alpha, beta, k, rounding)
        self.tracker = TransitionTracker(num_classes, num_samples, window)
        self.refresh = ("oldest" if num_classes > MANY_CLASSES else "occurring") if refresh == "auto" else refresh
        self.refresh_limit = refresh_limit
        self.directed_update = directed_update
        self.stale_seeds = stale_seeds
        self.medoid_init = medoid_init
        self.tie = tie
        self.max_rounds = max_rounds
        self.seed = seed
        self.host_sync = host_sync
        # Known to the host, so that the first step can differ without looking at the step counter on a GPU.
        self._has_started = False
        self._register_clusterings()

    def forward(self, probs: Tensor, index: Tensor, similarity: Tensor | None = None) -> Tensor:
        """Observe a batch, then select its soft labels, detached.

        Shapes: (batch, K), (batch,) -> (batch, K). ``similarity``: see ``observe``.
        """
        reading = self._read(probs)
        self.observe(index, reading.prediction, reading.k, similarity)
        return self._select(reading).target

    @torch.no_grad()
    def observe(
        self, index: Tensor, prediction: Tensor, k: Tensor | None = None, similarity: Tensor | None = None
    ) -> None:
        """Track the predictions of a batch, then refresh the clusterings.

        Shapes: all (batch,). ``k`` tells ``refresh="occurring"`` which clusterings to refresh; without it, all of them.
        ``similarity`` (K, K), symmetric float64 with zero diagonal, takes the place of the transitions.
        """
        self._follow(prediction.device)
        index, prediction, k = self._gather(index, prediction, k)
        self.tracker.update(index, prediction)
        self._refresh(k, self.counts if similarity is None else similarity)
        self.step.add_(1)
        self._has_started = True

    def select(self, probs: Tensor) -> Selection:
        """Soft labels from the clusterings as they stand; changes no state. Shapes: probs (batch, K)."""
        return self._select(self._read(probs))

    def clusters(self, k: int) -> Tensor:
        """(K,) the cluster, 0..k-1, of each class in the clustering into k, as last refreshed."""
        return self.assignment[self._row(k)].long()

    def cluster_medoids(self, k: int) -> Tensor:
        """(k,) the medoid class of each cluster in the clustering into k, as last refreshed."""
        return self.medoids[self._row(k), :k].long()

    @property
    def counts(self) -> Tensor:
        """(K, K) the class transitions C[m, n] of the last ``window`` batches."""
        return self.tracker.counts

    @property
    def k_min(self) -> int:
        """The smallest number of clusters."""
        return self.granularity.k_min

    @property
    def k_max(self) -> int:
        """The largest number of clusters."""
        return self.granularity.k_max

    def extra_repr(self) -> str:
        """Shown by ``print(selector)``."""
        names = ("refresh", "directed_update", "stale_seeds", "medoid_init", "tie", "max_rounds", "seed")
        return f"{self.granularity}, " + ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _register_clusterings(self) -> None:
        """One clustering per k, as it is while no transition has been counted."""
        sizes = torch.arange(self.k_min, self.k_max + 1)
        step = torch.zeros((), dtype=torch.int64)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("step", step)
        parts = torch.split(sizes, 64)  # bounds the memory of the draw
        medoids = torch.cat([self._draw_medoids(part, step) for part in parts])
        starts = torch.cat([self._draw_tie_starts(part, step) for part in parts]) if self.tie == "random" else None
        self.register_buffer("medoids", medoids.int())
        self.register_buffer("assignment", unlinked_assignment(medoids, self.num_classes, starts).int())
        self.register_buffer("refreshed", torch.full_like(sizes, -1))  # the step at which each clustering last was

    def _refresh(self, k: Tensor | None, similarity: Tensor) -> None:
        rows, is_due = self._rows_to_refresh(k)
        old_medoids = self.medoids.index_select(0, rows)
        sizes = self.sizes.index_select(0, rows)
        found = k_medoids(
            similarity,
            old_medoids if self.medoid_init == "warm" else self._draw_medoids(sizes, self.step),
            directed_update=self.directed_update,
            stale_seeds=self.stale_seeds,
            tie_start=None if self.tie == "first" else self._draw_tie_starts(sizes, self.step),
            max_rounds=self.max_rounds,
            host_sync=self.host_sync,
            cells=self.tracker.ring.view(-1),
        )
        self._keep(
            rows, is_due, medoids=found.medoids, assignment=found.assignment, refreshed=self.step.expand(len(rows))
        )

    def _keep(self, rows: Tensor, is_due: Tensor | None, **results: Tensor) -> None:
        """Write the results of the rows that are due into the buffers of their names."""
        for name, new in results.items():
            buffer: Tensor = getattr(self, name)
            new = new.to(buffer.dtype)
            if is_due is not None:
                new = torch.where(is_due.view(-1, *[1] * (new.ndim - 1)), new, buffer.index_select(0, rows))
            buffer.index_copy_(0, rows, new)

    def _rows_to_refresh(self, k: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(rows,) the clusterings to work on, and (rows,) whether each is due, or None where all are."""
        all_rows = torch.arange(len(self.sizes), device=self.sizes.device)
        if self.refresh == "round_robin" and self._has_started:
            return self.step.remainder(len(self.sizes)).view(1), None
        if self.refresh not in ("occurring", "oldest") or k is None:
            return all_rows, None
        occurring = k - self.k_min
        is_due = torch.zeros_like(all_rows, dtype=torch.bool).index_fill_(0, occurring, True)
        if self.refresh == "oldest":
            age_order = self.refreshed * len(all_rows) + all_rows  # of the same age, the smaller k
            rows = torch.where(is_due, age_order, torch.iinfo(torch.int64).max).argsort()[: self.refresh_limit]
            return rows, is_due.index_select(0, rows)
        if self._host_looks:
            return torch.unique(occurring), None
        if len(occurring) < len(all_rows):
            return occurring, None  # a k that occurs twice is computed twice, to the same result
        return all_rows, is_due

    @property
    def _host_looks(self) -> bool:
        """Whether the host may look at values, see ``k_medoids``."""
        return may_host_look(self.step.device, self.num_classes) if self.host_sync is None else self.host_sync

    def _draw_medoids(self, sizes: Tensor, step: Tensor) -> Tensor:
        return draw_medoids(sizes, self.k_max, self.num_classes, self.seed, step)

    def _draw_tie_starts(self, sizes: Tensor, step: Tensor) -> Tensor:
        classes = torch.arange(self.num_classes, device=sizes.device)
        k = sizes.unsqueeze(1)
        return hashed(self.seed, step, k, classes, 1).remainder(k)

    @torch.no_grad()
    def _read(self, probs: Tensor) -> "_Reading":
        if probs.ndim != 2 or probs.shape[1] != self.num_classes:
            raise ValueError(f"probs must have the shape (batch, {self.num_classes}), got {tuple(probs.shape)}.")
        self._follow(probs.device)
        probs = probs.detach()
        if probs.dtype in (torch.float16, torch.bfloat16):
            probs = probs.float()
        if probs.device.type == "cpu":
            check_probabilities(probs)
        confidence, prediction = probs.max(dim=1)
        return _Reading(probs, prediction, confidence, self.granularity(confidence))

    @torch.no_grad()
    def _select(self, reading: "_Reading") -> Selection:
        cluster = self.assignment.index_select(0, reading.k - self.k_min)
        candidates = cluster == cluster.gather(1, reading.prediction.unsqueeze(1))
        target = select_candidates(reading.probs, candidates)
        return Selection(target, candidates, reading.k, reading.prediction, reading.confidence)

    def _gather(self, index: Tensor, prediction: Tensor, k: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same vectors of all ranks, joined in rank order."""
        device = self.step.device
        parts = [part.to(device).long() for part in (index, prediction, k) if part is not None]
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            mine = torch.stack(parts)
            everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, mine)
            parts = list(torch.cat(everyone, dim=1).unbind())
        return parts[0], parts[1], parts[2] if k is not None else None

    def _follow(self, device: torch.device) -> None:
        """Move the state to the device of the data, so that the drop-in works wherever the model is."""
        if self.step.device != device:
            self.to(device)

    def _row(self, k: int) -> int:
        if not self.k_min <= k <= self.k_max:
            raise ValueError(f"k must lie in {self.k_min}..{self.k_max}, got {k}.")
        return k - self.k_min

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._has_started = bool(self.step > 0)


class _Reading(NamedTuple):
    """Probabilities (batch, K) ready for selection, and prediction, confidence and k, each (batch,)."""

    probs: Tensor
    prediction: Tensor
    confidence: Tensor
    k: Tensor
