"""Draws little creatures for the synthetic data set: genera differ in build, species in one or two marks.

Everything is computed for a batch of images of one genus at once. A shape is a signed distance (negative
inside, in creature units) for each pixel, its edge is smoothed over one pixel, and all shapes of an image
are laid over each other in a single matrix product. All quantities that differ between images are
``(images, 1)`` arrays, so that they broadcast against ``(images, pixels)`` fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWING_VERSION = 1
"""Raise it whenever the same key would give other pixels: stored copies of the images become invalid."""

Array = NDArray[np.float32]
Number = Array | float
Colour = Array
"""(images, 3) RGB in 0..1."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BATCH = 16  # fields of 16 images at 48 px stay in the processor's cache


# ------------------------------------------------------------------------------------------------ chance


def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit integers (the finaliser of SplitMix64), so that near inputs give unrelated outputs."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def image_keys(*parts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One key an image from the integers that identify it; all that is random in it follows from its key."""
    key = np.zeros(parts[0].shape, np.uint64)
    for part in parts:
        key = mix((key ^ part.astype(np.uint64)) + _GOLDEN)
    return key


class Chance:
    """Random numbers, one an image and call, that depend on the image's key and on nothing else."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._state = keys.copy()

    def __call__(self, low: float, high: float) -> Array:
        """Uniform in [low, high), as (images, 1)."""
        self._state = self._state + _GOLDEN
        unit = (mix(self._state) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return (low + (high - low) * unit)[:, None]

    def many(self, count: int, low: float, high: float) -> Array:
        """Several at once, as (images, count)."""
        return np.concatenate([self(low, high) for _ in range(count)], axis=1)


def hsv(hue: Array, saturation: Array, value: Array) -> Colour:
    """RGB of (images, 1) hue, saturation and value; hue turns once from 0 to 1."""
    turn = (np.array([5, 3, 1], np.float32) + hue * 6) % 6
    return value * (1 - np.clip(saturation, 0, 1) * np.clip(np.minimum(turn, 4 - turn), 0, 1))


# ---------------------------------------------------------------------------------------------- the easel


class Canvas:
    """Pixels of a batch of images in creature coordinates, and the shapes laid on them so far.

    A creature spans about -1..1 in both directions; x grows towards the right, y downwards.
    """

    def __init__(self, side: int, chance: Chance) -> None:
        self.chance = chance
        self.side = side
        axis = ((np.arange(side, dtype=np.float32) + 0.5) / side * 2 - 1) * np.float32(1.0)
        turn, scale, shear = chance(-0.35, 0.35), chance(0.72, 0.98), chance(-0.12, 0.12)
        mirror = np.sign(chance(-1, 1)) + np.float32(0)
        across = (axis[None, :] - chance(-0.13, 0.13)) / scale
        down = (axis[None, :] - chance(-0.13, 0.13)) / scale
        cos, sin = np.cos(turn), np.sin(turn)
        self.x = self._plane(mirror * (cos * across), mirror * (sin * down) + shear * down)
        self.y = self._plane(-sin * across, cos * down)
        self.per_pixel = scale * np.float32(side / 2)
        self._alphas: list[Array] = []
        self._colours: list[Colour] = []
        self._outline: Array | None = None

    def _plane(self, across: Array, down: Array) -> Array:
        return (across[:, None, :] + down[:, :, None]).reshape(len(across), -1)

    def ellipse(self, x: Number, y: Number, rx: Number, ry: Number, turn: Number = 0.0, mirrored: bool = False) -> Array:
        """Distance to an ellipse, turned clockwise; nearly exact at its edge, which is all that is seen."""
        dx, dy = (np.abs(self.x) if mirrored else self.x) - x, self.y - y
        if not isinstance(turn, float) or turn != 0.0:
            cos, sin = np.cos(turn), np.sin(turn)
            dx, dy = cos * dx + sin * dy, cos * dy - sin * dx
        dx, dy = dx * (1 / rx), dy * (1 / ry)
        dx *= dx
        dy *= dy
        dx += dy
        np.sqrt(dx, out=dx)
        dx -= 1
        dx *= np.sqrt(rx * ry)
        return dx

    def taper(
        self, x0: Number, y0: Number, x1: Number, y1: Number, r0: Number, r1: Number, mirrored: bool = False
    ) -> Array:
        """Distance to a bar from one point to another whose half width goes from r0 to r1."""
        dx, dy = (np.abs(self.x) if mirrored else self.x) - x0, self.y - y0
        ex, ey = x1 - x0, y1 - y0
        norm = 1 / (ex * ex + ey * ey + 1e-9)
        along = dx * (ex * norm)
        along += dy * (ey * norm)
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

    def marks(
        self,
        x: Number, y: Number, rx: Number, ry: Number,
        columns: int = 1, rows: int = 1, step_x: Number = 1.0, step_y: Number = 1.0,
        mirrored: bool = False,
    ) -> Array:  # fmt: skip
        """Distance to a grid of ellipses, the first at (x, y): spots, or bars when one radius is large."""
        dx, dy = (np.abs(self.x) if mirrored else self.x) - x, self.y - y
        if columns > 1:
            dx -= np.clip(np.rint(dx / step_x), 0, columns - 1) * step_x
        if rows > 1:
            dy -= np.clip(np.rint(dy / step_y), 0, rows - 1) * step_y
        dx *= 1 / rx
        dy *= 1 / ry
        dx *= dx
        dy *= dy
        dx += dy
        np.sqrt(dx, out=dx)
        dx -= 1
        dx *= np.minimum(rx, ry)
        return dx

    def lay(
        self, distance: Array, colour: Colour, shown: Number = 1.0, within: Array | None = None,
        soft: float = 0.0, outlined: bool = False,
    ) -> None:  # fmt: skip
        """Put a shape on top: ``shown`` is its opacity, ``within`` another shape that limits it."""
        if within is not None:
            distance = np.maximum(distance, within)
        if outlined:
            self._outline = distance if self._outline is None else np.minimum(self._outline, distance)
        alpha = self._cover(distance, soft)
        alpha *= shown
        self._alphas.append(alpha)
        self._colours.append(colour)

    def _cover(self, distance: Array, soft: float = 0.0) -> Array:
        alpha = distance * (-1 / (1 / self.per_pixel + soft))
        alpha += 0.5
        return np.clip(alpha, 0, 1, out=alpha)

    def develop(self, background: Array, ink: Colour) -> Array:
        """(images, 3, pixels): all shapes over the background, with a thin outline around the creature."""
        alphas, colours = self._alphas, self._colours
        if self._outline is not None:
            alphas, colours = [self._cover(self._outline - 0.035), *alphas], [ink, *colours]
        weights = np.empty((len(ink), len(alphas), alphas[0].shape[1]), np.float32)
        through = np.ones_like(alphas[0])
        for layer in reversed(range(len(alphas))):
            np.multiply(alphas[layer], through, out=weights[:, layer])
            through -= weights[:, layer]
        return np.stack(colours, axis=2) @ weights + through[:, None] * background


def backdrop(side: int, chance: Chance) -> Array:
    """(images, 3, pixels): a colour gradient with soft blobs and a ripple, all of random muted colours.

    Each ingredient is a product of a column and a row profile, so that one small matrix product draws it.
    """
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    base = hsv(chance(0, 1), chance(0.05, 0.45), chance(0.45, 0.9))
    rows, columns, tints = [np.ones_like(axis) + 0 * chance(0, 0)] * 3, [], [base]
    columns = [rows[0], axis + 0 * rows[0], rows[0]]
    rows[2] = axis + 0 * rows[0]
    tints += [chance.many(3, -0.12, 0.12) + chance(-0.1, 0.1) for _ in range(2)]
    for _ in range(4):
        tint = hsv(chance(0, 1), chance(0.1, 0.5), chance(0.3, 1.0)) - base
        tints.append(tint * chance(0.3, 0.9))
        rows.append(np.exp(-(((axis - chance(-1, 1)) / chance(0.15, 0.6)) ** 2)))
        columns.append(np.exp(-(((axis - chance(-1, 1)) / chance(0.15, 0.6)) ** 2)))
    ripple = chance.many(3, -0.06, 0.06)
    tints.append(ripple)
    rows.append(np.sin(axis * chance(2, 14) + chance(0, 6)))
    columns.append(np.sin(axis * chance(2, 14) + chance(0, 6)))
    down, across, tint = np.stack(rows, 2), np.stack(columns, 1), np.stack(tints, 2)
    picture = (tint[:, :, None, :] * down[:, None]) @ across[:, None]
    return picture.reshape(len(base), 3, -1)


# ------------------------------------------------------------------------------------------ the body plans


@dataclass(frozen=True)
class Palette:
    """The colours of the creatures of a batch, each (images, 3)."""

    main: Colour
    dark: Colour
    light: Colour
    accent: Colour
    mark: Colour
    ink: Colour


Traits = dict[str, Array]
"""(images, 1) of 0 or 1 for each trait in which the species of the genus differ."""


def bird(c: Canvas, build: Sequence[float], paint: Palette, traits: Traits) -> None:
    """Side view, looking right."""
    length, depth, head_size, limb = build
    u = c.chance
    hx, hy = 0.40 * length + 0.12 + u(-0.04, 0.04), -0.20 - depth * 0.5 + u(-0.04, 0.04)
    tail_y = 0.16 + u(-0.12, 0.10)
    fork = 0.02 + 0.17 * traits.get("furcata", 0.0)
    foot = 0.1 + depth + limb
    c.lay(c.taper(0.02, 0.2, -0.06 + u(-0.05, 0.05), foot, 0.035, 0.025), paint.accent, outlined=True)
    c.lay(c.taper(0.18, 0.2, 0.2 + u(-0.05, 0.05), foot, 0.035, 0.025), paint.accent, outlined=True)
    for way in (-1, 1):
        c.lay(
            c.taper(-0.4 * length, 0.14, -0.55 - 0.8 * limb, tail_y + way * fork, 0.11, 0.07 + 0.0 * fork),
            paint.dark, outlined=True,
        )  # fmt: skip
    beak = 0.24 + 0.24 * traits.get("rostrata", 0.0) + u(-0.03, 0.03)
    c.lay(c.taper(hx, hy, hx + head_size + beak, hy + 0.08, 0.12, 0.015), paint.accent, outlined=True)
    if (crest := traits.get("cristata")) is not None:
        c.lay(
            c.taper(hx, hy, hx - head_size - 0.22 * crest, hy - (head_size + 0.2) * crest, 0.13, 0.03),
            paint.dark, outlined=True,
        )  # fmt: skip
    body = np.minimum(
        c.ellipse(0.0, 0.1, 0.55 * length, depth, -0.25), c.taper(0.2 * length, 0.0, hx, hy, depth * 0.7, head_size)
    )
    c.lay(body, paint.main, outlined=True)
    c.lay(c.ellipse(0.16, 0.12 + depth * 0.6, 0.4 * length, depth * 0.55), paint.light, 0.75, body, soft=0.15)
    if (collar := traits.get("torquata")) is not None:
        c.lay(c.taper(hx - 0.42, hy + 0.12, hx + 0.3, hy + 0.42, 0.07, 0.07), paint.mark, collar, body)
    if (spots := traits.get("guttata")) is not None:
        c.lay(c.marks(0.12 + u(-0.03, 0.03), 0.1, 0.07, 0.075, 3, 3, 0.2, 0.2), paint.mark, spots, body)
    if (cap := traits.get("pileata")) is not None:
        c.lay(c.ellipse(hx, hy - head_size, head_size * 1.3, head_size * 0.9), paint.mark, cap, body)
    wing = c.ellipse(-0.16 + u(-0.03, 0.03), 0.06, 0.42 * length, depth * 0.55, -0.2 + u(-0.2, 0.1))
    c.lay(wing, paint.dark)
    if (bars := traits.get("fasciata")) is not None:
        c.lay(c.marks(-0.3 + u(-0.04, 0.04), 0.0, 0.055, 9.0, 2, 1, 0.24), paint.mark, bars, wing)
    eye(c, hx + 0.05, hy - 0.03, paint, traits)


def eye(c: Canvas, x: Number, y: Number, paint: Palette, traits: Traits) -> None:
    """A pale ring with a dark pupil; wide where the species is known for it."""
    ring = 0.085 + 0.07 * traits.get("oculata", 0.0)
    c.lay(c.ellipse(x, y, ring, ring), np.ones_like(paint.main))
    c.lay(c.ellipse(x, y, 0.055, 0.055), paint.ink)


def fish(c: Canvas, build: Sequence[float], paint: Palette, traits: Traits) -> None:
    """Side view, swimming right."""
    length, depth, fin, tail = build
    u = c.chance
    sway = u(-0.1, 0.1)
    lunate = traits.get("lunata", 0.0)
    rear = -0.62 * length
    c.lay(c.ellipse(rear - 0.16, sway, 0.2 * (1 - 0.45 * lunate), tail * 0.85), paint.accent, outlined=True)
    for way in (-1, 1):
        c.lay(
            c.taper(rear, sway, rear - 0.12 - 0.26 * lunate, sway + way * tail * (0.4 + 0.75 * lunate), 0.1, 0.05),
            paint.accent, outlined=True,
        )  # fmt: skip
    high = fin + 0.2 * traits.get("velata", 0.0)
    c.lay(c.ellipse(-0.05 + u(-0.04, 0.04), -depth * 0.8, 0.32, high, 0.15), paint.accent, outlined=True)
    c.lay(c.ellipse(-0.1, depth * 0.85, 0.18, fin * 0.7, -0.3), paint.accent, outlined=True)
    if (barbel := traits.get("barbata")) is not None:
        c.lay(
            c.taper(0.62 * length, 0.1, 0.62 * length + 0.16 * barbel, 0.1 + 0.42 * barbel, 0.06, 0.035),
            paint.dark, outlined=True,
        )  # fmt: skip
    body = np.minimum(
        c.ellipse(0.12, 0.0, 0.64 * length, depth), c.taper(-0.1, 0.0, rear - 0.05, sway, depth * 0.75, 0.08)
    )
    c.lay(body, paint.main, outlined=True)
    c.lay(c.ellipse(0.15, depth * 0.8, 0.55 * length, depth * 0.6), paint.light, 0.7, body, soft=0.15)
    shift = u(-0.04, 0.04)
    if (bars := traits.get("fasciata")) is not None:
        c.lay(c.marks(-0.3 + shift, 0.0, 0.065, 9.0, 3, 1, 0.28), paint.mark, bars, body)
    if (line := traits.get("lineata")) is not None:
        c.lay(c.marks(0.0, shift, 9.0, 0.07), paint.mark, line, body)
    if (spots := traits.get("punctata")) is not None:
        c.lay(c.marks(-0.26 + shift, -0.16, 0.07, 0.07, 3, 2, 0.24, 0.26), paint.mark, spots, body)
    if (spot := traits.get("ocellata")) is not None:
        c.lay(c.ellipse(-0.36 + shift, sway * 0.5, 0.14, 0.14), paint.mark, spot)
        c.lay(c.ellipse(-0.36 + shift, sway * 0.5, 0.07, 0.07), paint.ink, spot)
    c.lay(c.ellipse(0.12, depth * 0.35, 0.16, 0.09, 0.5 + u(-0.3, 0.3)), paint.accent)
    eye(c, 0.12 + 0.40 * length, -0.08, paint, traits)


def beetle(c: Canvas, build: Sequence[float], paint: Palette, traits: Traits) -> None:
    """Seen from above, head up."""
    length, width, neck, limb = build
    u = c.chance
    reach = width + limb
    for start, end in ((-0.32, -0.62), (0.1, 0.12), (0.4, 0.78)):
        c.lay(
            c.taper(width * 0.6, start, reach + u(-0.06, 0.06), end + u(-0.08, 0.08), 0.05, 0.03, mirrored=True),
            paint.ink,
        )  # fmt: skip
    feeler = 0.16 + 0.24 * traits.get("antennata", 0.0)
    c.lay(
        c.taper(0.08, -0.66, 0.1 + feeler + u(-0.03, 0.03), -0.72 - feeler, 0.03, 0.045, mirrored=True), paint.ink
    )
    if (horn := traits.get("cornuta")) is not None:
        c.lay(c.taper(0.0, -0.6, u(-0.03, 0.03), -0.7 - 0.32 * horn, 0.1, 0.04), paint.dark, outlined=True)
    c.lay(c.ellipse(0.0, -0.6, neck * 0.62, 0.18), paint.dark, outlined=True)
    shield = c.ellipse(0.0, -0.38, neck, 0.24)
    c.lay(shield, paint.dark, outlined=True)
    if (pale := traits.get("collaris")) is not None:
        c.lay(c.ellipse(0.0, -0.36, neck * 0.75, 0.13), paint.mark, pale, shield)
    wings = c.ellipse(0.0, 0.24, width, length)
    c.lay(wings, paint.main, outlined=True)
    c.lay(c.ellipse(-width * 0.4, 0.0, width * 0.35, length * 0.5, 0.2), paint.light, 0.5, wings, soft=0.2)
    shift = u(-0.04, 0.04)
    if (band := traits.get("fasciata")) is not None:
        c.lay(c.marks(0.0, 0.2 + shift, 9.0, 0.08), paint.mark, band, wings)
    if (stripes := traits.get("vittata")) is not None:
        c.lay(c.marks(width * 0.5 + shift * 0.5, 0.0, 0.06, 9.0, mirrored=True), paint.mark, stripes, wings)
    if (spots := traits.get("punctata")) is not None:
        c.lay(
            c.marks(width * 0.5, 0.0 + shift, 0.095, 0.095, 1, 2, 1.0, 0.42, mirrored=True), paint.mark, spots, wings
        )
    if (rim := traits.get("limbata")) is not None:
        c.lay(-0.1 - wings, paint.mark, rim, wings)
    c.lay(c.taper(0.0, -0.2, 0.0, 0.24 + length, 0.016, 0.016), paint.ink, 0.8, wings)


def butterfly(c: Canvas, build: Sequence[float], paint: Palette, traits: Traits) -> None:
    """Seen from above, wings spread, head up."""
    span, chord, hind, turn = build
    u = c.chance
    open_ = u(-0.1, 0.1)
    if (tails := traits.get("caudata")) is not None:
        c.lay(
            c.taper(0.35, 0.4, 0.42 + u(-0.04, 0.04), 0.5 + 0.42 * tails, 0.11, 0.05, mirrored=True),
            paint.dark, outlined=True,
        )  # fmt: skip
    lower = c.ellipse(0.36, 0.32, hind, hind * 0.85, 0.7 - open_, mirrored=True)
    c.lay(lower, paint.dark, outlined=True)
    upper = c.ellipse(0.08 + span * 0.8, -0.22, span, chord, turn + open_, mirrored=True)
    c.lay(upper, paint.main, outlined=True)
    c.lay(c.ellipse(0.2, -0.1, span * 0.6, chord * 0.7, turn, mirrored=True), paint.light, 0.5, upper, soft=0.2)
    shift = u(-0.03, 0.03)
    if (band := traits.get("fasciata")) is not None:
        c.lay(c.marks(0.5 + shift, 0.0, 0.07, 9.0, mirrored=True), paint.mark, band, upper)
    if (rim := traits.get("limbata")) is not None:
        c.lay(-0.1 - upper, paint.mark, rim, upper)
    if (spot := traits.get("ocellata")) is not None:
        x, y = 0.5 + shift, -0.28 + shift
        c.lay(c.ellipse(x, y, 0.15, 0.15, mirrored=True), paint.mark, spot)
        c.lay(c.ellipse(x, y, 0.08, 0.08, mirrored=True), paint.ink, spot)
    if (spots := traits.get("punctata")) is not None:
        c.lay(
            c.marks(0.26 + shift, 0.36, 0.075, 0.075, 2, 1, 0.24, mirrored=True), paint.mark, spots, lower
        )
    c.lay(c.taper(0.0, -0.36, u(-0.03, 0.03), 0.45, 0.09, 0.05), paint.ink)
    feeler = 0.22 + 0.2 * traits.get("antennata", 0.0)
    c.lay(c.taper(0.03, -0.36, 0.05 + feeler * 0.8, -0.45 - feeler, 0.02, 0.045, mirrored=True), paint.ink)


# -------------------------------------------------------------------------------------------- the taxonomy

Plan = Callable[[Canvas, Sequence[float], Palette, Traits], None]


@dataclass(frozen=True)
class Genus:
    """A build and a colour family, and the three traits whose combinations are its eight species."""

    name: str
    plan: Plan
    build: tuple[float, float, float, float]
    colour: tuple[float, float, float]
    """Hue, saturation, value."""
    accent: float
    """Hue of beak, legs or fins."""
    pale_marks: bool
    traits: tuple[str, str, str]


_B, _F, _C, _P = bird, fish, beetle, butterfly
GENERA: tuple[Genus, ...] = (
    Genus("Tirilla", _B, (1.0, 0.34, 0.24, 0.35), (0.58, 0.65, 0.75), 0.10, True, ("fasciata", "rostrata", "torquata")),
    Genus("Piscarra", _F, (1.0, 0.36, 0.18, 0.40), (0.06, 0.80, 0.92), 0.12, True, ("fasciata", "velata", "lunata")),
    Genus("Carabella", _C, (0.56, 0.44, 0.34, 0.34), (0.36, 0.65, 0.55), 0.10, True, ("punctata", "cornuta", "collaris")),
    Genus("Papilana", _P, (0.52, 0.27, 0.36, -0.6), (0.14, 0.75, 0.95), 0.10, False, ("ocellata", "caudata", "punctata")),
    Genus("Garruna", _B, (0.9, 0.42, 0.28, 0.20), (0.01, 0.65, 0.70), 0.13, True, ("guttata", "cristata", "furcata")),
    Genus("Undella", _F, (1.05, 0.24, 0.14, 0.30), (0.50, 0.50, 0.75), 0.55, False, ("lineata", "barbata", "ocellata")),
    Genus("Scarabina", _C, (0.46, 0.50, 0.40, 0.26), (0.76, 0.55, 0.60), 0.10, True, ("fasciata", "antennata", "limbata")),
    Genus("Vanissa", _P, (0.46, 0.34, 0.34, -0.9), (0.92, 0.60, 0.85), 0.10, True, ("fasciata", "caudata", "limbata")),
)

_PREFIX = {"ros": "rostri"}
_CODES = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1))


def draw(genus: int, species: NDArray[np.int64], keys: NDArray[np.uint64], side: int) -> NDArray[np.uint8]:
    """(images, side, side, 3): creatures of one genus, of the given species, each from its own key."""
    chunks = [
        _draw_batch(GENERA[genus], species[i : i + _BATCH], keys[i : i + _BATCH], side)
        for i in range(0, len(keys), _BATCH)
    ]
    return np.concatenate(chunks)


def _draw_batch(genus: Genus, species: NDArray[np.int64], keys: NDArray[np.uint64], side: int) -> NDArray[np.uint8]:
    chance = Chance(keys)
    code = np.array(_CODES, np.float32)[species]
    traits = {name: code[:, [i]] for i, name in enumerate(genus.traits)}
    paint = _palette(genus, chance)
    canvas = Canvas(side, chance)
    genus.plan(canvas, genus.build, paint, traits)
    picture = canvas.develop(backdrop(side, chance), paint.ink)
    light = chance(0.8, 1.15)[:, :, None] * 255
    pixels = np.clip(picture * light, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(pixels.reshape(-1, 3, side, side).transpose(0, 2, 3, 1))


def _palette(genus: Genus, chance: Chance) -> Palette:
    hue, saturation, value = genus.colour
    h, s, v = hue + chance(-0.04, 0.04), saturation * chance(0.7, 1.15), value * chance(0.85, 1.1)
    main = hsv(h, s, v)
    pale = hsv(h + 0.08, chance(0.02, 0.15), chance(0.9, 1.0))
    ink = hsv(h, 0.5 + 0 * s, chance(0.10, 0.2))
    return Palette(
        main=main, dark=main * chance(0.6, 0.72), light=main + (1 - main) * chance(0.3, 0.55),
        accent=hsv(genus.accent + chance(-0.03, 0.03), chance(0.5, 0.8), chance(0.75, 0.95)),
        mark=pale if genus.pale_marks else ink, ink=ink,
    )  # fmt: skip
