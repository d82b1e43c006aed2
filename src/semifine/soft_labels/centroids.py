"""Class similarity from image features instead of transitions (LD and PL in the paper)."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot


class ClassCentroids(nn.Module):
    """Running mean of the normalized features of each class.

    For each class c in a batch, mean(c) <- decay mean(c) + (1 - decay) (mean of class c in the batch), initialized with
    the first batch mean. All state is in persistent buffers and equal on all ranks.

    Args:
        num_classes: Number of classes K.
        feature_dim: Length D of the features.
        decay: Decay of the running mean.

    Example::

        >>> centroids = ClassCentroids(num_classes=2, feature_dim=3)
        >>> centroids.update(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([0, 1]))
        >>> centroids.similarity()
        tensor([[0., 1.],
                [1., 0.]], dtype=torch.float64)
    """

    mean: Tensor
    """(K, D) running mean of each class."""
    is_seen: Tensor
    """(K,) bool, whether the class has occurred."""

    def __init__(self, num_classes: int, feature_dim: int, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(num_classes, feature_dim))
        self.register_buffer("is_seen", torch.zeros(num_classes, dtype=torch.bool))

    @torch.no_grad()
    def update(self, features: Tensor, label: Tensor) -> None:
        """Updates the means with a batch.

        Args:
            features: (batch, D) image features.
            label: (batch,) class of each image.
        """
        members = one_hot(label, len(self.mean)).to(self.mean.dtype)
        sums = members.t() @ normalize(features.float(), dim=1)
        counts = members.sum(dim=0).unsqueeze(1)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(sums)
            dist.all_reduce(counts)
        batch_mean = sums / counts.clamp(min=1)
        updated = torch.where(self.is_seen.unsqueeze(1), self.mean.lerp(batch_mean, 1 - self.decay), batch_mean)
        self.mean.copy_(torch.where(counts > 0, updated, self.mean))
        self.is_seen.logical_or_(counts.squeeze(1) > 0)

    def similarity(self) -> Tensor:
        """Returns (K, K) float64 cosine similarity of the means; 0 on the diagonal and for classes without images."""
        unit = normalize(self.mean.double(), dim=1)  # the mean of a class without images stays zero
        cosine = unit @ unit.t()
        return (cosine + cosine.t()).div_(2).fill_diagonal_(0)
