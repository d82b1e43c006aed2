"""A student learns the predictions of another network."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2/B sum_i KL(softmax(z_t/T) || softmax(z_s/T)) of (B, K) logits.

    T^2 keeps the size of the gradient where the temperature changes (Hinton et al., 2015).
    """
    learnt = log_softmax(student.float() / temperature, dim=1)
    taught = log_softmax(teacher.float() / temperature, dim=1)
    return temperature**2 * kl_div(learnt, taught, reduction="batchmean", log_target=True)
