"""SGD with the weight-decay rules of the published codes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from semifine.config import TrainSettings

EXEMPT_NAMES = {"bn": ("bn",), "bn+bias": ("bn", "bias"), "none": ()}


def create_optimiser(network: nn.Module, settings: TrainSettings, *, fused: bool) -> SGD:
    """SGD; parameters whose name contains an exempt word (as the published codes choose them) do not decay."""
    exempt_words = EXEMPT_NAMES[settings.decay_exempt]
    decaying: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        (exempt if any(word in name for word in exempt_words) else decaying).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decaying, "weight_decay": settings.weight_decay}]
    if exempt:
        groups.append({"params": exempt, "weight_decay": 0.0})
    return SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        fused=fused,
    )


def keep_learning_rate_on(device: torch.device, optimiser: Any) -> None:
    """The learning rate as a tensor of the device, where a CUDA graph can read it anew at each replay."""
    for group in optimiser.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)


def set_learning_rate(optimiser: Any, learning_rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
