"""The colour operations of RandAugment, with Pillow's arithmetic.

Images are (N, 3, H, W) uint8, magnitudes (N,). Most operations change each value of a channel by itself:
they are tables (N, 3, 256) of new levels. Those that need statistics of the
whole picture take them from a reference (N, 3, h, w), because the image itself may be a crop; with the
image as its own reference an operation gives what Pillow gives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEVELS = 256


def change_colours(name: str, image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:
    """Any of the operations, on all images."""
    if name in MIXING:
        return MIXING[name](image, magnitude)
    return look_up(image, TABLES[name](magnitude, reference))


def look_up(image: Tensor, table: Tensor) -> Tensor:
    """Replaces every value by its entry in the (N, 3, 256) table of its channel."""
    return table.to(torch.uint8).gather(2, image.flatten(2).long()).view(image.shape)


def auto_contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Stretches each channel so that the reference's darkest level becomes 0 and its brightest 255."""
    low, high = (end.float() for end in torch.aminmax(reference.flatten(2), dim=2, keepdim=True))
    levels = _levels(magnitude)
    stretched = (levels - low).mul_(255).div_(high - low).floor_().clamp_(0, 255)
    return torch.where(high > low, stretched, levels)


def brightness(magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Blends with black."""
    return _all_channels((magnitude.view(-1, 1, 1) * _levels(magnitude)).floor_())


def contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Blends with the mean grey of the reference."""
    mean = grey(reference.float()).flatten(2).mean(dim=2, keepdim=True).add_(0.5).floor_()
    return _all_channels(blend(mean, _levels(magnitude), magnitude.view(-1, 1, 1)))


def equalize(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Spreads the levels of each channel by the reference's histogram, by Pillow's recipe."""
    counts = histogram(reference)
    running = counts.cumsum(dim=2)
    below, total = running - counts, running[..., -1:]
    # The number of pixels below the brightest level that occurs: the largest running count short of all.
    step = torch.where(running < total, running, 0).amax(dim=2, keepdim=True).div_(LEVELS - 1).floor_()
    spread = below.add_((step / 2).floor_()).div_(step).floor_().clamp_(max=LEVELS - 1)
    # A step of zero (a single level, or too few pixels) leaves the channel as it is.
    return torch.where(step > 0, spread, _levels(magnitude))


def posterize(magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Keeps the highest ``magnitude`` bits of each value."""
    step = torch.exp2(8 - magnitude.floor()).round_().view(-1, 1, 1)
    return _all_channels((_levels(magnitude) / step).floor_().mul_(step))


def solarize(magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Inverts the values that reach the threshold."""
    levels = _levels(magnitude)
    return _all_channels(torch.where(levels < magnitude.view(-1, 1, 1), levels, 255 - levels))


def color(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the grey image."""
    values = image.float()
    return blend(grey(values), values, magnitude.view(-1, 1, 1, 1)).to(torch.uint8)


def sharpness(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the image smoothed by a 3 x 3 filter, whose border stays unfiltered.

    The filter works on the pixels given: in a view, on those of the view and not of the original.
    """
    if min(image.shape[-2:]) < 3:
        return image.clone()
    values = image.float()
    centre = values[:, :, 1:-1, 1:-1]
    columns = (values[:, :, :-2] + values[:, :, 1:-1]).add_(values[:, :, 2:])
    square = (columns[..., :-2] + columns[..., 1:-1]).add_(columns[..., 2:])
    smooth = square.add_(centre, alpha=4).div_(13).add_(0.5).floor_()
    result = image.clone()
    result[:, :, 1:-1, 1:-1] = blend(smooth, centre, magnitude.view(-1, 1, 1, 1))
    return result


TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AutoContrast": auto_contrast,
    "Contrast": contrast,
    "Equalize": equalize,
    "Brightness": brightness,
    "Posterize": posterize,
    "Solarize": solarize,
}
"""(magnitude, reference) -> table; those that look at the reference come first."""
MIXING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"Color": color, "Sharpness": sharpness}
"""(image, magnitude) -> image, for the operations that mix the values of channels or pixels."""
COLOUR = (*TABLES, *MIXING)
STATISTICAL = ("AutoContrast", "Contrast", "Equalize")
"""The operations that look at their reference."""


def grey(image: Tensor) -> Tensor:
    """(N, 1, H, W) luminance, from float values, as Pillow's ``convert("L")`` rounds it.

    It is exact, as all sums are whole numbers below 2**24.
    """
    red, green, blue = image.unbind(1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768)
    return total.div_(65536).floor_().unsqueeze(1)


def blend(dull: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Pillow's enhancers: ``factor`` of the image, the rest from its dull form; fractions are cut off."""
    return (image - dull).mul_(factor).add_(dull).floor_()


def histogram(image: Tensor) -> Tensor:
    """(N, 3, 256) counts. They are whole numbers: the order in which a GPU adds them does not matter."""
    counts = torch.zeros(*image.shape[:2], LEVELS, device=image.device)
    levels = image.flatten(2).long()
    one = torch.ones((), device=image.device)
    return counts.scatter_add_(2, levels, one.expand_as(levels))


def _levels(like: Tensor) -> Tensor:
    """(256,) all levels."""
    return torch.arange(LEVELS, dtype=like.dtype, device=like.device)


def _all_channels(table: Tensor) -> Tensor:
    """(N, 3, 256) from a table (N, 1, 256) that is the same for all channels."""
    return table.expand(-1, 3, -1)
