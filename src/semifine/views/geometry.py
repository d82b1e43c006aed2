"""The geometric operations of RandAugment as affine maps.

A map is (N, 2, 3) and takes a position (x, y, 1) in the operation's output to the position in its input
that is shown there, in pixels of the true image. All samples share the operations' Pillow conventions:
the frame keeps its size, and what comes from outside is black.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Geometry = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def _affine(a: object, b: object, c: object, d: object, e: object, f: object) -> FloatArray:
    """Rows (a, b, c) and (d, e, f) from numbers and (N,) arrays."""
    entries = np.broadcast_arrays(*(np.asarray(entry, dtype=np.float64) for entry in (a, b, c, d, e, f)))
    return np.stack(entries, axis=-1).reshape(-1, 2, 3)


def identity(count: int) -> FloatArray:
    """(count, 2, 3) maps that move nothing."""
    return np.tile(np.eye(2, 3), (count, 1, 1))


def shear_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v y, y)."""
    return _affine(1, magnitude, 0, 0, 1, 0)


def shear_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v x)."""
    return _affine(1, 0, 0, magnitude, 1, 0)


def translate_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v width, y)."""
    return _affine(1, 0, magnitude * width, 0, 1, 0)


def translate_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v height)."""
    return _affine(1, 0, 0, 0, 1, magnitude * height)


def rotate(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:
    """Turns the picture by v degrees counter-clockwise about its centre."""
    cos, sin = np.cos(np.deg2rad(magnitude)), np.sin(np.deg2rad(magnitude))
    x, y = width / 2, height / 2
    return _affine(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


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
    """The same maps in other units: lengths times a scale, (N, 2) for x and y, on each of their sides."""
    columns = np.concatenate([1 / output_scale, np.ones((len(maps), 1))], axis=1)
    scaled: FloatArray = maps * input_scale[:, :, None] * columns[:, None, :]
    return scaled
