"""What became of the pseudo-labels over the steps: of each image, and of each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from semifine.methods.base import PseudoLabels
from semifine.methods.gathering import gather, last_of_each

NEVER = -1


class LabelHistory(nn.Module):
    """How often the prediction of each image changed, and how many labels each class got; the same on all ranks.

    Its buffers are part of a checkpoint, so that a resumed run counts on. Nothing flows back from it.
    """

    last: Tensor
    changes: Tensor
    predicted: Tensor
    accepted: Tensor

    def __init__(self, num_samples: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((num_samples,), NEVER))
        self.register_buffer("changes", torch.zeros(num_samples, dtype=torch.int64))
        self.register_buffer("predicted", torch.zeros(num_classes))
        self.register_buffer("accepted", torch.zeros(num_classes))

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        """Adds the labels of a step's unlabelled images; the host does not wait."""
        index = gather(index)
        prediction = gather(pseudo.probs.argmax(dim=1))
        accepted = gather(pseudo.accepted.float())
        before = self.last[index]
        changed = (before != NEVER) & (before != prediction)
        place = last_of_each(index)  # of an image that occurs twice in a batch, the later counts
        self.changes.index_copy_(0, index, (self.changes[index] + changed)[place])
        self.last.index_copy_(0, index, prediction[place])
        is_class = (prediction[:, None] == torch.arange(len(self.predicted), device=index.device)).float()
        self.predicted.add_(is_class.sum(dim=0))
        self.accepted.add_((is_class * accepted[:, None]).sum(dim=0))

    def take_class_counts(self) -> dict[str, list[int]]:
        """Labels that each class got since the last time: all predictions, and those that trained the network."""
        counts = torch.stack([self.predicted, self.accepted]).round().long().tolist()
        self.predicted.zero_()
        self.accepted.zero_()
        return dict(zip(("predicted", "accepted"), counts, strict=True))
