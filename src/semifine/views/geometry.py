"""The geometric operations of RandAugment as affine maps.

A map is (N, 2, 3) and takes a position (x, y, 1) in the operation's output to the position in its input
that is shown there, in pixels of the true image. All samples share the operations' Pillow conventions:
the frame keeps its size, and what comes from outside is black.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semifine.views.arrays import FloatArray

Geometry = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def identity(count: int) -> FloatArray:
    """(count, 2, 3) maps that move nothing."""
    maps = np.zeros((count, 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1
    return maps


def shear_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v y, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 1] = magnitude
    return maps


def shear_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v x)."""
    maps = identity(len(magnitude))
    maps[:, 1, 0] = magnitude
    return maps


def translate_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v width, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 2] = magnitude * width
    return maps


def translate_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v height)."""
    maps = identity(len(magnitude))
    maps[:, 1, 2] = magnitude * height
    return maps


def rotate(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:
    """Turns the picture by v degrees counter-clockwise about its centre."""
    maps = identity(len(magnitude))
    cos, sin = np.cos(np.deg2rad(magnitude)), np.sin(np.deg2rad(magnitude))
    maps[:, 0, 0], maps[:, 0, 1] = cos, -sin
    maps[:, 1, 0], maps[:, 1, 1] = sin, cos
    centre = np.stack([width, height], axis=1) / 2
    maps[:, :, 2] = centre - (maps[:, :, :2] @ centre[:, :, None])[:, :, 0]
    return maps


GEOMETRY: dict[str, Geometry] = {
    "Rotate": rotate,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
}


def compose(outer: FloatArray, inner: FloatArray) -> FloatArray:
    """The map that applies ``inner`` first and ``outer`` to its result."""
    composed: FloatArray = outer[:, :, :2] @ inner
    composed[:, :, 2] += outer[:, :, 2]
    return composed


def rescale(maps: FloatArray, input_scale: FloatArray, output_scale: FloatArray) -> FloatArray:
    """The same maps in other units: lengths times a scale, (N, 2) for x and y, on each of their sides.

    Maps are (..., N, 2, 3).
    """
    scaled: FloatArray = maps * input_scale[:, :, None]
    scaled[..., :2] *= (1 / output_scale)[:, None, :]
    return scaled
