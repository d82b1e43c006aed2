"""Sampling of images of different sizes at real-valued coordinates.

Coordinates are Pillow's and torch's (``align_corners=False``): pixel i covers [i, i + 1), its center is
i + 0.5, and an image of width W spans [0, W].
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from semifine.augment.image_batch import CHANNELS, ImageBatch, Layout

CPU_PIXELS = 65_536
"""How many pixels the CPU samples at a time."""


def sample_view(
    images: ImageBatch, x_line: Tensor, y_line: Tensor, maps: Tensor | None, size: int, dtype: torch.dtype
) -> Tensor:
    """Views (N, 3, size, size) in 0..255, float32, or uint8 by rounding.

    Lines (N, 4) say where the crop's columns and rows lie; ``maps`` (N, 2, 3) lead from there to the image.
    """
    if has_kernels(images.device):
        from semifine.augment.triton import sampling

        return sampling.sample(images, x_line, y_line, maps, size, dtype)
    x, y = crop_coordinates(x_line, y_line, size, images.oversample)
    samples = sample_bilinear(images, *(transform(maps, x, y) if maps is not None else (x, y)))
    values = pool(samples, images.oversample)
    return values if dtype.is_floating_point else values.add_(0.5).to(dtype)


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton is there, which compiles the sampling of a GPU."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def crop_coordinates(x_line: Tensor, y_line: Tensor, size: int, oversample: int = 1) -> tuple[Tensor, Tensor]:
    """Image coordinates (N, 1, S) and (N, S, 1) of the S = size * oversample positions along each axis."""
    steps = torch.arange(size * oversample, dtype=x_line.dtype, device=x_line.device)
    steps.add_(0.5).div_(oversample)
    return _positions(x_line, steps).unsqueeze(1), _positions(y_line, steps).unsqueeze(2)


def transform(maps: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sends positions x (N, 1, W), y (N, H, 1) through maps (N, 2, 3); both results are (N, H, W)."""
    rows = maps.view(-1, 2, 3, 1, 1).unbind(1)
    new_x, new_y = ((row[:, 0] * x + row[:, 2]) + row[:, 1] * y for row in rows)
    return new_x, new_y


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


def _positions(line: Tensor, steps: Tensor) -> Tensor:
    start, step, low, high = line.unsqueeze(-1).unbind(1)
    return (start + step * steps).maximum(low).minimum(high)


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
    centered = position - 0.5
    lower = centered.floor().clamp_(min=0).minimum(last)
    return lower, centered.sub_(lower).clamp_(0, 1).unsqueeze(1)


def _channel_index(layout: Layout, left: Tensor, top: Tensor) -> Tensor:
    """(N, 3, H, W) positions in the flat buffer of the three channels of pixels (left, top)."""
    dtype = layout.offset.dtype
    row = top.to(dtype) * layout.width
    pixel = (row + left.to(dtype)).mul_(CHANNELS).add_(layout.offset)
    return pixel.unsqueeze(1) + torch.arange(CHANNELS, dtype=dtype, device=pixel.device).view(1, -1, 1, 1)


def _take(pixels: Tensor, index: Tensor) -> Tensor:
    # index_select, unlike the [] operator, takes 32-bit indices as they are; it is also the faster one.
    return pixels.index_select(0, index.view(-1)).view(index.shape)
