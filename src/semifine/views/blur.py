"""Gaussian blur, each sample with a width of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from semifine.views.arrays import FloatArray
from semifine.views.transfer import upload

REACH = 3
"""How many standard deviations of the bell count."""


def blur(pictures: Tensor, sigma: FloatArray) -> Tensor:
    """Blurs the pictures whose ``sigma`` (N,), in pixels, is above 0. Shapes: (N, 3, H, W) float32 -> the same.

    The border pixels go on outside, as in Pillow.
    """
    which = np.flatnonzero(sigma > 0)
    if not len(which):
        return pictures
    sent = upload({"which": which, "kernel": kernels(sigma[which])}, pictures.device)
    return pictures.index_copy(0, sent["which"], _convolve(pictures.index_select(0, sent["which"]), sent["kernel"]))


def kernels(sigma: FloatArray) -> FloatArray:
    """(n, 2 r + 1) bells that add up to 1, where r reaches far enough for the widest."""
    radius = int(np.ceil(REACH * sigma.max()))
    bell = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma[:, None]) ** 2)
    return np.asarray(bell / bell.sum(axis=1, keepdims=True))


def _convolve(pictures: Tensor, kernel: Tensor) -> Tensor:
    """Along columns, then along rows; every channel of every picture is a group of its own."""
    count, channels, height, width = pictures.shape
    taps = kernel.shape[1]
    weight = kernel.repeat_interleave(channels, dim=0).view(-1, 1, taps, 1)
    planes = pictures.reshape(1, count * channels, height, width)
    for across, edges in ((weight, (0, 0, taps // 2, taps // 2)), (weight.mT, (taps // 2, taps // 2, 0, 0))):
        planes = conv2d(pad(planes, edges, mode="replicate"), across, groups=count * channels)
    return planes.view(pictures.shape)
