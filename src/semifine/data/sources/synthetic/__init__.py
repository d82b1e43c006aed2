"""The built-in fine-grained data set: drawn animals of eight genera, whose species differ in one to three traits.

It needs no download and fits in memory. Genera differ in body shape and color, species of a genus only in details. The
name of a species describes them: ``Tirilla rostrata`` has a longer beak than ``Tirilla simplex``, ``Tirilla fasciata``
has bars on its wing, and ``Tirilla fasciirostrata`` has both.

The taxonomy is fixed; ``seed`` draws other individuals of the same species.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.sources import Source
from semifine.data.sources.synthetic.drawing import (
    Array,
    BodyPlan,
    Canvas,
    Keys,
    Palette,
    RandomNumbers,
    beetle,
    bird,
    butterfly,
    draw_background,
    fish,
    hsv,
    image_keys,
)
from semifine.errors import UserError
from semifine.fields import setting

DRAWING_VERSION = 1
"""Increase it if the drawing of a key changes, so that cached images are drawn again."""

Integers = NDArray[np.int64]

_BATCH_PIXELS = 16 * 48 * 48  # fits in the cache of a processor; the batch size does not change the images
MAX_BYTES = 1 << 30
"""Size of the largest data set, whose images are all in memory."""


@dataclass(frozen=True)
class Settings:
    """Settings of the synthetic data set."""

    genera: int = setting(8, "number of genera, groups of similar species")
    species: int = setting(5, "number of species per genus; classes = genera * species")
    labeled_per_class: int = setting(5, "number of labeled images of the largest class")
    unlabeled_per_class: int = setting(75, "number of unlabeled images of the largest class")
    val_per_class: int = setting(5, "number of validation images per class")
    test_per_class: int = setting(20, "number of test images per class")
    image_side: int = setting(48, "width and height of the images in pixels")
    imbalance: float = setting(
        1.0, "long-tailed classes: size of the largest class over the smallest, for labeled and unlabeled images"
    )
    unlabeled: Literal["in", "inout"] = setting("in", "inout adds unlabeled images of genera outside the label set")
    ood_genera: int = setting(4, "number of genera outside the label set that inout adds")
    seed: int = setting(0, "seed of the individuals; the species stay the same")


@dataclass(frozen=True)
class Genus:
    """A genus with eight species, the combinations of three traits.

    Args:
        name: Name of the genus.
        plan: Draws the body.
        traits: Latin names of the traits.
        build: Proportions of the body, see the body plan.
        color: Hue, saturation and value of the body.
        accent: Hue of beak and legs, or of the fins.
        marks: Whether markings are lighter or darker than the body.
    """

    name: str
    plan: BodyPlan
    traits: tuple[str, str, str]
    build: tuple[float, float, float, float]
    color: tuple[float, float, float]
    accent: float
    marks: Literal["pale", "dark"]


# Ordered so that the first genera differ the most, for any number of genera.
# fmt: off
GENERA = (
    Genus("Tirilla", bird, ("fasciata", "rostrata", "torquata"),
          (1.0, 0.34, 0.24, 0.35), (0.58, 0.65, 0.75), 0.10, "pale"),
    Genus("Piscarra", fish, ("fasciata", "velata", "lunata"),
          (1.0, 0.36, 0.18, 0.40), (0.06, 0.80, 0.92), 0.12, "pale"),
    Genus("Carabella", beetle, ("punctata", "antennata", "scutata"),
          (0.56, 0.44, 0.34, 0.34), (0.36, 0.65, 0.55), 0.10, "pale"),
    Genus("Papilana", butterfly, ("ocellata", "caudata", "punctata"),
          (0.52, 0.27, 0.36, -0.6), (0.14, 0.75, 0.95), 0.10, "dark"),
    Genus("Garruna", bird, ("guttata", "rostrata", "cristata"),
          (0.9, 0.42, 0.28, 0.20), (0.01, 0.65, 0.70), 0.13, "pale"),
    Genus("Undella", fish, ("lineata", "lunata", "ocellata"),
          (1.05, 0.26, 0.14, 0.38), (0.50, 0.50, 0.75), 0.13, "dark"),
    Genus("Scarabina", beetle, ("fasciata", "antennata", "limbata"),
          (0.46, 0.50, 0.40, 0.26), (0.76, 0.55, 0.60), 0.10, "pale"),
    Genus("Vanissa", butterfly, ("fasciata", "caudata", "limbata"),
          (0.46, 0.34, 0.34, -0.9), (0.92, 0.60, 0.85), 0.10, "pale"),
    Genus("Alaudella", bird, ("pileata", "rostrata", "fasciata"),
          (0.85, 0.28, 0.20, 0.55), (0.13, 0.55, 0.85), 0.02, "dark"),
    Genus("Cyprilla", fish, ("fasciata", "lunata", "ocellata"),
          (0.75, 0.50, 0.26, 0.42), (0.93, 0.45, 0.90), 0.85, "dark"),
    Genus("Coccilla", beetle, ("punctata", "antennata", "fasciata"),
          (0.44, 0.46, 0.26, 0.20), (0.00, 0.80, 0.80), 0.10, "dark"),
    Genus("Lepidora", butterfly, ("ocellata", "antennata", "limbata"),
          (0.56, 0.24, 0.30, -0.45), (0.60, 0.60, 0.85), 0.10, "pale"),
    Genus("Merlinda", bird, ("torquata", "furcata", "guttata"),
          (1.1, 0.30, 0.22, 0.28), (0.60, 0.12, 0.38), 0.08, "pale"),
    Genus("Natarina", fish, ("punctata", "velata", "barbata"),
          (0.9, 0.40, 0.14, 0.34), (0.15, 0.70, 0.92), 0.08, "dark"),
    Genus("Lucanda", beetle, ("vittata", "cornuta", "scutata"),
          (0.62, 0.34, 0.32, 0.42), (0.07, 0.60, 0.50), 0.10, "pale"),
    Genus("Alarina", butterfly, ("punctata", "caudata", "fasciata"),
          (0.48, 0.30, 0.38, -0.7), (0.15, 0.08, 0.95), 0.10, "dark"),
    Genus("Strigola", bird, ("oculata", "cristata", "fasciata"),
          (0.8, 0.46, 0.35, 0.14), (0.78, 0.40, 0.62), 0.12, "pale"),
    Genus("Marenda", fish, ("lineata", "lunata", "velata"),
          (1.1, 0.28, 0.24, 0.46), (0.62, 0.15, 0.72), 0.00, "dark"),
    Genus("Elatera", beetle, ("fasciata", "cornuta", "antennata"),
          (0.66, 0.28, 0.24, 0.30), (0.56, 0.70, 0.65), 0.10, "pale"),
    Genus("Florenda", butterfly, ("limbata", "caudata", "ocellata"),
          (0.58, 0.22, 0.40, -0.8), (0.06, 0.80, 0.95), 0.10, "dark"),
    Genus("Pavonilla", bird, ("guttata", "rostrata", "pileata"),
          (0.95, 0.36, 0.20, 0.48), (0.40, 0.65, 0.55), 0.00, "pale"),
    Genus("Salmaria", fish, ("punctata", "oculata", "lunata"),
          (0.95, 0.32, 0.30, 0.28), (0.74, 0.45, 0.75), 0.95, "pale"),
    Genus("Chrysolda", beetle, ("vittata", "scutata", "antennata"),
          (0.50, 0.40, 0.44, 0.38), (0.13, 0.75, 0.85), 0.10, "dark"),
    Genus("Psychella", butterfly, ("fasciata", "punctata", "antennata"),
          (0.42, 0.36, 0.42, -0.4), (0.33, 0.50, 0.75), 0.10, "pale"),
)
# fmt: on
SPECIES_TRAITS = np.array(
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)], dtype=np.float32
)
"""`(species, traits)` which traits of its genus a species has. Each species differs from another in a single trait."""


def species_name(genus: Genus, species: int) -> str:
    """The name of a species, whose epithet lists the traits.

    Example:
        >>> species_name(GENERA[0], 4)
        'Tirilla fasciirostrata'
    """
    traits = [trait for trait, has in zip(genus.traits, SPECIES_TRAITS[species], strict=True) if has]
    if not traits:
        return f"{genus.name} simplex"
    if len(traits) == len(genus.traits):
        return f"{genus.name} ornata"
    stems = [trait.removesuffix("ata").removesuffix("uta") + "i" for trait in traits[:-1]]
    return f"{genus.name} {''.join(stems)}{traits[-1]}"


class SyntheticReader:
    """Draws images: all at once, which are then kept in memory, or a single one."""

    in_memory = True

    def __init__(self, genus: Integers, species: Integers, keys: Keys, image_side: int) -> None:
        self._genus, self._species, self._keys = genus, species, keys
        self._side = image_side
        self._images: NDArray[np.uint8] | None = None

    def read(self, row: int) -> NDArray[np.uint8]:
        """One image as a `(side, side, 3)` RGB array, a copy."""
        if self._images is not None:
            return np.array(self._images[row])
        return np.array(self._draw(np.array([row]))[0])

    def read_all(self) -> NDArray[np.uint8]:
        """All images as a `(rows, side, side, 3)` array, drawn by the first call."""
        if self._images is None:
            self._images = self._draw(np.arange(len(self._keys)))
        return self._images

    def _draw(self, rows: Integers) -> NDArray[np.uint8]:
        images = np.empty((len(rows), self._side, self._side, 3), np.uint8)
        for genus in np.unique(self._genus[rows]):
            indices = np.flatnonzero(self._genus[rows] == genus)
            selected = rows[indices]
            images[indices] = draw(GENERA[genus], self._species[selected], self._keys[selected], self._side)
        return images

    def fingerprint(self) -> list[str]:
        """The keys of the images, which depend on seed, split, class and number."""
        return [f"synthetic-{DRAWING_VERSION}-{self._side}-{key:016x}" for key in self._keys.tolist()]


def load(root: None, settings: Settings) -> Catalog:  # noqa: ARG001 (all sources have a path)
    """Creates the catalog; images are drawn when they are read."""
    _check(settings)
    split, truth, number = _individuals(settings)
    genus, species = np.divmod(truth, settings.species)
    keys = image_keys(np.full_like(split, settings.seed), split, genus, species, number)
    # Unlabeled images are sorted by their keys, so that their order reveals nothing about their classes.
    order = np.lexsort((np.where(split == Split.UNLABELED, keys, 0), split))
    split, truth, number = split[order], truth[order], number[order]
    names = [species_name(g, s) for g in GENERA[: settings.genera] for s in range(settings.species)]
    return Catalog(
        name="synthetic",
        class_names=tuple(names),
        class_groups=tuple(name.split()[0] for name in names),
        paths=_paths(split, truth, number, names),
        label=np.where(split == Split.UNLABELED, UNKNOWN, truth),
        split=split.astype(np.uint8),
        truth=truth,
        reader=SyntheticReader(genus[order], species[order], keys[order], settings.image_side),
    )


def _individuals(settings: Settings) -> tuple[Integers, Integers, Integers]:
    """Split, class and number within the class of each image; classes outside the label set are last."""
    classes = settings.genera * settings.species
    outside = settings.ood_genera * settings.species if settings.unlabeled == "inout" else 0
    unlabeled = _long_tail(settings.unlabeled_per_class, classes, settings.imbalance)
    per_class = {
        Split.LABELED: _long_tail(settings.labeled_per_class, classes, settings.imbalance),
        Split.UNLABELED: np.append(unlabeled, np.full(outside, settings.unlabeled_per_class)),
        Split.VAL: np.full(classes, settings.val_per_class),
        Split.TEST: np.full(classes, settings.test_per_class),
    }
    return (
        np.concatenate([np.full(counts.sum(), split, np.int64) for split, counts in per_class.items()]),
        np.concatenate([np.repeat(np.arange(len(counts)), counts) for counts in per_class.values()]),
        np.concatenate([np.arange(count) for counts in per_class.values() for count in counts]),
    )


def _long_tail(largest: int, classes: int, imbalance: float) -> Integers:
    """Images per class, which fall exponentially from ``largest`` to ``largest / imbalance``, at least one.

    Steps of the golden ratio distribute large and small classes over the genera.
    """
    if largest == 0 or classes == 1:
        return np.full(classes, largest)
    rank = np.argsort(np.argsort(np.arange(classes) * 0.6180339887 % 1))
    return np.maximum(1, np.rint(largest * imbalance ** (-rank / (classes - 1))).astype(np.int64))


def _paths(split: Integers, truth: Integers, number: Integers, names: list[str]) -> list[str]:
    """Paths of the images. Paths of unlabeled images contain a number, never a class."""
    folders = [name.replace(" ", "_") for name in names]
    first = int(np.searchsorted(split, Split.UNLABELED))
    return [
        f"synthetic/unlabeled/{row - first:06d}"
        if part == Split.UNLABELED
        else f"synthetic/{Split(part).name.lower()}/{folders[label]}/{count:04d}"
        for row, (part, label, count) in enumerate(zip(split, truth, number, strict=True))
    ]


def draw(genus: Genus, species: Integers, keys: Keys, side: int) -> NDArray[np.uint8]:
    """Draws one animal per species and key.

    Args:
        genus: The genus of all animals.
        species: `(images,)` species numbers.
        keys: `(images,)` random keys, see :func:`~semifine.data.sources.synthetic.drawing.image_keys`.
        side: Width and height.

    Returns:
        `(images, side, side, 3)` uint8 images.
    """
    images = np.empty((len(keys), side, side, 3), np.uint8)
    step = max(1, _BATCH_PIXELS // side**2)
    for start in range(0, len(keys), step):
        batch = slice(start, start + step)
        random = RandomNumbers(keys[batch])
        has_trait = SPECIES_TRAITS[species[batch]]
        canvas, palette = Canvas(side, random), _palette(genus, random)
        genus.plan(canvas, genus.build, palette, {trait: has_trait[:, [i]] for i, trait in enumerate(genus.traits)})
        picture = canvas.render(draw_background(side, random), palette.outline)
        picture *= random(0.8, 1.15)[:, :, None] * 255  # brightness
        np.clip(picture, 0, 255, out=picture)
        images[batch] = picture.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    return images


def _palette(genus: Genus, random: RandomNumbers) -> Palette:
    """Random colors of individuals, which do not depend on the species."""
    hue, saturation, value = genus.color
    hues = hue + random(-0.04, 0.04)
    main = hsv(hues, saturation * random(0.7, 1.15), value * random(0.85, 1.1))
    outline = hsv(hues, 0.5, random(0.1, 0.2))
    fade = random(0.6, 0.9)  # markings are bolder in some individuals
    return Palette(
        main=main,
        dark=main * random(0.6, 0.72),
        light=_toward_white(main, random(0.3, 0.55)),
        accent=hsv(genus.accent + random(-0.03, 0.03), random(0.5, 0.8), random(0.75, 0.95)),
        mark=_toward_white(main, fade) if genus.marks == "pale" else main * (1 - fade),
        outline=outline,
    )


def _toward_white(color: Array, share: Array) -> Array:
    return color + (1 - color) * share


def _check(settings: Settings) -> None:
    """Raises UserError for settings that cannot be drawn."""
    if settings.unlabeled not in ("in", "inout"):
        raise UserError(f"synthetic: unlabeled is {settings.unlabeled!r}, but must be 'in' or 'inout'.")
    ranges: dict[str, tuple[float, float]] = {
        "genera": (1, len(GENERA)),
        "species": (1, len(SPECIES_TRAITS)),
        "labeled_per_class": (1, 100_000),
        "unlabeled_per_class": (0, 100_000),
        "val_per_class": (0, 100_000),
        "test_per_class": (0, 100_000),
        "image_side": (16, 512),
        "imbalance": (1, 1000),
        "seed": (0, 2**63 - 1),
    }
    if settings.unlabeled == "inout":  # at least one genus must be outside the label set
        ranges["genera"] = (1, len(GENERA) - 1)
        ranges["ood_genera"] = (1, len(GENERA) - settings.genera)
    for key, (low, high) in ranges.items():
        value = getattr(settings, key)
        if not low <= value <= high:
            raise UserError(f"synthetic: {key} is {value}, but must be between {low} and {high}.")
    counts = {key: getattr(settings, key) for key in ranges if key.endswith("_per_class")}
    outside = settings.ood_genera * settings.unlabeled_per_class if settings.unlabeled == "inout" else 0
    images = settings.species * (settings.genera * sum(counts.values()) + outside)
    if images * settings.image_side**2 * 3 > MAX_BYTES:
        largest = max(counts, key=lambda key: counts[key])
        raise UserError(
            f"synthetic: {images:,} images of {settings.image_side} pixels take more than {MAX_BYTES >> 30} GB of "
            f"memory: lower {largest}, which is {counts[largest]}."
        )


SOURCE = Source(
    name="synthetic",
    summary="The built-in data set: drawn animals of eight genera, whose species differ in one to three traits.",
    path_kind="nothing",
    settings_class=Settings,
    load=load,
)
