"""Bilinear sampling of images of different sizes.

Coordinates follow Pillow and PyTorch (``align_corners=False``): pixel i covers [i, i + 1) with its center at i + 0.5,
and an image of width W spans [0, W].
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from semifine.augment.image_batch import CHANNELS, ImageBatch, Layout

CPU_PIXELS = 65_536
"""Number of output pixels that the CPU samples at a time: intermediate results then fit into its cache."""


def sample_view(
    images: ImageBatch, x_axis: Tensor, y_axis: Tensor, maps: Tensor | None, size: int, dtype: torch.dtype
) -> Tensor:
    """Samples a view of each image.

    Args:
        images: N images.
        x_axis: (N, 4) positions of the columns of the crop: start, step, minimum, maximum.
        y_axis: (N, 4) positions of the rows.
        maps: (N, 2, 3) affine maps from crop coordinates to image coordinates; None is the identity.
        size: Side of the views.
        dtype: float32, or uint8 for rounded values.

    Returns:
        (N, 3, size, size) pixel values in 0..255.
    """
    if has_triton(images.device):
        from semifine.augment.triton import sampling  # optional: imports Triton

        return sampling.sample(images, x_axis, y_axis, maps, size, dtype)
    x, y = crop_coordinates(x_axis, y_axis, size, images.oversample)
    samples = sample_bilinear(images, *(apply_affine(maps, x, y) if maps is not None else (x, y)))
    values = samples if images.oversample == 1 else avg_pool2d(samples, images.oversample)
    return values if dtype.is_floating_point else values.add_(0.5).to(dtype)


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Whether Triton kernels can run on the device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def crop_coordinates(x_axis: Tensor, y_axis: Tensor, size: int, oversample: int = 1) -> tuple[Tensor, Tensor]:
    """Returns image coordinates (N, 1, S) and (N, S, 1) of the S = size * oversample samples along each axis."""
    steps = torch.arange(size * oversample, dtype=x_axis.dtype, device=x_axis.device)
    steps.add_(0.5).div_(oversample)
    return _positions(x_axis, steps).unsqueeze(1), _positions(y_axis, steps).unsqueeze(2)


def apply_affine(maps: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Maps positions x (N, 1, W), y (N, H, 1) by affine maps (N, 2, 3); both results are (N, H, W)."""
    rows = maps.view(-1, 2, 3, 1, 1).unbind(1)
    new_x, new_y = ((row[:, 0] * x + row[:, 2]) + row[:, 1] * y for row in rows)
    return new_x, new_y


def sample_bilinear(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    """Samples (N, 3, H, W) float32 values in 0..255; outside an image its border pixels repeat.

    ``x`` and ``y`` broadcast to (N, H, W): for a crop they are (N, 1, W) and (N, H, 1).
    """
    length = _images_at_a_time(images, y.shape[1] * x.shape[2])
    if length >= len(images):
        return _bilinear(images, x, y)
    chunks = [slice(start, start + length) for start in range(0, len(images), length)]
    return torch.cat([_bilinear(images.chunk(chunk), x[chunk], y[chunk]) for chunk in chunks])


def sample_nearest(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    """Like :func:`sample_bilinear`, but returns the nearest pixels, uint8."""
    layout = images.layout
    left = x.floor().clamp_(min=0).minimum(layout.width - 1)
    top = y.floor().clamp_(min=0).minimum(layout.height - 1)
    return _take(images.pixels, _channel_index(layout, left, top))


def _positions(axis: Tensor, steps: Tensor) -> Tensor:
    start, step, low, high = axis.unsqueeze(-1).unbind(1)
    return (start + step * steps).maximum(low).minimum(high)


def _images_at_a_time(images: ImageBatch, pixels: int) -> int:
    return max(1, CPU_PIXELS // pixels) if images.device.type == "cpu" else len(images)


def _bilinear(images: ImageBatch, x: Tensor, y: Tensor) -> Tensor:
    layout = images.layout
    left, x_weight = _lower_pixel(x, layout.last_left)
    top, y_weight = _lower_pixel(y, layout.last_top)
    index = _channel_index(layout, left, top)
    right, down = layout.right.unsqueeze(1), layout.down.unsqueeze(1)
    upper = torch.lerp(*_take_pair(images.pixels, index, right), x_weight)
    lower = torch.lerp(*_take_pair(images.pixels, index.add_(down), right), x_weight)
    return upper.lerp_(lower, y_weight)


def _take_pair(pixels: Tensor, index: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return _take(pixels, index).float(), _take(pixels, index + right).float()


def _lower_pixel(position: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the lower of the two pixels around each position, and the weight of the upper one, (N, 1, ...)."""
    centered = position - 0.5
    lower = centered.floor().clamp_(min=0).minimum(last)
    return lower, centered.sub_(lower).clamp_(0, 1).unsqueeze(1)


def _channel_index(layout: Layout, left: Tensor, top: Tensor) -> Tensor:
    """Returns (N, 3, H, W) indices into the flat buffer of the three channels of pixels (left, top)."""
    dtype = layout.offset.dtype
    row = top.to(dtype) * layout.width
    pixel = (row + left.to(dtype)).mul_(CHANNELS).add_(layout.offset)
    return pixel.unsqueeze(1) + torch.arange(CHANNELS, dtype=dtype, device=pixel.device).view(1, -1, 1, 1)


def _take(pixels: Tensor, index: Tensor) -> Tensor:
    # index_select is faster than indexing and accepts 32-bit indices without conversion.
    return pixels.index_select(0, index.view(-1)).view(index.shape)
