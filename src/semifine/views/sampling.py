"""Sampling of images of different sizes at real-valued coordinates.

Coordinates are Pillow's and torch's (``align_corners=False``): pixel i covers [i, i + 1), its centre is
i + 0.5, and an image of width W spans [0, W].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from semifine.views.images import CHANNELS, ImageBatch, Layout

CPU_PIXELS = 65_536
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


def sample_nearest(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    """Like :func:`sample_bilinear`, but the nearest pixels themselves, uint8."""
    layout = images.layout
    left = x.floor().clamp_(min=0).minimum(layout.width - 1)
    top = y.floor().clamp_(min=0).minimum(layout.height - 1)
    return _take(images.pixels, _channel_index(layout, left, top))


def pool(samples: Tensor, factor: int) -> Tensor:
    """Averages ``factor`` x ``factor`` samples to a pixel: against aliasing where images are shrunk much."""
    return samples if factor == 1 else avg_pool2d(samples, factor)


def _samples_at_once(images: ImageBatch, pixels: int) -> int:
    """On the CPU few samples at a time: their intermediate results then stay in its cache."""
    return max(1, CPU_PIXELS // pixels) if images.device.type == "cpu" else len(images)


def _bilinear(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    layout = images.layout
    left, x_fraction = _split(x, layout.last_left)
    top, y_fraction = _split(y, layout.last_top)
    index = _channel_index(layout, left, top)
    right, down = layout.right.unsqueeze(1), layout.down.unsqueeze(1)
    upper = torch.lerp(*_take_pair(images.pixels, index, right), x_fraction)
    lower = torch.lerp(*_take_pair(images.pixels, index.add_(down), right), x_fraction)
    return upper.lerp_(lower, y_fraction)


def _take_pair(pixels: Tensor, index: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return _take(pixels, index).float(), _take(pixels, index + right).float()


def _split(position: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The lower of the two pixels around each position, and the weight of the upper one, (N, 1, ...)."""
    centred = position - 0.5
    lower = centred.floor().clamp_(min=0).minimum(last)
    return lower, centred.sub_(lower).clamp_(0, 1).unsqueeze(1)


def _channel_index(layout: Layout, left: Tensor, top: Tensor) -> Tensor:
    """(N, 3, H, W) positions in the flat buffer of the three channels of pixels (left, top)."""
    dtype = layout.offset.dtype
    row = top.to(dtype) * layout.width
    pixel = (row + left.to(dtype)).mul_(CHANNELS).add_(layout.offset)
    return pixel.unsqueeze(1) + torch.arange(CHANNELS, dtype=dtype, device=pixel.device).view(1, -1, 1, 1)


def _take(pixels: Tensor, index: Tensor) -> Tensor:
    # index_select, unlike the [] operator, takes 32-bit indices as they are; it is also the faster one.
    return pixels.index_select(0, index.view(-1)).view(index.shape)
