"""Gaussian blur, each sample with a width of its own."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn.functional import conv2d, pad

from semifine.augment.image_batch import FloatArray, upload
from semifine.augment.sampling import has_kernels

LARGEST = 2.0
"""The widest blur, in pixels."""
RADIUS = 6
"""How far it reaches, three standard deviations; one reach for all, so that no sample depends on the others."""


def blur(pictures: Tensor, sigma: FloatArray) -> Tensor:
    """Blurs the pictures whose ``sigma`` (N,), in pixels, is above 0. Shapes: (N, 3, H, W) float32 -> the same.

    The border pixels go on outside, as in Pillow.
    """
    which = np.flatnonzero(sigma > 0)
    if not len(which):
        return pictures
    if has_kernels(pictures.device):
        from semifine.augment.triton import color_jitter

        return color_jitter.blur(pictures, sigma)
    sent = upload({"which": which, "kernel": kernels(sigma[which])}, pictures.device)
    return pictures.index_copy(0, sent["which"], _convolve(pictures.index_select(0, sent["which"]), sent["kernel"]))


def kernels(sigma: FloatArray) -> FloatArray:
    """(n, 2 r + 1) bells that add up to 1, for widths (n,) above 0 and up to the largest."""
    assert sigma.max() <= LARGEST, "a wider bell needs a longer reach"
    bell = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / sigma[:, None]) ** 2)
    return np.asarray(bell / bell.sum(axis=1, keepdims=True))


def _convolve(pictures: Tensor, kernel: Tensor) -> Tensor:
    """Along columns, then along rows; every channel of every picture is a group of its own."""
    count, channels, height, width = pictures.shape
    down = kernel.repeat_interleave(channels, dim=0)[:, None, :, None]
    planes = pictures.reshape(1, count * channels, height, width)
    for weight, edges in ((down, (0, 0, RADIUS, RADIUS)), (down.mT, (RADIUS, RADIUS, 0, 0))):
        planes = conv2d(pad(planes, edges, mode="replicate"), weight, groups=count * channels)
    return planes.view(pictures.shape)
