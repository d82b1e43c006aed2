"""SoftLabelSelector: combines transition tracking, clustering, and the map from confidence to k."""

import copy
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from semifine.soft_labels.clustering import (
    MAX_ROUNDS,
    default_host_sync,
    draw_medoids,
    hash_integers,
    initial_assignment,
    k_medoids,
)
from semifine.soft_labels.granularity import Granularity, MapName, Rounding, check_choice
from semifine.soft_labels.transitions import WINDOW, TransitionTracker

Refresh = Literal["auto", "occurring", "oldest", "all", "round_robin"]
MedoidInit = Literal["warm", "random"]
Tie = Literal["first", "random"]

MANY_CLASSES = 1000
"""With more classes, refreshing all clusterings of a batch would take longer than the training step."""

TOLERANCE = 0.01
"""Tolerance for probabilities in half precision, which have a relative error of 0.002."""

OFFICIAL_CODE: Final[Mapping[str, Any]] = {
    "window": 5119,  # the official code clears one of 5120 entries before it sums
    "alpha": 2.5,  # its default, used for Semi-Aves; 4.0 for Semi-Fungi
    "rounding": "official",
    "refresh": "round_robin",
    "directed_update": True,
    "stale_seeds": True,
    "max_rounds": 2001,  # its medoids may cycle, so the number of rounds matters
}
"""``SoftLabelSelector(..., **OFFICIAL_CODE)`` behaves like the official code."""


class Selection(NamedTuple):
    """Soft labels of a batch, and the values from which they were computed.

    Example:
        >>> selector = SoftLabelSelector(num_classes=4, num_samples=2)
        >>> selection = selector.select(torch.tensor([[0.7, 0.1, 0.1, 0.1]]))
        >>> selection.prediction.item(), selection.target.shape
        (0, torch.Size([1, 4]))
    """

    target: Tensor
    """(batch, K) selected soft labels ptilde = normalize(g * p)."""
    candidates: Tensor
    """(batch, K) bool indicator g of the candidate classes."""
    k: Tensor
    """(batch,) number of clusters."""
    prediction: Tensor
    """(batch,) predicted class."""
    confidence: Tensor
    """(batch,) probability of the predicted class."""


def check_probabilities(probs: Tensor) -> None:
    """Raises ValueError if rows (batch, K) are not probabilities, for example logits; NaN is not checked."""
    if not len(probs):
        return
    (low, high), (least, most) = probs.aminmax(), probs.sum(dim=1).aminmax()
    if low < -TOLERANCE or high > 1 + TOLERANCE or least < 1 - TOLERANCE or most > 1 + TOLERANCE:
        raise ValueError(
            "probs must be probabilities between 0 and 1 that sum to 1 for each image, but they range from "
            f"{low:.3g} to {high:.3g} and their sums from {least:.3g} to {most:.3g}; apply softmax to the logits."
        )


def select_candidates(probs: Tensor, candidates: Tensor) -> Tensor:
    """ptilde = g * p / sum(g * p). Shapes: probs (batch, K), candidates (batch, K) bool -> (batch, K).

    Example::

        >>> select_candidates(torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([[True, True, False]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    kept = probs * candidates
    return kept / kept.sum(dim=1, keepdim=True)


class SoftLabelSelector(nn.Module):
    """Soft labels restricted to the classes that the model confuses with its prediction (SoC, AAAI 2024).

    For each sample, the classes are clustered into k_i = f_conf(max p_i) clusters by the class transitions C of the
    last ``window`` batches. The cluster of the predicted class contains the candidate classes g_i, and the soft label
    is normalize(g_i * p_i).

    The state is in persistent buffers: ``state_dict()`` is a complete checkpoint. It moves to the device of the inputs.
    With several processes (``torch.distributed``) the predictions of all ranks are gathered in rank order, so that all
    ranks hold the same state; all ranks must pass batches of the same size.

    Args:
        num_classes: Number of classes K.
        num_samples: Number of unlabeled images.
        window: Number of recent batches whose transitions are counted.
        map, alpha, beta, k, rounding: The map from confidence to k, see :class:`Granularity`.
        refresh: Clusterings that each batch updates. "occurring": the k that occur in the batch; "oldest": among these,
            the ``refresh_limit`` k that were updated least recently; "all": all k; "round_robin": one k per step, after
            all k in the first step; "auto": "occurring" up to 1,000 classes, "oldest" above.
        refresh_limit: Number of clusterings that "oldest" updates per batch.
        directed_update, stale_seeds: Behavior of the official code, see :func:`k_medoids`.
        medoid_init: "warm" starts from the previous medoids of the same k, "random" from random medoids each time.
        tie: Medoid that a class joins if several are equally similar. "first": the first in the list; "random": the
            first from a random position in the list.
        max_rounds: Largest number of k-medoids rounds.
        seed: Seed of the random draws, which depend only on seed, step and k.
        host_sync: Whether the host may wait for a GPU, see :func:`k_medoids`. Default: only with more than 512 classes
            and without Triton.

    Example::

        >>> selector = SoftLabelSelector(num_classes=3, num_samples=100, alpha=3.0)
        >>> probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
        >>> soft_labels = selector(probs, index=torch.tensor([8, 15]))  # the targets of the strong views
        >>> soft_labels.sum(dim=1)
        tensor([1., 1.])
    """

    medoids: Tensor
    """(rows, k_max) medoid classes of the clustering for each k, padded with -1."""
    assignment: Tensor
    """(rows, K) cluster of each class."""
    refreshed: Tensor
    """(rows,) step of the last update, -1 before the first."""
    step: Tensor
    """Number of observed batches."""
    sizes: Tensor
    """(rows,) the k of each row."""

    def __init__(
        self,
        num_classes: int,
        num_samples: int,
        *,
        window: int = WINDOW,
        map: MapName = Granularity.map,
        alpha: float = Granularity.alpha,
        beta: float = Granularity.beta,
        k: int | None = Granularity.k,
        rounding: Rounding = Granularity.rounding,
        refresh: Refresh = "auto",
        refresh_limit: int = 8,
        directed_update: bool = False,
        stale_seeds: bool = False,
        medoid_init: MedoidInit = "warm",
        tie: Tie = "first",
        max_rounds: int = MAX_ROUNDS,
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
        # A copy of ``step > 0`` on the host, because reading the step counter would wait for a GPU.
        self._has_started = False
        self._register_clusterings()

    def forward(self, probs: Tensor, index: Tensor, similarity: Tensor | None = None) -> Tensor:
        """Observes a batch, then selects its soft labels.

        Args:
            probs: (batch, K) probabilities of the weakly augmented unlabeled images. Other values, such as logits,
                raise an error on a CPU. They are not checked on a GPU, because the host would have to wait.
            index: (batch,) indices of the images in the unlabeled set.
            similarity: Replaces the transitions, see :meth:`observe`.

        Returns:
            (batch, K) targets of the strongly augmented images, detached.
        """
        batch = self._prepare(probs)
        self.observe(index, batch.prediction, batch.k, similarity)
        return self._select(batch).target

    @torch.no_grad()
    def observe(
        self, index: Tensor, prediction: Tensor, k: Tensor | None = None, similarity: Tensor | None = None
    ) -> None:
        """Tracks the predictions of a batch, then updates the clusterings.

        Args:
            index: (batch,) indices of the images in the unlabeled set.
            prediction: (batch,) predicted classes.
            k: (batch,) number of clusters of each image. ``refresh="occurring"`` updates these; None updates all.
            similarity: (K, K) symmetric float64 similarity with zero diagonal that replaces the transitions.
        """
        self._move_to(prediction.device)
        index, prediction, k = self._gather(index, prediction, k)
        self.tracker.update(index, prediction)
        self._refresh(k, self.counts if similarity is None else similarity)
        self.step.add_(1)
        self._has_started = True

    def select(self, probs: Tensor) -> Selection:
        """Selects soft labels with the current clusterings without changing the state. Shapes: probs (batch, K)."""
        return self._select(self._prepare(probs))

    @torch.no_grad()
    def renewed(self, similarity: Tensor | None = None) -> "SoftLabelSelector":
        """Returns a selector for predictions, in which clusterings that no recent batch needed are up to date.

        With ``refresh="occurring"`` and ``"oldest"``, a clustering is as old as the last batch that updated it. The
        clusterings that the last batch did not update are computed from the current transitions. This selector does not
        change. The other one shares its transitions.

        Args:
            similarity: Replaces the transitions, see :meth:`observe`.
        """
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        if self.refresh not in ("occurring", "oldest"):
            return other
        for name in ("medoids", "assignment", "refreshed"):
            setattr(other, name, getattr(self, name).clone())
        is_old = (self.refreshed < self.step - 1).nonzero().squeeze(1)
        if len(is_old):
            other._update(is_old, None, self.counts if similarity is None else similarity)
        return other

    def clusters(self, k: int) -> Tensor:
        """Returns the (K,) cluster of each class, 0..k-1, in the current clustering into k clusters."""
        return self.assignment[self._row(k)].long()

    @property
    def counts(self) -> Tensor:
        """(K, K) class transitions C[m, n] of the last ``window`` batches."""
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
        names = ("refresh", "directed_update", "stale_seeds", "medoid_init", "tie", "max_rounds", "seed")
        return f"{self.granularity}, " + ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _register_clusterings(self) -> None:
        """Registers one clustering per k, initialized for zero transitions."""
        sizes = torch.arange(self.k_min, self.k_max + 1)
        step = torch.zeros((), dtype=torch.int64)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("step", step)
        parts = torch.split(sizes, 64)  # limits the memory of the draw
        medoids = torch.cat([self._draw_medoids(part, step) for part in parts])
        starts = torch.cat([self._draw_tie_starts(part, step) for part in parts]) if self.tie == "random" else None
        self.register_buffer("medoids", medoids.int())
        self.register_buffer("assignment", initial_assignment(medoids, self.num_classes, starts).int())
        self.register_buffer("refreshed", torch.full_like(sizes, -1))

    def _refresh(self, k: Tensor | None, similarity: Tensor) -> None:
        self._update(*self._rows_to_refresh(k), similarity)

    def _update(self, rows: Tensor, is_due: Tensor | None, similarity: Tensor) -> None:
        """Updates the clusterings with indices ``rows``, only those with ``is_due`` if given."""
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
            candidate_pairs=self.tracker.ring.view(-1),
        )
        self._write(
            rows, is_due, medoids=found.medoids, assignment=found.assignment, refreshed=self.step.expand(len(rows))
        )

    def _write(self, rows: Tensor, is_due: Tensor | None, **results: Tensor) -> None:
        """Writes the results of the rows to update into the buffers of the same names."""
        for name, new in results.items():
            buffer: Tensor = getattr(self, name)
            new = new.to(buffer.dtype)
            if is_due is not None:
                new = torch.where(is_due.view(-1, *[1] * (new.ndim - 1)), new, buffer.index_select(0, rows))
            buffer.index_copy_(0, rows, new)

    def _rows_to_refresh(self, k: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns (rows,) indices of clusterings, and (rows,) whether to update each of them; None: all."""
        all_rows = torch.arange(len(self.sizes), device=self.sizes.device)
        if self.refresh == "round_robin" and self._has_started:
            return self.step.remainder(len(self.sizes)).view(1), None
        if self.refresh not in ("occurring", "oldest") or k is None:
            return all_rows, None
        occurring = k - self.k_min
        is_due = torch.zeros_like(all_rows, dtype=torch.bool).index_fill_(0, occurring, True)
        if self.refresh == "oldest":
            age_order = self.refreshed * len(all_rows) + all_rows  # equal age: the smaller k first
            rows = torch.where(is_due, age_order, torch.iinfo(torch.int64).max).argsort()[: self.refresh_limit]
            return rows, is_due.index_select(0, rows)
        if self._syncs_with_host:
            return torch.unique(occurring), None
        if len(occurring) < len(all_rows):
            return occurring, None  # a k that occurs twice is computed twice with the same result
        return all_rows, is_due

    @property
    def _syncs_with_host(self) -> bool:
        """Whether the host may wait for values of the device, see :func:`k_medoids`."""
        return default_host_sync(self.step.device, self.num_classes) if self.host_sync is None else self.host_sync

    def _draw_medoids(self, sizes: Tensor, step: Tensor) -> Tensor:
        return draw_medoids(sizes, self.k_max, self.num_classes, self.seed, step)

    def _draw_tie_starts(self, sizes: Tensor, step: Tensor) -> Tensor:
        classes = torch.arange(self.num_classes, device=sizes.device)
        k = sizes.unsqueeze(1)
        return hash_integers(self.seed, step, k, classes, 1).remainder(k)

    @torch.no_grad()
    def _prepare(self, probs: Tensor) -> "_Batch":
        if probs.ndim != 2 or probs.shape[1] != self.num_classes:
            raise ValueError(f"probs must have shape (batch, {self.num_classes}), got {tuple(probs.shape)}.")
        self._move_to(probs.device)
        probs = probs.detach()
        if probs.dtype in (torch.float16, torch.bfloat16):
            probs = probs.float()
        if probs.device.type == "cpu":
            check_probabilities(probs)
        confidence, prediction = probs.max(dim=1)
        return _Batch(probs, prediction, confidence, self.granularity(confidence))

    @torch.no_grad()
    def _select(self, batch: "_Batch") -> Selection:
        cluster = self.assignment.index_select(0, batch.k - self.k_min)
        candidates = cluster == cluster.gather(1, batch.prediction.unsqueeze(1))
        target = select_candidates(batch.probs, candidates)
        return Selection(target, candidates, batch.k, batch.prediction, batch.confidence)

    def _gather(self, index: Tensor, prediction: Tensor, k: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gathers the vectors of all ranks in rank order."""
        device = self.step.device
        parts = [part.to(device).long() for part in (index, prediction, k) if part is not None]
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            local = torch.stack(parts)
            gathered = [torch.empty_like(local) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, local)
            parts = list(torch.cat(gathered, dim=1).unbind())
        return parts[0], parts[1], parts[2] if k is not None else None

    def _move_to(self, device: torch.device) -> None:
        """Moves the state to the device of the inputs."""
        if self.step.device != device:
            self.to(device)

    def _row(self, k: int) -> int:
        if not self.k_min <= k <= self.k_max:
            raise ValueError(f"k must be between {self.k_min} and {self.k_max}, got {k}.")
        return k - self.k_min

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._has_started = bool(self.step > 0)


class _Batch(NamedTuple):
    """Probabilities (batch, K), and prediction, confidence and k, (batch,) each."""

    probs: Tensor
    prediction: Tensor
    confidence: Tensor
    k: Tensor
