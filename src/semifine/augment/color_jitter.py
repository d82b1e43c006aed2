"""Color jitter and gray: brightness, contrast, saturation and hue, each sample in an order of its own.

What happens to a sample is a row of slots. All but hue are linear in the colors: a slot is then a (3, 3) matrix, and
for contrast also a share of the picture's mean gray. Values stay between 0 and 255 after every slot; they are not
rounded to whole levels in between, as Pillow would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semifine.augment.image_batch import BoolArray, FloatArray, IntArray, upload
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.sampling import has_kernels

GRAY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in luminance."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@dataclass(frozen=True)
class Jitter:
    """What happens to each of N pictures.

    ``order`` (N, 4) says which of the four operations comes in which slot, ``amount`` (N, 4) how strong each operation
    is: a factor, for hue a part of the color circle. ``is_on`` (N,) says whether they happen at all, ``is_gray`` (N,)
    whether the picture turns gray in the end.
    """

    order: IntArray
    amount: FloatArray
    is_on: BoolArray
    is_gray: BoolArray


def draw_jitter(random: BatchRandom, strength: float, hue: float, probability: float, gray: float) -> Jitter:
    """Factors in 1 +- ``strength``, hues in +- ``hue``; the last two are the chances of a jitter and of gray."""
    unit = 2 * random.uniform(4) - 1
    amount = unit * [strength, strength, strength, hue] + [1, 1, 1, 0]
    order = np.argsort(random.uniform(4), axis=1)
    chance = random.uniform(2)
    return Jitter(order, amount, is_on=chance[:, 0] < probability, is_gray=chance[:, 1] < gray)


def render_jitter(pictures: Tensor, jitter: Jitter) -> Tensor:
    """The changed pictures. Shapes: (N, 3, H, W) float32 in 0..255 -> the same."""
    if has_kernels(pictures.device):
        from semifine.augment.triton import color_jitter

        return color_jitter.jitter(pictures, jitter)
    matrices, gray_shares = _linear_slots(jitter)
    turned = [_samples_in(jitter, slot) for slot in range(4)]
    arrays = {"matrices": matrices, "shares": gray_shares, "gray": GRAY[None], "hue": jitter.amount[:, HUE]}
    sent = upload(arrays | {f"turned {slot}": samples for slot, samples in enumerate(turned)}, pictures.device)
    for slot in range(5):
        pictures = _apply_linear(pictures, sent["matrices"][:, slot], sent["shares"][:, slot], sent["gray"])
        if slot < 4 and len(turned[slot]):
            chosen = sent[f"turned {slot}"]
            hues = turn_hue(pictures.index_select(0, chosen), sent["hue"].index_select(0, chosen))
            pictures = pictures.index_copy(0, chosen, hues)
    return pictures


def turn_hue(pictures: Tensor, amount: Tensor) -> Tensor:
    """Turns the hue by ``amount`` (N,) of the circle; value and saturation stay. Shapes: (N, 3, H, W)."""
    value, chroma, sixth = _hue(pictures)
    offset = 5 - 2 * torch.arange(3, device=pictures.device).view(1, 3, 1, 1)
    k = (sixth + 6 * amount.view(-1, 1, 1, 1) + offset).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def _hue(pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest channel, span of the channels, and hue in sixths of the circle, each (N, 1, H, W)."""
    red, green, blue = pictures.split(1, dim=1)
    low, high = torch.aminmax(pictures, dim=1, keepdim=True)
    chroma = high - low
    span = torch.where(chroma > 0, chroma, 1)
    from_green = torch.where(high == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    return high, chroma, torch.where(high == red, (green - blue) / span, from_green)


def _linear_slots(jitter: Jitter) -> tuple[FloatArray, FloatArray]:
    """(N, 5, 3, 3) matrices of the four slots and of the gray at the end, and (N, 5) shares of the mean gray."""
    count = len(jitter.order)
    amount = np.take_along_axis(jitter.amount, jitter.order, axis=1)
    factor = np.where(jitter.is_on[:, None] & (jitter.order != HUE), amount, 1)
    factor = np.concatenate([factor, np.where(jitter.is_gray, 0, 1)[:, None]], axis=1)
    is_color = np.concatenate([jitter.order == SATURATION, np.ones((count, 1), dtype=np.bool_)], axis=1)
    luminance = np.where(is_color, 1 - factor, 0)[..., None, None] * np.tile(GRAY, (3, 1))
    is_contrast = np.concatenate([jitter.order == CONTRAST, np.zeros((count, 1), dtype=np.bool_)], axis=1)
    return factor[..., None, None] * np.eye(3) + luminance, np.where(is_contrast, 1 - factor, 0)


def _samples_in(jitter: Jitter, slot: int) -> IntArray:
    """The samples whose hue is turned in a slot, known on the host, so that only they are."""
    return np.flatnonzero(jitter.is_on & (jitter.order[:, slot] == HUE))


def _apply_linear(pictures: Tensor, matrix: Tensor, share: Tensor, gray: Tensor) -> Tensor:
    """clamp(M x + share * mean gray). Shapes: (N, 3, H, W), (N, 3, 3), (N,), (1, 3)."""
    mean_gray = (pictures.mean(dim=(2, 3)) * gray).sum(dim=1)
    shift = (share * mean_gray).view(-1, 1, 1)
    return torch.baddbmm(shift, matrix, pictures.flatten(2)).view(pictures.shape).clamp_(0, 255)
