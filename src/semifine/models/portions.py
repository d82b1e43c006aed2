"""How many images a network that only answers is given at a time."""

from __future__ import annotations

import torch

CPU_PIXELS = 8 * 224 * 224
"""What a CPU is given at a time: more images do not fit its caches, which takes several times as long."""


def images_at_once(images: int, side: int, device: torch.device) -> int:
    """Of so many square images: all on a GPU, few on a CPU, which wants them channels last."""
    return max(1, CPU_PIXELS // side**2) if device.type == "cpu" else images
