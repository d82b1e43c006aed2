"""The colour operations of RandAugment, with Pillow's arithmetic.

Every operation takes (image, magnitude, reference): images (N, 3, H, W) as float32 that holds whole
numbers 0..255, magnitudes (N,), and references (N, 3, h, w). Operations that need statistics of the whole
picture take them from the reference, because the image itself may be a crop; with the image as its own
reference an operation gives what Pillow gives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ColourOperation = Callable[[Tensor, Tensor, Tensor], Tensor]
LEVELS = 256


def grey(image: Tensor) -> Tensor:
    """(N, 1, H, W) luminance as Pillow's ``convert("L")`` rounds it; exact, as all sums are below 2**24."""
    red, green, blue = image.unbind(1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768)
    return total.div_(65536).floor_().unsqueeze(1)


def blend(dull: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Pillow's enhancers: ``factor`` of the image, the rest from its dull form; fractions are cut off."""
    return (image - dull).mul_(_column(factor)).add_(dull).floor_()


def brightness(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Blends with black."""
    return (image * _column(magnitude)).floor_()


def color(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Blends with the grey image."""
    return blend(grey(image), image, magnitude)


def contrast(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:
    """Blends with the mean grey of the reference."""
    mean = grey(reference).mean(dim=(2, 3), keepdim=True).add_(0.5).floor_()
    return blend(mean, image, magnitude)


def sharpness(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Blends with the image smoothed by a 3 x 3 filter, whose border stays unfiltered.

    The filter works on the pixels given: in a view, on those of the view and not of the original.
    """
    if min(image.shape[-2:]) < 3:
        return image.clone()
    centre = image[:, :, 1:-1, 1:-1]
    columns = (image[:, :, :-2] + image[:, :, 1:-1]).add_(image[:, :, 2:])
    square = (columns[..., :-2] + columns[..., 1:-1]).add_(columns[..., 2:])
    smooth = square.add_(centre, alpha=4).div_(13).add_(0.5).floor_()
    result = image.clone()
    result[:, :, 1:-1, 1:-1] = blend(smooth, centre, magnitude)
    return result


def auto_contrast(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Stretches each channel so that the reference's darkest level becomes 0 and its brightest 255."""
    low, high = reference.amin(dim=(2, 3), keepdim=True), reference.amax(dim=(2, 3), keepdim=True)
    flat = high <= low
    stretched = (image - low).mul_(255).div_((high - low).clamp_(min=1)).floor_().clamp_(0, 255)
    return torch.where(flat, image, stretched)


def equalize(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Spreads the levels of each channel by the reference's histogram."""
    table = _equalize_table(_histogram(reference))
    return table.gather(2, image.flatten(2).long()).view(image.shape)


def posterize(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Keeps the highest ``magnitude`` bits of each value."""
    step = torch.exp2(8 - _column(magnitude).floor()).round_()
    return (image / step).floor_().mul_(step)


def solarize(image: Tensor, magnitude: Tensor, reference: Tensor) -> Tensor:  # noqa: ARG001
    """Inverts the values that reach the threshold."""
    return torch.where(image < _column(magnitude), image, 255 - image)


COLOUR: dict[str, ColourOperation] = {
    "AutoContrast": auto_contrast,
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Equalize": equalize,
    "Posterize": posterize,
    "Sharpness": sharpness,
    "Solarize": solarize,
}
STATISTICAL = ("AutoContrast", "Contrast", "Equalize")
"""The operations that look at their reference."""


def _column(magnitude: Tensor) -> Tensor:
    return magnitude.view(-1, 1, 1, 1)


def _histogram(image: Tensor) -> Tensor:
    """(N, 3, 256) counts. They are whole numbers: the order in which a GPU adds them does not matter."""
    counts = torch.zeros(*image.shape[:2], LEVELS, dtype=image.dtype, device=image.device)
    levels = image.flatten(2).long()
    one = torch.ones((), dtype=counts.dtype, device=image.device)
    return counts.scatter_add_(2, levels, one.expand_as(levels))


def _equalize_table(counts: Tensor) -> Tensor:
    """(N, 3, 256) new levels from (N, 3, 256) counts, by Pillow's recipe for whole numbers."""
    levels = torch.arange(LEVELS, dtype=counts.dtype, device=counts.device)
    running = counts.cumsum(dim=2)
    below, total = running - counts, running[..., -1:]
    # The number of pixels below the brightest level that occurs: the largest running count short of all.
    step = torch.where(running < total, running, 0).amax(dim=2, keepdim=True).div_(LEVELS - 1).floor_()
    spread = below.add_((step / 2).floor_()).div_(step.clamp(min=1)).floor_().clamp_(max=LEVELS - 1)
    # A step of zero (a single level, or too few pixels) leaves the channel as it is.
    return torch.where(step > 0, spread, levels)
