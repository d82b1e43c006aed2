"""Reduced features of many photos: near the features, read from the cache, and equal for photos that are added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.studio import plain_start
from semifine.studio.plain_start import Start, cached_start, compute_start

LABELED, UNLABELED = 5, 120


@pytest.fixture
def raw() -> np.ndarray:
    """Features around ten centers."""
    random = np.random.default_rng(0)
    centers = 3 * random.normal(size=(10, 40))
    return (centers[np.arange(LABELED + UNLABELED) % 10] + random.normal(size=(LABELED + UNLABELED, 40))).astype("f4")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_start, "LARGE", UNLABELED)
    monkeypatch.setattr(plain_start, "DIM", 16)


@pytest.mark.usefixtures("large")
def test_reduced_features_have_the_same_neighbors(raw: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = compute_start(raw, LABELED)
    assert reduced.features.shape == (LABELED + UNLABELED, 16)
    monkeypatch.setattr(plain_start, "LARGE", UNLABELED + 1)
    whole = compute_start(raw, LABELED)
    assert whole.features.shape == raw.shape
    nearest = [(start.features @ start.features.T - 2 * np.eye(len(raw))).argmax(axis=1) for start in (reduced, whole)]
    center_of = np.arange(len(raw)) % 10
    assert (center_of[nearest[0]] == center_of).mean() >= (center_of[nearest[1]] == center_of).mean() - 0.02
    assert len(reduced.group) == UNLABELED


@pytest.mark.parametrize("is_large", [True, False])
def test_added_photos_get_the_same_features(raw: np.ndarray, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_large:
        monkeypatch.setattr(plain_start, "LARGE", UNLABELED)
        monkeypatch.setattr(plain_start, "DIM", 16)
    start = compute_start(raw, LABELED)
    assert np.allclose(start.normalize(raw[7:9]), start.features[7:9], atol=1e-5)


@pytest.mark.usefixtures("large")
def test_the_second_start_reads_the_cache(raw: np.ndarray, tmp_path: Path) -> None:
    computed: list[Start] = []

    def compute() -> Start:
        computed.append(compute_start(raw, LABELED))
        return computed[-1]

    first, second = (cached_start(tmp_path, b"key", UNLABELED, compute) for _ in range(2))
    assert len(computed) == 1
    for name in ("features", "group", "center"):
        assert (getattr(first, name) == getattr(second, name)).all()
    assert np.array_equal(first.normalize(raw), second.normalize(raw))
    cached_start(tmp_path, b"other photos", UNLABELED, compute)
    assert len(computed) == 2
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert (cached_start(tmp_path, b"key", UNLABELED, compute).group == first.group).all()
    assert len(computed) == 3


def test_few_photos_are_not_cached(raw: np.ndarray, tmp_path: Path) -> None:
    cached_start(tmp_path, b"key", UNLABELED, lambda: compute_start(raw, LABELED))
    assert list(tmp_path.iterdir()) == []
