"""Color jitter, grayscale and Gaussian blur of the MoCo views.

Brightness, contrast and saturation are linear in the colors: each is a (3, 3) matrix, and contrast also adds a share of
the mean luminance. Values are clamped to 0..255 after every operation, but not rounded as in Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from semifine.augment.image_batch import BoolArray, FloatArray, IntArray, upload
from semifine.augment.random_numbers import BatchRandom

LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@dataclass(frozen=True)
class JitterParams:
    """Random parameters of the color jitter of N images."""

    order: IntArray
    """(N, 4) codes of the operations in the order in which they are applied."""
    amount: FloatArray
    """(N, 4) strength of each operation by code: a factor, for hue a fraction of the color circle."""
    is_on: BoolArray
    """(N,) whether the image is jittered."""
    is_gray: BoolArray
    """(N,) whether the image is converted to grayscale afterwards."""


def draw_jitter(
    random: BatchRandom, strength: float, hue: float, probability: float, gray_probability: float
) -> JitterParams:
    """Draws factors in 1 +- ``strength`` and hue shifts in +- ``hue``."""
    unit = 2 * random.uniform(4) - 1
    amount = unit * [strength, strength, strength, hue] + [1, 1, 1, 0]
    order = np.argsort(random.uniform(4), axis=1)
    draw = random.uniform(2)
    return JitterParams(order, amount, is_on=draw[:, 0] < probability, is_gray=draw[:, 1] < gray_probability)


def apply_jitter(images: Tensor, params: JitterParams) -> Tensor:
    """Applies the color jitter. Shapes: (N, 3, H, W) float32 in 0..255 -> the same."""
    matrices, gray_shares = _linear_operations(params)
    hue_rows = [np.flatnonzero(params.is_on & (params.order[:, step] == HUE)) for step in range(4)]
    arrays = {"matrices": matrices, "shares": gray_shares, "luminance": LUMINANCE[None], "hue": params.amount[:, HUE]}
    sent = upload(arrays | {f"hue rows {step}": rows for step, rows in enumerate(hue_rows)}, images.device)
    for step in range(5):
        images = _apply_linear(images, sent["matrices"][:, step], sent["shares"][:, step], sent["luminance"])
        if step < 4 and len(hue_rows[step]):
            rows = sent[f"hue rows {step}"]
            shifted = shift_hue(images.index_select(0, rows), sent["hue"].index_select(0, rows))
            images = images.index_copy(0, rows, shifted)
    return images


def shift_hue(images: Tensor, amount: Tensor) -> Tensor:
    """Shifts the hue by ``amount`` (N,) of the color circle; value and saturation stay. Shapes: (N, 3, H, W)."""
    value, chroma, sixth = _value_chroma_hue(images)
    offset = 5 - 2 * torch.arange(3, device=images.device).view(1, 3, 1, 1)
    k = (sixth + 6 * amount.view(-1, 1, 1, 1) + offset).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def _value_chroma_hue(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns largest channel, range of the channels, and hue in sixths of the color circle, each (N, 1, H, W)."""
    red, green, blue = images.split(1, dim=1)
    low, high = torch.aminmax(images, dim=1, keepdim=True)
    chroma = high - low
    divisor = torch.where(chroma > 0, chroma, 1)
    from_green = torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    return high, chroma, torch.where(high == red, (green - blue) / divisor, from_green)


def _linear_operations(params: JitterParams) -> tuple[FloatArray, FloatArray]:
    """Returns (N, 5, 3, 3) matrices of the operations and of grayscale, and (N, 5) shares of the mean luminance."""
    count = len(params.order)
    amount = np.take_along_axis(params.amount, params.order, axis=1)
    factor = np.where(params.is_on[:, None] & (params.order != HUE), amount, 1)
    factor = np.concatenate([factor, np.where(params.is_gray, 0, 1)[:, None]], axis=1)
    is_color = np.concatenate([params.order == SATURATION, np.ones((count, 1), dtype=np.bool_)], axis=1)
    luminance = np.where(is_color, 1 - factor, 0)[..., None, None] * np.tile(LUMINANCE, (3, 1))
    is_contrast = np.concatenate([params.order == CONTRAST, np.zeros((count, 1), dtype=np.bool_)], axis=1)
    return factor[..., None, None] * np.eye(3) + luminance, np.where(is_contrast, 1 - factor, 0)


def _apply_linear(images: Tensor, matrix: Tensor, share: Tensor, luminance: Tensor) -> Tensor:
    """clamp(M x + share * mean luminance). Shapes: (N, 3, H, W), (N, 3, 3), (N,), (1, 3)."""
    mean = (images.mean(dim=(2, 3)) * luminance).sum(dim=1)
    shift = (share * mean).view(-1, 1, 1)
    return torch.baddbmm(shift, matrix, images.flatten(2)).view(images.shape).clamp_(0, 255)


MAX_SIGMA = 2.0
"""Largest standard deviation of the blur in pixels."""
RADIUS = 6
"""Radius of all blur kernels, three times ``MAX_SIGMA``; it does not depend on the other samples of the batch."""


def gaussian_blur(images: Tensor, sigma: FloatArray) -> Tensor:
    """Blurs the images with ``sigma`` (N,) above 0; border pixels repeat outside, as in Pillow.

    Shapes: (N, 3, H, W) float32 -> the same.
    """
    rows = np.flatnonzero(sigma > 0)
    if not len(rows):
        return images
    sent = upload({"rows": rows, "kernel": gaussian_kernels(sigma[rows])}, images.device)
    return images.index_copy(0, sent["rows"], _convolve(images.index_select(0, sent["rows"]), sent["kernel"]))


def gaussian_kernels(sigma: FloatArray) -> FloatArray:
    """Returns (n, 2 * RADIUS + 1) normalized kernels for ``sigma`` (n,) in (0, MAX_SIGMA].

    Example::

        >>> gaussian_kernels(np.array([0.5])).round(2)[0, 4:9]
        array([0.  , 0.11, 0.79, 0.11, 0.  ])
    """
    assert sigma.max() <= MAX_SIGMA, "a larger sigma needs a larger radius"
    kernel = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / sigma[:, None]) ** 2)
    return np.asarray(kernel / kernel.sum(axis=1, keepdims=True))


def _convolve(images: Tensor, kernel: Tensor) -> Tensor:
    """Convolves along columns, then along rows; every channel of every image is a group."""
    count, channels, height, width = images.shape
    down = kernel.repeat_interleave(channels, dim=0)[:, None, :, None]
    planes = images.reshape(1, count * channels, height, width)
    for weight, padding in ((down, (0, 0, RADIUS, RADIUS)), (down.mT, (RADIUS, RADIUS, 0, 0))):
        planes = conv2d(pad(planes, padding, mode="replicate"), weight, groups=count * channels)
    return planes.view(images.shape)
