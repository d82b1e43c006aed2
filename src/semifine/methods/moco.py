"""MoCo: contrastive learning of features from pairs of views, without labels (He et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semifine.distributed import all_gather, world_size
from semifine.errors import UserError
from semifine.fields import setting
from semifine.losses import info_nce_logits, info_nce_loss
from semifine.methods.base import Batch, DataInfo, Method, Progress, StepResult
from semifine.methods.components import RingBuffer
from semifine.models.classifier import PROJECTION, l2_normalize, linear_projection, mlp_projection
from semifine.models.forward import Networks, Output

TEMPERATURE = {"v1": 0.07, "v2": 0.2}


@dataclass(frozen=True)
class MoCoSettings:
    version: Literal["v1", "v2"] = setting(
        "v2", "v2: projection with two layers, blurred views; v1: linear projection, no blur"
    )
    dim: int = setting(128, "dimension of the projection", low=1)
    queue: int | None = setting(
        None, "number of keys in the queue; default: about the number of unlabeled images", low=1
    )
    temperature: float | None = setting(
        None, "temperature of the logits (T); default: 0.2 for v2, 0.07 for v1", low=1e-6
    )
    groups: int = setting(
        8,
        "number of groups in a batch with separate batch-norm statistics; keys and queries are grouped differently",
        low=1,
    )


class MoCo(Method):
    """loss = mean CE([q.k, q.Q^T] / T, 0), with queries q, keys k of the same images, and a queue Q of previous keys.

    The student computes the queries. The averaged network computes the keys, so ``ema`` is MoCo's momentum m. Other
    methods start from the backbone of the student with ``--weights``.
    """

    name = "moco"
    title = "MoCo"
    color = "sky"
    line_style = "--"
    summary = "contrastive pre-training without labels; other methods start from its weights (--weights)"
    Settings = MoCoSettings
    labeled_views = ()
    unlabeled_views = ("moco_v2:1", "moco_v2:2")
    trains_classifier = False
    needs_ema = True
    evaluates_ema = False
    cuda_graph_safe = True

    def __init__(self, settings: MoCoSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.unlabeled_views = (f"moco_{settings.version}:1", f"moco_{settings.version}:2")
        self.temperature = settings.temperature or TEMPERATURE[settings.version]
        # With more keys than images, the negatives would include previous keys of the query's image.
        length = settings.queue or max(1, info.num_unlabeled // info.unlabeled_batch) * info.unlabeled_batch
        processes = world_size()  # each process groups its part of the batch
        if length < info.unlabeled_batch or info.unlabeled_batch % (processes * settings.groups):
            raise UserError(
                f"The number of unlabeled images per step, {info.unlabeled_batch}, must be at most method.queue "
                f"({length}) and a multiple of method.groups ({settings.groups})"
                + (f" in each of {processes} processes." if processes > 1 else ".")
            )
        start = torch.randn(length, settings.dim, generator=torch.Generator().manual_seed(info.seed))
        self.queue = RingBuffer(l2_normalize(start))

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:
        project = mlp_projection if settings.version == "v2" else linear_projection
        return nn.ModuleDict({PROJECTION: project(feature_dim, settings.dim)})

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        first, second = (batch.unlabeled[name] for name in self.unlabeled_views)
        query = torch.cat([project(networks, part) for part in first.chunk(self.settings.groups)])
        key = self._keys(networks, second)
        # A copy, because the queue changes before the backward pass reads it.
        logits = info_nce_logits(query, key, self.queue.rows.clone(), self.temperature)
        loss = info_nce_loss(logits)
        self.queue.push(all_gather(key))
        accuracy = (logits.argmax(dim=1) == 0).float().mean()
        return StepResult(loss, {"loss": loss.detach(), "key_found": accuracy})

    def _keys(self, networks: Networks, views: Tensor) -> Tensor:
        """Returns (B, dim) keys, computed in groups that differ from the groups of the queries.

        If a key shared its batch statistics with its query, the network could match them by these statistics. Batches
        are in random order, so taking every n-th image has the effect of MoCo's random shuffle.
        """
        groups = self.settings.groups
        parts = [project(networks.forward_ema, views[group::groups]) for group in range(groups)]
        return torch.stack(parts, dim=1).flatten(0, 1)


def project(network: Callable[[Tensor], list[Output]], views: Tensor) -> Tensor:
    """Returns (B, dim) normalized projections of a view."""
    (output,) = network(views)
    return l2_normalize(output.heads[PROJECTION])
