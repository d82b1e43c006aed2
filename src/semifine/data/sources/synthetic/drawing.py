"""Draws the animals of the synthetic data set: a canvas, random numbers and four body plans.

All functions draw a batch of images. A shape is a signed distance at each pixel, `(images, pixels)`, negative inside.
Its edge is smoothed over one pixel, and all shapes of an image are composited in one matrix product. Values that differ
between images are `(images, 1)` arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Number = Array | float
Keys = NDArray[np.uint64]
Traits = dict[str, Array]
"""`(images, 1)` for each trait: 1 if the species of the image has it, else 0."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def image_keys(*parts: NDArray[np.int64]) -> Keys:
    """Hashes the integers that identify an image to its key, which determines all its random numbers.

    Args:
        parts: `(images,)` integers, such as seed and number.

    Returns:
        `(images,)` keys.
    """
    keys = np.zeros(parts[0].shape, np.uint64)
    for part in parts:
        keys = _mix((keys ^ part.astype(np.uint64)) + _GOLDEN)
    return keys


def _mix(state: Keys) -> Keys:
    """Maps similar inputs to unrelated outputs (the finalizer of SplitMix64)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class RandomNumbers:
    """Random numbers that depend only on the key of an image. Each call returns the next number of each image.

    A NumPy generator per image would take longer than the drawing. With one generator for all images, an image would
    depend on the images drawn before it.

    Args:
        keys: `(images,)` keys.
    """

    def __init__(self, keys: Keys) -> None:
        # 80 numbers per image are enough; one more call raises StopIteration.
        states = keys[:, None] + np.arange(1, 81, dtype=np.uint64) * _GOLDEN
        units = (_mix(states) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        self._units = iter(np.ascontiguousarray(units.T)[:, :, None])

    def __call__(self, low: float, high: float) -> Array:
        """Uniform numbers between low and high, `(images, 1)`."""
        return low + (high - low) * next(self._units)


def hsv(hue: Number, saturation: Number, value: Array) -> Array:
    """Converts HSV to `(images, 3)` RGB; all values are between 0 and 1."""
    turn = (np.array([5, 3, 1], np.float32) + hue * 6) % 6
    return value * (1 - np.clip(saturation, 0, 1) * np.clip(np.minimum(turn, 4 - turn), 0, 1))


def draw_background(side: int, random: RandomNumbers) -> Array:
    """Draws `(images, 3, pixels)` backgrounds: a gradient, soft blobs and waves in random muted colors.

    Each element is the product of a vertical and a horizontal profile, so one matrix product draws all of them.
    """
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    base = hsv(random(0, 1), random(0.05, 0.45), random(0.45, 0.9))
    flat = np.ones((len(base), side), np.float32)

    def gray_and_hue() -> Array:
        return random(-0.12, 0.12) + np.concatenate([random(-0.1, 0.1) for _ in "rgb"], axis=1)

    def blob() -> Array:
        return np.exp(-(((axis - random(-1, 1)) / random(0.3, 0.9)) ** 2))

    def wave() -> Array:
        return np.sin(axis * random(2, 14) + random(0, 6))

    tints = [base, gray_and_hue(), gray_and_hue(), gray_and_hue() * 0.2]
    down = [flat, flat * axis, flat, wave()]
    across = [flat, flat, flat * axis, wave()]
    for _ in range(4):
        color = hsv(random(0, 1), random(0.1, 0.5), random(0.3, 1.0))
        tints.append((color - base) * random(0.3, 0.9))
        down.append(blob())
        across.append(blob())
    tinted = np.stack(tints, axis=2)[:, :, None, :] * np.stack(down, axis=2)[:, None]
    return (tinted @ np.stack(across, axis=1)[:, None]).reshape(len(base), 3, -1)


class Canvas:
    """Pixel coordinates of a batch of images, and the shapes drawn so far.

    An animal spans about -1 to 1; x increases to the right and y downwards. Rotation, flip, size, position and shear
    are random. Shapes with ``mirrored`` appear on both sides of x = 0.

    Args:
        side: Width and height of the images.
        random: Random numbers of the images.
    """

    def __init__(self, side: int, random: RandomNumbers) -> None:
        self.random = random
        turn, slant, size = random(-0.35, 0.35), random(-0.12, 0.12), random(0.7, 0.94)
        flip = np.where(random(0, 1) < 0.5, np.float32(-1), np.float32(1))
        axis = (np.arange(side, dtype=np.float32) + 0.5) * np.float32(2 / side) - 1
        across, down = (axis - random(-0.13, 0.13)) / size, (axis - random(-0.13, 0.13)) / size
        cos, sin = np.cos(turn), np.sin(turn)
        self.x = _plane(flip * cos * across, (flip * sin + slant) * down)
        self.y = _plane(-sin * across, cos * down)
        self._both_sides = np.abs(self.x)
        self._pixel = 2 / (size * side)
        self._opacities: list[Array] = []
        self._colors: list[Array] = []
        self._outline: Array | None = None

    def move(self, x: float, y: float) -> None:
        """Shifts the shapes that follow, to center an animal with long extremities."""
        self.x -= x
        self.y -= y
        self._both_sides = np.abs(self.x)

    def ellipse(
        self, x: Number, y: Number, rx: Number, ry: Number, turn: Number = 0.0, mirrored: bool = False
    ) -> Array:
        """Approximate distance to an ellipse with radii rx and ry, rotated clockwise; accurate at the edge."""
        dx, dy = self._offset(x, y, mirrored)
        if not isinstance(turn, float) or turn != 0.0:
            angle = np.float32(turn)  # a Python float would give float64 arrays
            cos, sin = np.cos(angle), np.sin(angle)
            dx, dy = cos * dx + sin * dy, cos * dy - sin * dx
        dx *= 1 / rx
        dy *= 1 / ry
        return _length(dx, dy, np.sqrt(np.float32(rx * ry)))

    def taper(
        self, x0: Number, y0: Number, x1: Number, y1: Number, r0: Number, r1: Number, mirrored: bool = False
    ) -> Array:
        """Distance to a line between two points whose half width changes from r0 to r1."""
        dx, dy = self._offset(x0, y0, mirrored)
        ex, ey = x1 - x0, y1 - y0
        scale = 1 / (ex * ex + ey * ey + 1e-9)  # both points may be equal
        along = dx * (ex * scale)
        along += dy * (ey * scale)
        np.clip(along, 0, 1, out=along)
        dx -= along * ex
        dy -= along * ey
        dx *= dx
        dy *= dy
        dx += dy
        np.sqrt(dx, out=dx)
        along *= r1 - r0
        along += r0
        dx -= along
        return dx

    def spots(
        self, x: Number, y: Number, radius: Number, columns: int, rows: int, step: float, mirrored: bool = False
    ) -> Array:
        """Distance to a grid of discs; the first one is at (x, y)."""
        dx, dy = self._offset(x, y, mirrored)
        for offset, count in ((dx, columns), (dy, rows)):
            if count > 1:
                offset -= np.clip(np.rint(offset / step), 0, count - 1) * step
        return _length(dx, dy, 1.0) + (1 - radius)

    def stripes(self, at: Number, half: Number, count: int = 1, step: float = 1.0, level: bool = False) -> Array:
        """Distance to vertical stripes, the first one at x = ``at``; with ``level``, horizontal ones at y = ``at``."""
        offset = (self.y if level else self.x) - at
        if count > 1:
            offset -= np.clip(np.rint(offset / step), 0, count - 1) * step
        return np.abs(offset, out=offset) - half

    def side_stripes(self, at: Number, half: Number) -> Array:
        """Distance to one vertical stripe on each side."""
        return np.abs(self._both_sides - at) - half

    def add(
        self,
        distance: Array,
        color: Array,
        shown: Number = 1.0,
        within: Array | None = None,
        soft: float = 0.0,
        outlined: bool = False,
    ) -> None:
        """Adds a shape on top.

        Args:
            distance: `(images, pixels)` distance to the shape.
            color: `(images, 3)`.
            shown: Opacity.
            within: Distance to another shape that clips it.
            soft: Width of a soft edge.
            outlined: Include the shape in the outline of the animal.
        """
        if within is not None:
            distance = np.maximum(distance, within)
        if outlined:
            self._outline = distance if self._outline is None else np.minimum(self._outline, distance)
        self._opacities.append(self._cover(distance, soft) * shown)
        self._colors.append(color)

    def render(self, background: Array, outline_color: Array) -> Array:
        """Composites the shapes and an outline over `(images, 3, pixels)` backgrounds."""
        opacities, colors = self._opacities, self._colors
        if self._outline is not None:
            opacities, colors = [self._cover(self._outline - 0.035), *opacities], [outline_color, *colors]
        weights = np.empty((len(outline_color), len(opacities), background.shape[2]), np.float32)
        transmittance = np.ones_like(opacities[0])
        for layer in reversed(range(len(opacities))):
            np.multiply(opacities[layer], transmittance, out=weights[:, layer])
            transmittance -= weights[:, layer]
        return np.stack(colors, axis=2) @ weights + transmittance[:, None] * background

    def _offset(self, x: Number, y: Number, mirrored: bool) -> tuple[Array, Array]:
        return (self._both_sides if mirrored else self.x) - x, self.y - y

    def _cover(self, distance: Array, soft: float = 0.0) -> Array:
        """The part of each pixel inside a shape; an edge is one pixel wide, plus ``soft``."""
        cover = distance * (-1 / (self._pixel + soft))
        cover += 0.5
        return np.clip(cover, 0, 1, out=cover)


def _plane(across: Array, down: Array) -> Array:
    return (across[:, None, :] + down[:, :, None]).reshape(len(across), -1)


def _length(dx: Array, dy: Array, scale: Number) -> Array:
    """Computes (|d| - 1) * scale in place."""
    dx *= dx
    dy *= dy
    dx += dy
    np.sqrt(dx, out=dx)
    dx -= 1
    dx *= scale
    return dx


@dataclass(frozen=True)
class Palette:
    """The colors of a batch of animals, `(images, 3)` each."""

    main: Array
    dark: Array
    light: Array
    accent: Array
    mark: Array
    outline: Array


Build = Sequence[float]
BodyPlan = Callable[[Canvas, Build, Palette, Traits], None]


def bird(c: Canvas, build: Build, palette: Palette, traits: Traits) -> None:
    """Draws a bird from the side, looking right.

    Build: body length, body depth, head radius, length of legs and tail.

    Traits: rostrata (long beak), cristata (crest), furcata (forked tail), fasciata (bars on the wing),
    guttata (spots on the breast), torquata (collar), pileata (cap), oculata (wide eye ring).
    """
    length, depth, head, limb = build
    c.move(-0.16, -0.05)
    vary = c.random
    head_x, head_y = 0.4 * length + 0.12 + vary(-0.04, 0.04), -0.2 - depth * 0.5 + vary(-0.04, 0.04)
    for hip in (0.02, 0.18):
        foot = hip + vary(-0.06, 0.04)
        c.add(c.taper(hip, 0.2, foot, 0.1 + depth + limb, 0.035, 0.025), palette.accent, outlined=True)
    tail, fork = 0.16 + vary(-0.12, 0.1), 0.02 + 0.26 * traits.get("furcata", 0.0)
    for way in (-1, 1):
        feather = c.taper(-0.4 * length, 0.14, -0.55 - 0.8 * limb, tail + way * fork, 0.1, 0.08)
        c.add(feather, palette.dark, outlined=True)
    bill = traits.get("rostrata", 0.0)
    beak = head_x + head + 0.14 + 0.34 * bill + vary(-0.03, 0.03)
    c.add(
        c.taper(head_x, head_y, beak, head_y + 0.08, 0.13 + 0.04 * bill, 0.015 + 0.06 * bill),
        palette.accent,
        outlined=True,
    )
    if (crest := traits.get("cristata")) is not None:
        tip_x, tip_y = head_x - head - 0.22 * crest, head_y - (head + 0.2) * crest
        c.add(c.taper(head_x, head_y, tip_x, tip_y, 0.13, 0.03), palette.dark, outlined=True)
    trunk = c.ellipse(0.0, 0.1, 0.55 * length, depth, -0.25)
    body = np.minimum(trunk, c.taper(0.2 * length, 0.0, head_x, head_y, depth * 0.7, head))
    c.add(body, palette.main, outlined=True)
    belly = c.ellipse(0.16, 0.12 + depth * 0.6, 0.4 * length, depth * 0.55)
    c.add(belly, palette.light, 0.75, within=body, soft=0.15)
    if (collar := traits.get("torquata")) is not None:
        ribbon = c.taper(head_x - 0.42, head_y + 0.12, head_x + 0.3, head_y + 0.42, 0.07, 0.07)
        c.add(ribbon, palette.mark, collar, within=body)
    if (breast := traits.get("guttata")) is not None:
        c.add(c.spots(0.12 + vary(-0.03, 0.03), 0.1, 0.075, 3, 3, 0.2), palette.mark, breast, within=body)
    if (cap := traits.get("pileata")) is not None:
        c.add(c.ellipse(head_x, head_y - head, head * 1.3, head * 0.9), palette.mark, cap, within=body)
    wing = c.ellipse(-0.16 + vary(-0.03, 0.03), 0.06, 0.42 * length, depth * 0.55, -0.2 + vary(-0.2, 0.1))
    c.add(wing, palette.dark)
    if (bars := traits.get("fasciata")) is not None:
        c.add(c.stripes(-0.3 + vary(-0.04, 0.04), 0.055, 2, 0.24), palette.mark, bars, within=wing)
    _eye(c, head_x + 0.05, head_y - 0.03, palette, traits)


def fish(c: Canvas, build: Build, palette: Palette, traits: Traits) -> None:
    """Draws a fish from the side, swimming right.

    Build: body length, body depth, height of the fins, height of the tail.

    Traits: velata (high fin), lunata (crescent tail), barbata (barbel), fasciata (vertical stripes),
    lineata (line along the flank), punctata (spotted), ocellata (eyespot before the tail), oculata (eye ring).
    """
    length, depth, fin, tail = build
    vary = c.random
    sway, rear, crescent = vary(-0.1, 0.1), -0.62 * length, traits.get("lunata", 0.0)
    fan = c.ellipse(rear - 0.16, sway, 0.2 * (1 - 0.6 * crescent), tail * 0.85)
    c.add(fan, palette.accent, outlined=True)
    for way in (-1, 1):
        tip_x, tip_y = rear - 0.12 - 0.3 * crescent, sway + way * tail * (0.4 + 1.0 * crescent)
        c.add(c.taper(rear, sway, tip_x, tip_y, 0.1, 0.05), palette.accent, outlined=True)
    back = c.ellipse(-0.05 + vary(-0.04, 0.04), -depth * 0.8, 0.32, fin + 0.36 * traits.get("velata", 0.0), 0.15)
    c.add(back, palette.accent, outlined=True)
    c.add(c.ellipse(-0.1, depth * 0.85, 0.18, fin * 0.7, -0.3), palette.accent, outlined=True)
    if (barbel := traits.get("barbata")) is not None:
        chin = 0.62 * length
        whisker = c.taper(chin, 0.1, chin + 0.12 * barbel, 0.1 + 0.5 * barbel, 0.08, 0.06)
        c.add(whisker, palette.accent, outlined=True)
    trunk = c.ellipse(0.12, 0.0, 0.64 * length, depth)
    body = np.minimum(trunk, c.taper(-0.1, 0.0, rear - 0.05, sway, depth * 0.75, 0.08))
    c.add(body, palette.main, outlined=True)
    belly = c.ellipse(0.15, depth * 0.8, 0.55 * length, depth * 0.6)
    c.add(belly, palette.light, 0.7, within=body, soft=0.15)
    shift = vary(-0.04, 0.04)
    if (bars := traits.get("fasciata")) is not None:
        c.add(c.stripes(-0.3 + shift, 0.065, 3, 0.28), palette.mark, bars, within=body)
    if (line := traits.get("lineata")) is not None:
        c.add(c.stripes(shift, 0.07, level=True), palette.mark, line, within=body)
    if (dots := traits.get("punctata")) is not None:
        c.add(c.spots(-0.28 + shift, -0.14, 0.075, 3, 2, 0.26), palette.mark, dots, within=body)
    if (spot := traits.get("ocellata")) is not None:
        _eyespot(c, -0.36 + shift, sway * 0.5, palette, spot)
    c.add(c.ellipse(0.12, depth * 0.35, 0.16, 0.09, 0.5 + vary(-0.3, 0.3)), palette.accent)
    _eye(c, 0.12 + 0.4 * length, -0.08, palette, traits)


def beetle(c: Canvas, build: Build, palette: Palette, traits: Traits) -> None:
    """Draws a beetle from above, head up.

    Build: half length and half width of the elytra, half width of the shield, reach of the legs.

    Traits: cornuta (horn), antennata (long antennae), scutata (pale shield), fasciata (band across the
    elytra), vittata (stripes along them), punctata (spots on them), limbata (rim around them).
    """
    length, width, shield, reach = build
    c.move(0.0, 0.1)
    vary = c.random
    for hip, foot in ((-0.32, -0.62), (0.1, 0.12), (0.4, 0.78)):
        end_x, end_y = width + reach + vary(-0.06, 0.06), foot + vary(-0.08, 0.08)
        c.add(c.taper(width * 0.6, hip, end_x, end_y, 0.05, 0.03, mirrored=True), palette.outline)
    club = traits.get("antennata", 0.0)
    feeler = 0.14 + 0.26 * club
    tip = 0.1 + feeler + vary(-0.03, 0.03)
    c.add(c.taper(0.08, -0.66, tip, -0.7 - feeler, 0.03, 0.04 + 0.06 * club, mirrored=True), palette.outline)
    if (horn := traits.get("cornuta")) is not None:
        c.add(c.taper(0.0, -0.6, vary(-0.03, 0.03), -0.7 - 0.36 * horn, 0.13, 0.06), palette.accent, outlined=True)
    c.add(c.ellipse(0.0, -0.6, shield * 0.62, 0.18), palette.dark, outlined=True)
    plate = c.ellipse(0.0, -0.38, shield, 0.24)
    c.add(plate, palette.dark, outlined=True)
    if (pale := traits.get("scutata")) is not None:
        c.add(c.ellipse(0.0, -0.4, shield * 0.75, 0.15), palette.mark, pale, within=plate)
    wings = c.ellipse(0.0, 0.24, width, length)
    c.add(wings, palette.main, outlined=True)
    gloss = c.ellipse(-width * 0.4, 0.0, width * 0.35, length * 0.5, 0.2)
    c.add(gloss, palette.light, 0.5, within=wings, soft=0.2)
    shift = vary(-0.04, 0.04)
    if (band := traits.get("fasciata")) is not None:
        c.add(c.stripes(0.2 + shift, 0.08, level=True), palette.mark, band, within=wings)
    if (lines := traits.get("vittata")) is not None:
        c.add(c.side_stripes(width * 0.5 + shift * 0.5, 0.06), palette.mark, lines, within=wings)
    if (dots := traits.get("punctata")) is not None:
        pairs = c.spots(width * 0.5, shift, 0.095, 1, 2, 0.42, mirrored=True)
        c.add(pairs, palette.mark, dots, within=wings)
    if (rim := traits.get("limbata")) is not None:
        c.add(-0.1 - wings, palette.mark, rim, within=wings)
    c.add(c.taper(0.0, -0.2, 0.0, 0.24 + length, 0.016, 0.016), palette.outline, 0.8, within=wings)


def butterfly(c: Canvas, build: Build, palette: Palette, traits: Traits) -> None:
    """Draws a butterfly from above, head up.

    Build: half span and half width of the forewings, hindwing radius, forewing angle.

    Traits: caudata (tails on the hindwings), antennata (long antennae), fasciata (band on the forewings),
    ocellata (eyespot on them), limbata (rim around them), punctata (spots on the hindwings).
    """
    span, chord, hind, angle = build
    vary = c.random
    spread, shift = vary(-0.1, 0.1), vary(-0.03, 0.03)
    if (tails := traits.get("caudata")) is not None:
        streamer = c.taper(0.35, 0.4, 0.42 + vary(-0.04, 0.04), 0.5 + 0.46 * tails, 0.12, 0.07, mirrored=True)
        c.add(streamer, palette.dark, outlined=True)
    lower = c.ellipse(0.36, 0.32, hind, hind * 0.85, 0.7 - spread, mirrored=True)
    c.add(lower, palette.dark, outlined=True)
    upper = c.ellipse(0.08 + span * 0.8, -0.22, span, chord, angle + spread, mirrored=True)
    c.add(upper, palette.main, outlined=True)
    gloss = c.ellipse(0.2, -0.1, span * 0.6, chord * 0.7, angle, mirrored=True)
    c.add(gloss, palette.light, 0.5, within=upper, soft=0.2)
    if (band := traits.get("fasciata")) is not None:
        c.add(c.side_stripes(0.5 + shift, 0.07), palette.mark, band, within=upper)
    if (rim := traits.get("limbata")) is not None:
        c.add(-0.1 - upper, palette.mark, rim, within=upper)
    if (spot := traits.get("ocellata")) is not None:
        _eyespot(c, 0.5 + shift, -0.28 + shift, palette, spot, mirrored=True)
    if (dots := traits.get("punctata")) is not None:
        c.add(c.spots(0.26 + shift, 0.36, 0.075, 2, 1, 0.24, mirrored=True), palette.mark, dots, within=lower)
    c.add(c.taper(0.0, -0.36, vary(-0.03, 0.03), 0.45, 0.09, 0.05), palette.outline)
    club = traits.get("antennata", 0.0)
    feeler = 0.2 + 0.2 * club
    tip = c.taper(0.03, -0.36, 0.05 + feeler * 0.8, -0.45 - feeler, 0.02, 0.04 + 0.06 * club, mirrored=True)
    c.add(tip, palette.outline)


def _eye(c: Canvas, x: Number, y: Number, palette: Palette, traits: Traits) -> None:
    """Draws an eye."""
    ring = 0.085 + 0.07 * traits.get("oculata", 0.0)
    c.add(c.ellipse(x, y, ring, ring), np.ones_like(palette.main))
    c.add(c.ellipse(x, y, 0.055, 0.055), palette.outline)


def _eyespot(c: Canvas, x: Number, y: Number, palette: Palette, shown: Array, mirrored: bool = False) -> None:
    """Draws a disc in the color of the markings with a center of contrasting brightness."""
    center = np.where(palette.mark.mean(axis=1, keepdims=True) < 0.5, palette.light, palette.outline)
    c.add(c.ellipse(x, y, 0.15, 0.15, mirrored=mirrored), palette.mark, shown)
    c.add(c.ellipse(x, y, 0.07, 0.07, mirrored=mirrored), center, shown)
