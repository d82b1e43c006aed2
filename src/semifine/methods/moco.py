"""MoCo: features that recognize an image in two of its views, learned without any label (He et al., 2020)."""

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
    version: Literal["v1", "v2"] = setting("v2", "v2: a projection of two layers and blurred views; v1: without both")
    dim: int = setting(128, "length of a projected feature", low=1)
    queue: int | None = setting(
        None, "keys to compare with; default: about as many as there are unlabeled images", low=1
    )
    temperature: float | None = setting(None, "default: 0.2 for v2, 0.07 for v1", low=1e-6)
    groups: int = setting(
        8, "parts of a batch that batch norm sees apart, others for keys than for queries, as on so many GPUs", low=1
    )


class MoCo(Method):
    """loss = mean CE([q.k, q.Q^T] / T, 0): q of the student, its own key k and a queue Q of earlier ones.

    Keys are made by the averaged model, so ``ema`` is MoCo's momentum m. The result is the student's backbone;
    another method starts from it with ``--weights``.
    """

    name = "moco"
    title = "MoCo"
    color = "sky"
    line_style = "--"
    summary = "features without labels, from pairs of views; a start for other methods (--weights)"
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
        # With more keys than images, some of them would be stale ones of the query's own image.
        length = settings.queue or max(1, info.num_unlabeled // info.unlabeled_batch) * info.unlabeled_batch
        processes = world_size()  # each divides its own share of a batch into groups
        if length < info.unlabeled_batch or info.unlabeled_batch % (processes * settings.groups):
            raise UserError(
                f"{info.unlabeled_batch} unlabeled images a step must fit into method.queue ({length}) and be a "
                f"multiple of method.groups ({settings.groups})"
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
        # a copy of the queue, because it is written to before the backward pass reads it
        logits = info_nce_logits(query, key, self.queue.rows.clone(), self.temperature)
        loss = info_nce_loss(logits)
        self.queue.push(all_gather(key))
        found = (logits.argmax(dim=1) == 0).float().mean()
        return StepResult(loss, {"loss": loss.detach(), "key_found": found})

    def _keys(self, networks: Networks, views: Tensor) -> Tensor:
        """(B, dim) keys; batch norm must not tell which ones belong together, so they are grouped across the queries.

        Batches are in random order already: dealing them out in turn does what a random shuffle would.
        """
        groups = self.settings.groups
        parts = [project(networks.forward_ema, views[group::groups]) for group in range(groups)]
        return torch.stack(parts, dim=1).flatten(0, 1)


def project(network: Callable[[Tensor], list[Output]], views: Tensor) -> Tensor:
    """(B, dim) unit vectors."""
    (output,) = network(views)
    return l2_normalize(output.heads[PROJECTION])
