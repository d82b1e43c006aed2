"""Sampling of images of different sizes at real-valued coordinates.

Coordinates are Pillow's and torch's (``align_corners=False``): pixel i covers [i, i + 1), its centre is
i + 0.5, and an image of width W spans [0, W].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from semifine.views.images import CHANNELS, ImageBatch

CPU_PIXELS = 32_768
"""How many pixels the CPU samples at a time."""


def sample_bilinear(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear samples, (N, 3, H, W) float32 in 0..255; outside an image its border goes on.

    ``x`` and ``y`` broadcast to (N, H, W): for an upright crop they are (N, 1, W) and (N, H, 1).
    """
    length = _samples_at_once(images, y.shape[1] * x.shape[2])
    if length >= len(images):
        return _bilinear(images, x, y)
    parts = [slice(start, start + length) for start in range(0, len(images), length)]
    return torch.cat([_bilinear(images.part(part), x[part], y[part]) for part in parts])


def _samples_at_once(images: ImageBatch, pixels: int) -> int:
    """On the CPU few samples at a time: their intermediate results then stay in its cache."""
    return max(1, CPU_PIXELS // pixels) if images.device.type == "cpu" else len(images)


def _bilinear(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    left, x_fraction = _split(x, images.width)
    top, y_fraction = _split(y, images.height)
    index = _channel_index(images, left, top)
    # Images one pixel wide or high have no second tap: the step is then zero.
    right = (images.width > 1).to(index.dtype).mul_(CHANNELS).unsqueeze(1)
    down = ((images.height > 1).to(index.dtype) * images.width).mul_(CHANNELS).unsqueeze(1)
    x_fraction, y_fraction = x_fraction.unsqueeze(1), y_fraction.unsqueeze(1)
    upper = torch.lerp(_take(images, index), _take(images, index + right), x_fraction)
    index += down
    lower = torch.lerp(_take(images, index), _take(images, index.add_(right)), x_fraction)
    return torch.lerp(upper, lower, y_fraction)


def sample_nearest(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    """Like :func:`sample_bilinear`, but the nearest pixel: keeps the image's own values."""
    left = x.floor().clamp_(min=0).minimum(images.width - 1)
    top = y.floor().clamp_(min=0).minimum(images.height - 1)
    return _take(images, _channel_index(images, left, top))


def pool(samples: Tensor, factor: int) -> Tensor:
    """Averages ``factor`` x ``factor`` samples to a pixel: against aliasing where images are shrunk much."""
    return samples if factor == 1 else avg_pool2d(samples, factor)


def _split(position: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
    """The lower of the two pixels around each position, and the weight of the upper one."""
    centred = position - 0.5
    lower = centred.floor().clamp_(min=0).minimum((extent - 2).clamp_(min=0))
    return lower, centred.sub_(lower).clamp_(0, 1)


def _channel_index(images: ImageBatch, left: Tensor, top: Tensor) -> Tensor:
    """(N, 3, H, W) positions in the flat buffer of the three channels of pixels (left, top)."""
    dtype = images.offset.dtype
    row = top.to(dtype) * images.width
    pixel = (row + left.to(dtype)).mul_(CHANNELS).add_(images.offset)
    return pixel.unsqueeze(1) + torch.arange(CHANNELS, dtype=dtype, device=pixel.device).view(1, -1, 1, 1)


def _take(images: ImageBatch, index: Tensor) -> Tensor:
    # index_select, unlike the [] operator, takes 32-bit indices as they are; it is also the faster one.
    return images.pixels.index_select(0, index.view(-1)).view(index.shape).to(torch.float32)
