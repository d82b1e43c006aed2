"""The order of the live queue."""

from __future__ import annotations

import numpy as np

from semifine.studio.coverage import NUM_CHOSEN, greedy_coverage, rank_by_coverage


def unit(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_choices_agree_with_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    similarity = random.random((12, 20)).astype(np.float32)
    own = np.arange(12)
    similarity[own, own] = 1
    uncertainty = random.random(20).astype(np.float32)
    left = [float(value) for value in uncertainty]
    chosen: list[int] = []
    for _ in range(6):
        scores = [
            -1.0 if p in chosen else sum(similarity[p, r] * left[r] for r in range(20)) ** 0.5 * uncertainty[p]
            for p in range(12)
        ]
        best = int(np.argmax(scores))
        chosen.append(best)
        left = [value * (1 - similarity[best, r]) for r, value in enumerate(left)]
    assert greedy_coverage(similarity, own, uncertainty, 6).tolist() == chosen


def test_an_uncertain_image_with_many_uncertain_neighbors_comes_first() -> None:
    angles = np.array([0.0, *np.linspace(1.0, 1.1, 9), 3.0])
    confidence = np.array([0.5] * 10 + [0.99], np.float32)
    order = rank_by_coverage(confidence, unit(angles), np.zeros(11, np.bool_))
    assert 1 <= order[0] <= 9
    assert order[1] == 0, "the second choice is elsewhere"


def test_every_image_is_ranked_once_and_answered_ones_last() -> None:
    random = np.random.default_rng(0)
    count = 5 * NUM_CHOSEN
    answered = random.random(count) < 0.3
    features = unit(random.random(count) * 6)
    order = rank_by_coverage(random.random(count).astype(np.float32), features, answered)
    assert sorted(order.tolist()) == list(range(count))
    assert answered[order[-int(answered.sum()) :]].all()
    assert sorted(rank_by_coverage(np.ones(3, np.float32), unit(np.arange(3.0)), np.ones(3, np.bool_))) == [0, 1, 2]
