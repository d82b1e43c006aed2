"""The synthetic data set: reproducible images, hidden classes, and similar species."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.sources.synthetic import GENERA, Settings, draw, load
from semifine.errors import UserError

SMALL = Settings(
    genera=4, species=3, labeled_per_class=2, unlabeled_per_class=6, val_per_class=1, test_per_class=2, image_side=32
)


def small(**changes: object) -> Catalog:
    return load(None, dataclasses.replace(SMALL, **changes))  # type: ignore[arg-type]


def pixels(catalog: Catalog, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
    wanted = np.arange(len(catalog)) if rows is None else rows
    return np.stack([catalog.reader.read(int(row)) for row in wanted])


def test_default_is_eight_genera_of_five_species() -> None:
    catalog = load(None, Settings())
    assert catalog.num_classes == 40
    assert catalog.class_groups is not None
    assert len(set(catalog.class_groups)) == 8
    assert all(name.startswith(group) for name, group in zip(catalog.class_names, catalog.class_groups, strict=True))


def test_splits_have_the_given_sizes() -> None:
    catalog = small()
    assert [len(catalog.rows(split)) for split in Split] == [24, 72, 12, 24]
    for split in Split:
        assert set(np.bincount(catalog.truth[catalog.rows(split)], minlength=12)) == {len(catalog.rows(split)) // 12}


def test_unlabeled_images_hide_their_class_everywhere_but_in_truth() -> None:
    catalog = small()
    rows = catalog.rows(Split.UNLABELED)
    assert (catalog.label[rows] == UNKNOWN).all()
    assert not any(name.split()[0] in catalog.paths[int(row)] for row in rows for name in catalog.class_names)
    # their order mixes the classes, too
    assert (np.diff(catalog.truth[rows]) != 0).mean() > 0.5


def test_images_are_uint8_rgb_and_reproducible() -> None:
    catalog = small()
    first = pixels(catalog)
    assert first.shape == (len(catalog), 32, 32, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, pixels(small()))
    np.testing.assert_array_equal(first, catalog.reader.read_all())  # type: ignore[attr-defined]
    assert len(np.unique(first.reshape(len(first), -1), axis=0)) == len(first), "all images differ"


def test_another_seed_draws_other_individuals() -> None:
    assert (pixels(small()) != pixels(small(seed=1))).any(axis=(1, 2, 3)).all()
    assert small().reader.fingerprint() != small(seed=1).reader.fingerprint()


def test_more_unlabeled_images_do_not_change_the_others() -> None:
    few, many = small(), small(unlabeled_per_class=9)
    for split in (Split.LABELED, Split.VAL, Split.TEST):
        np.testing.assert_array_equal(pixels(few, few.rows(split)), pixels(many, many.rows(split)))
    assert set(few.reader.fingerprint()) < set(many.reader.fingerprint()), "also the unlabeled images"


def test_more_genera_and_species_do_not_change_a_class() -> None:
    few, many = small(), small(genera=6, species=5)
    assert set(few.class_names) < set(many.class_names)
    for name in few.class_names:
        rows, same = (
            np.flatnonzero((catalog.split == Split.TEST) & (catalog.label == catalog.class_names.index(name)))
            for catalog in (few, many)
        )
        np.testing.assert_array_equal(pixels(few, rows), pixels(many, same))


def test_the_largest_taxonomy_has_a_name_for_every_class() -> None:
    names = small(genera=len(GENERA), species=8).class_names
    assert len(set(names)) == len(GENERA) * 8 >= 16 * 8


def test_imbalance_gives_a_long_tail() -> None:
    catalog = small(unlabeled_per_class=50, imbalance=10)
    counts = np.bincount(catalog.truth[catalog.rows(Split.UNLABELED)])
    assert (counts.max(), counts.min()) == (50, 5)
    assert (np.bincount(catalog.label[catalog.rows(Split.TEST)]) == 2).all(), "the test set stays balanced"


def test_out_of_distribution_genera_join_the_unlabeled_images_only() -> None:
    catalog = small(unlabeled="inout", ood_genera=2)
    outside = catalog.truth >= catalog.num_classes
    assert outside.sum() == 2 * 3 * 6
    assert (catalog.split[outside] == Split.UNLABELED).all()
    assert catalog.num_classes == 12


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("genera", 0),
        ("genera", 1000),
        ("species", 0),
        ("labeled_per_class", 0),
        ("test_per_class", -1),
        ("image_side", 4),
        ("imbalance", 0.5),
        ("ood_genera", 1000),
    ],
)
def test_invalid_settings_are_named(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{key} is {value}"):
        small(**{key: value, "unlabeled": "inout"})


def test_a_data_set_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(UserError, match=r"more than 1 GB of memory: lower unlabeled_per_class, which is 65535"):
        small(unlabeled_per_class=65_535, image_side=64)


def test_species_of_a_genus_look_alike_and_genera_do_not() -> None:
    """The mean image of a species is closer to its own genus than to other genera."""
    catalog = small(labeled_per_class=40)
    rows = catalog.rows(Split.LABELED)
    images = pixels(catalog, rows).astype(np.float64).reshape(len(rows), -1)
    species = np.stack([images[catalog.label[rows] == label].mean(axis=0) for label in range(12)])
    genus_of = np.arange(12) // 3
    for label in range(12):
        others = np.arange(12) != label
        distance = [np.linalg.norm(species[label] - species[others & (genus_of == g)].mean(axis=0)) for g in range(4)]
        assert int(np.argmin(distance)) == genus_of[label]


def test_species_of_a_genus_differ_in_few_pixels() -> None:
    """Images of two species with the same key differ in some pixels and agree in most."""
    keys = np.arange(1, 9, dtype=np.uint64)
    for genus in GENERA:
        plain = draw(genus, np.zeros(8, np.int64), keys, 48).astype(int)
        for number in range(1, 8):
            other = draw(genus, np.full(8, number), keys, 48).astype(int)
            changed = (np.abs(plain - other).max(axis=3) > 20).mean(axis=(1, 2))
            assert (changed > 0).all()
            assert changed.mean() < 0.35, f"{genus.name} {number} differs too much to be fine-grained"
