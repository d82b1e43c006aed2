"""Optimizer and learning rate schedule."""

from __future__ import annotations

import difflib
import inspect
import math
from typing import Any

import torch
from timm.optim import (  # type: ignore[attr-defined]  # timm declares no exports
    create_optimizer_v2,
    get_optimizer_info,
    list_optimizers,
    param_groups_layer_decay,
)
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from semifine.config import TrainSettings
from semifine.errors import UserError
from semifine.models.classifier import Classifier

STEP_MILESTONES = (0.6, 0.8)
"""Fractions of the horizon at which the ``steps`` schedule, from MoCo v1, divides the learning rate by ten."""
COSINE_FLOOR = 1e-3
"""Final value of the ``half_cosine_floor`` schedule, from PyContrast."""
EXEMPT_NAMES = {"bn": ("bn",), "bn+bias": ("bn", "bias"), "none": ()}
"""Parameters whose name contains one of these strings have no weight decay, as in the published code."""
UNSUPPORTED = ("adahessian",)
"""Optimizers that need second derivatives."""


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


def optimizer_names() -> list[str]:
    """Names of the optimizers: all of timm that need no further package.

    Example:
        >>> {"sgd", "adamw", "lamb"} <= set(optimizer_names())
        True
    """
    names = [str(name) for name in list_optimizers() if name not in UNSUPPORTED]
    return [name for name in names if not isinstance(get_optimizer_info(name).opt_class, str)]


def check_optimizer_name(name: str) -> None:
    """Raises UserError with similar names if there is no optimizer of this name."""
    names = optimizer_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Valid ones: {', '.join(names)}."
        raise UserError(f"Unknown optimizer '{name}'. {hint}")


def optimizer_is_capturable(name: str) -> bool:
    """Whether steps of the optimizer may be part of a CUDA graph: it keeps its counters on the device.

    Example:
        >>> optimizer_is_capturable("adamw"), optimizer_is_capturable("lamb")
        (True, False)
    """
    optimizer = get_optimizer_info(name).opt_class
    if not isinstance(optimizer, type) or not optimizer.__module__.startswith("torch.optim"):
        return False
    return optimizer is SGD or "capturable" in inspect.signature(optimizer).parameters


def create_optimizer(network: Classifier, settings: TrainSettings, *, fused: bool) -> Optimizer:
    """Returns the optimizer of the trainable parameters.

    Parameters with the same weight decay and the same learning rate form a group.

    Args:
        network: The network.
        settings: Optimizer, weight decay and learning rates.
        fused: Use fused kernels and keep all counters on the device, if the optimizer can.
    """
    scales = learning_rate_scales(network, settings)
    exempt = _exempt_from_decay(network, settings)
    found: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            found.setdefault((name in exempt, scales[name]), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": 0.0 if is_exempt else settings.weight_decay, "lr_scale": scale}
        for (is_exempt, scale), parameters in sorted(found.items(), key=lambda item: item[0])
    ]
    info = get_optimizer_info(settings.optimizer)
    accepted = inspect.signature(info.opt_class).parameters  # type: ignore[arg-type]  # checked by its name
    options: dict[str, Any] = {}
    if "nesterov" in (info.defaults or {}):
        options["nesterov"] = info.defaults["nesterov"] and settings.nesterov and settings.momentum > 0  # type: ignore[index]
    if optimizer_is_capturable(settings.optimizer):  # the fused Adagrad runs on CPUs only
        options |= {name: fused for name in ("fused", "capturable") if name in accepted}
    return create_optimizer_v2(groups, settings.optimizer, lr=settings.lr, momentum=settings.momentum, **options)


def learning_rate_scales(network: Classifier, settings: TrainSettings) -> dict[str, float]:
    """Returns the learning rate of each parameter, by name, relative to the learning rate of the heads.

    With ``layer_decay`` below 1, it shrinks from the heads to the last layer of the backbone, and from each layer to
    the layer before. timm defines the layers.

    Example:
        >>> from semifine.models.classifier import create_classifier
        >>> network = create_classifier("test_vit", 3, 160)
        >>> scales = learning_rate_scales(network, TrainSettings(layer_decay=0.5))
        >>> scales["head.weight"], scales["backbone.blocks.5.attn.qkv.weight"], scales["backbone.blocks.4.norm1.weight"]
        (1.0, 0.5, 0.25)
    """
    layers: dict[int, float] = {}
    if settings.layer_decay < 1:
        for group in param_groups_layer_decay(network.backbone, layer_decay=settings.layer_decay):
            # In timm, the head is the last layer. This backbone has none, so its last layer would not be scaled.
            scale = settings.layer_decay * group["lr_scale"]
            layers |= {id(parameter): scale for parameter in group["params"]}
    return {
        name: settings.backbone_lr * layers.get(id(parameter), 1.0) if name.startswith("backbone.") else 1.0
        for name, parameter in network.named_parameters()
    }


def _exempt_from_decay(network: Classifier, settings: TrainSettings) -> set[str]:
    """Returns the names of the parameters without weight decay."""
    names = [name for name, _ in network.named_parameters()]
    if settings.decay_exempt != "1d":
        return {name for name in names if any(part in name for part in EXEMPT_NAMES[settings.decay_exempt])}
    listed: set[str] = getattr(network.backbone, "no_weight_decay", set)()
    one_dimensional = {name for name, value in network.named_parameters() if value.ndim <= 1 or name.endswith(".bias")}
    return one_dimensional | {f"backbone.{name}" for name in listed}


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
