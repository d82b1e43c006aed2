"""Similarity of classes by the features of their images, instead of by transitions (the paper's LD and PL)."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot


class ClassCentroids(nn.Module):
    """Running mean of the unit-length features of each class, and how alike these means are.

    mean(c) <- decay mean(c) + (1 - decay) (mean of class c in the batch), where the batch has images of the class; its
    first batch mean is taken as it is. All state is in persistent buffers, and the same on all ranks.
    """

    mean: Tensor
    is_seen: Tensor

    def __init__(self, num_classes: int, feature_dim: int, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(num_classes, feature_dim))
        self.register_buffer("is_seen", torch.zeros(num_classes, dtype=torch.bool))

    @torch.no_grad()
    def update(self, features: Tensor, label: Tensor) -> None:
        """Follow a batch. Shapes: features (batch, D), label (batch,) classes."""
        members = one_hot(label, len(self.mean)).to(self.mean.dtype)
        sums = members.t() @ normalize(features.float(), dim=1)
        counts = members.sum(dim=0).unsqueeze(1)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(sums)
            dist.all_reduce(counts)
        batch_mean = sums / counts.clamp(min=1)
        moved = torch.where(self.is_seen.unsqueeze(1), self.mean.lerp(batch_mean, 1 - self.decay), batch_mean)
        self.mean.copy_(torch.where(counts > 0, moved, self.mean))
        self.is_seen.logical_or_(counts.squeeze(1) > 0)

    def similarity(self) -> Tensor:
        """(K, K) float64 cosine of the centroids, symmetric; 0 on the diagonal and for classes not yet seen."""
        unit = normalize(self.mean.double(), dim=1)  # a class not yet seen stays zero
        cosine = unit @ unit.t()
        return (cosine + cosine.t()).div_(2).fill_diagonal_(0)
