"""Optimizer and learning rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from semifine.config import TrainSettings

STEP_MILESTONES = (0.6, 0.8)
"""Fractions of the horizon at which the ``steps`` schedule, from MoCo v1, divides the learning rate by ten."""
COSINE_FLOOR = 1e-3
"""Final value of the ``half_cosine_floor`` schedule, from PyContrast."""
EXEMPT_NAMES = {"bn": ("bn",), "bn+bias": ("bn", "bias"), "none": ()}
"""Parameters whose name contains one of these strings have no weight decay, as in the published code."""


def learning_rate_factor(step: int, settings: TrainSettings) -> float:
    """Returns the factor of the learning rate at a step.

    After a linear warmup of W steps, with the horizon T: ``cos716`` is max(0, cos(7/16 pi (t - W) / (T - W))), which
    ends at 0.195; ``half_cosine`` ends at 0 and ``half_cosine_floor`` at 0.001; ``steps`` divides by ten at 60 % and at
    80 % of the horizon.

    Example:
        >>> settings = TrainSettings(iterations=100, schedule="steps")
        >>> [round(learning_rate_factor(step, settings), 4) for step in (0, 60, 80)]
        [1.0, 0.1, 0.01]
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
        return COSINE_FLOOR + (1 - COSINE_FLOOR) * half_cosine
    if settings.schedule == "steps":
        return 0.1 ** sum(done >= milestone for milestone in STEP_MILESTONES)
    return 1.0


def create_optimizer(network: nn.Module, settings: TrainSettings, *, fused: bool) -> SGD | AdamW:
    """Returns the optimizer of the trainable parameters.

    There are two parameter groups: with weight decay and, if ``decay_exempt`` selects any, without. If the backbone has
    another learning rate than the heads, each of them is divided into two.
    """
    exempt_names = EXEMPT_NAMES[settings.decay_exempt]
    found: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            is_exempt = any(part in name for part in exempt_names)
            scale = 1.0 if name.startswith(("head.", "heads.")) else settings.backbone_lr
            found.setdefault((is_exempt, scale), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": 0.0 if is_exempt else settings.weight_decay, "lr_scale": scale}
        for (is_exempt, scale), parameters in sorted(found.items(), key=lambda item: item[0])
    ]
    if settings.optimizer == "adamw":
        return AdamW(groups, lr=settings.lr, fused=fused, capturable=fused)
    return SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        fused=fused,
    )


def make_learning_rate_tensor(device: torch.device, optimizer: Any) -> None:
    """Makes the learning rate a tensor on the device, so that a CUDA graph reads its current value at each replay."""
    for group in optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    """Sets the learning rate of all parameter groups, times their ``lr_scale``; in place if it is a tensor."""
    for group in optimizer.param_groups:
        scaled = learning_rate * group["lr_scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled
