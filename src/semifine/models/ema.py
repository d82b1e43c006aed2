"""Exponential moving average of the student's weights."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def create_ema(student: NetworkT) -> NetworkT:
    """Creates a copy of the student without gradients, for :func:`update_ema`."""
    return copy.deepcopy(student).requires_grad_(False).eval()


@torch.no_grad()
def update_ema(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """theta' <- decay theta' + (1 - decay) theta; buffers (batch-norm statistics) are copied.

    Example:
        >>> student = nn.Linear(1, 1, bias=False)
        >>> teacher = create_ema(student)
        >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
        >>> update_ema(teacher, student, decay=0.75)
        >>> teacher.weight.item()
        0.25
    """
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - decay)
    targets, sources = list(teacher.buffers()), list(student.buffers())
    if targets:
        torch._foreach_copy_(targets, sources)
