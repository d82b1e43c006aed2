"""Optimizer and learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from semifine.config import TrainSettings

STEPS = (0.6, 0.8)
"""Shares of the horizon at which the schedule of MoCo v1 divides the learning rate by ten."""

FLOOR = 1e-3
"""What PyContrast's cosine leaves of the learning rate."""


def learning_rate_factor(step: int, settings: TrainSettings) -> float:
    """What the learning rate is multiplied with at a step.

    ``cos716`` is t/W for t < W, then max(0, cos(7/16 pi (t - W) / (T - W))), ending at 0.195;
    ``half_cosine`` ends at 0, ``half_cosine_floor`` at a thousandth; ``steps`` divides by ten at 60 % and at 80 %. T is
    the horizon, W its warm-up share.
    """
    horizon = settings.horizon or settings.iterations
    warmup = round(settings.warmup * horizon)
    if step < warmup:
        return step / warmup
    done = (step - warmup) / max(1, horizon - warmup)
    if settings.schedule == "cos716":
        return max(0.0, math.cos(7 / 16 * math.pi * done))
    half_cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if settings.schedule == "half_cosine":
        return half_cosine
    if settings.schedule == "half_cosine_floor":
        return FLOOR + (1 - FLOOR) * half_cosine
    if settings.schedule == "steps":
        return 0.1 ** sum(done >= share for share in STEPS)
    return 1.0


EXEMPT_NAMES = {"bn": ("bn",), "bn+bias": ("bn", "bias"), "none": ()}


def create_optimizer(network: nn.Module, settings: TrainSettings, *, fused: bool) -> SGD:
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


def make_learning_rate_tensor(device: torch.device, optimizer: Any) -> None:
    """The learning rate as a tensor of the device, where a CUDA graph can read it anew at each replay."""
    for group in optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
