"""Vote: learns from the votes of several trained networks on the labels of unlabeled images (as in V-PET)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from semifine.errors import UserError
from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    DataInfo,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.methods.levers import LabeledLeverSettings, Levers
from semifine.models.forward import Networks
from semifine.soft_labels import SoftLabelSelector


@dataclass(frozen=True)
class VoteSettings(LabeledLeverSettings):
    voters: tuple[str, ...] = setting((), "run folders of the networks that vote, separated by commas", is_path=True)
    weight: float = setting(1.0, "weight of the unlabeled loss", low=0)
    candidates: bool = setting(
        False, "keep only votes for classes that the network confuses with the class of most votes (SoC)"
    )


class Vote(Method):
    """loss = L_s + weight 1/(mu B) sum CE(pbar, f(strong(u))), pbar = 1/V sum of the one-hot votes of V networks.

    The votes are the predictions that the voters' runs wrote at their end, and do not change. Images without votes are
    not in the loss. With ``candidates``, pbar is restricted to the cluster of its largest class, for the k of SoC's map
    of the share of votes for this class; class transitions come from the network in training.
    """

    name = "vote"
    title = "Vote"
    color = "blue"
    line_style = "--"
    summary = "soft labels from the votes of several trained networks"
    Settings = VoteSettings
    unlabeled_views: tuple[str, ...] = ("weak", "strong")
    cuda_graph_safe = True

    votes: Tensor
    """(M, V) class that each voter predicts for each unlabeled image, -1 if there is none."""

    def __init__(self, settings: VoteSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        assert info.votes is not None, "the trainer reads the votes of voters()"
        self.levers = Levers(settings, info)
        self.register_buffer("votes", info.votes, persistent=False)
        self.selector = None
        if settings.candidates:
            self.selector = SoftLabelSelector(info.num_classes, info.num_unlabeled, seed=info.seed)
        else:
            self.unlabeled_views = ("strong",)

    @classmethod
    def voters(cls, settings: Any) -> tuple[str, ...]:
        if not settings.voters:
            raise UserError(
                "The method 'vote' needs trained networks; set --method.voters to their run folders, separated by "
                "commas."
            )
        return tuple(settings.voters)

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        assert batch.index is not None
        target, accepted = average_votes(self.votes[batch.index], self.info.num_classes)
        if self.selector is None:
            labeled, strong = networks(batch.labeled["weak"], batch.unlabeled["strong"])
        else:
            labeled, weak, strong = networks(
                batch.labeled["weak"], batch.unlabeled["weak"], batch.unlabeled["strong"], without_gradient=(1,)
            )
            k = self.selector.granularity(target.amax(dim=1))
            self.selector.observe(batch.index, predicted_probabilities(weak.logits).argmax(dim=1), k)
            target = self.selector.select(target).target
        supervised = supervised_cross_entropy(self.levers.adjust_labeled(labeled.logits), batch.label)
        consistency = soft_cross_entropy(strong.logits, target, accepted)
        loss = supervised + self.settings.weight * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "accepted": accepted.mean(),
        }
        return StepResult(loss, metrics, PseudoLabels(target, target, accepted))

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        """Returns the predictions as soft labels: reports show what the network has learned from the votes."""
        return soft_pseudo_labels(probs, threshold=0.0)


def average_votes(votes: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Averages one-hot votes.

    Args:
        votes: (B, V) classes, -1 for no vote.
        num_classes: Number of classes K.

    Returns:
        (B, K) soft labels, uniform without votes, and (B,) 1 for images with votes, else 0.

    Example:
        >>> average_votes(torch.tensor([[0, 0, 1, 0], [-1, -1, -1, -1]]), num_classes=2)
        (tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]]), tensor([1., 0.]))
    """
    given = (votes >= 0).float()
    counts = (one_hot(votes.clamp(min=0), num_classes) * given[:, :, None]).sum(dim=1)
    total = given.sum(dim=1)
    average = torch.where(total[:, None] > 0, counts / total.clamp(min=1)[:, None], 1 / num_classes)
    return average, (total > 0).float()
