"""The order in which the live queue shows images: uncertain ones that speak for many other uncertain ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semifine.studio.snapshot import Features, Indices

SHARPNESS = 16.0
"""Similarity of two images is ``exp(SHARPNESS * (cosine - 1))``."""
COVERAGE_POWER = 0.5
POOL_SIZE = 1000
"""The most uncertain images, among which the start of the queue is chosen."""
REFERENCE_SIZE = 2000
"""Images that the chosen ones should speak for; a random sample if there are more."""
NUM_CHOSEN = 60
"""Length of the chosen start of the queue. The next refit chooses again."""


def greedy_coverage(
    similarity: NDArray[np.float32], own: Indices, uncertainty: NDArray[np.float32], count: int
) -> Indices:
    """Chooses images one by one: the uncertainty of an image times the root of the uncertainty around it.

    Each choice lowers the uncertainty around it, so that the next one is elsewhere.

    Args:
        similarity: Similarity of P candidates to R images ``(P, R)``, from 0 to 1.
        own: Position of each candidate among the R images ``(P,)``.
        uncertainty: Uncertainty of the R images ``(R,)``.
        count: Number of candidates to choose.

    Returns:
        Candidates in the order of choice.

    Example:
        >>> similarity = np.array([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]], np.float32)
        >>> greedy_coverage(similarity, np.arange(3), np.array([0.9, 0.8, 0.7], np.float32), count=2).tolist()
        [0, 2]
    """
    left = uncertainty.astype(np.float32).copy()
    around = similarity @ left
    direct = uncertainty[own]
    chosen: list[int] = []
    for _ in range(min(count, len(own))):
        score = np.maximum(around, 0) ** COVERAGE_POWER * direct
        score[chosen] = -np.inf
        best = int(score.argmax())
        chosen.append(best)
        explained = left * similarity[best]
        left -= explained
        around -= similarity @ explained
    return np.array(chosen, np.int64)


def rank_by_coverage(confidence: NDArray[np.float32], features: Features, is_answered: NDArray[np.bool_]) -> Indices:
    """Ranks all images: first a choice by :func:`greedy_coverage`, then the rest by uncertainty, answered ones last.

    Args:
        confidence: Highest probability of each image ``(U,)``.
        features: Normalized features ``(U, D)``.
        is_answered: Mask of the images with a label ``(U,)``.
    """
    uncertainty = np.where(is_answered, 0, 1 - confidence).astype(np.float32)
    by_uncertainty = np.lexsort((np.arange(len(confidence)), -uncertainty, is_answered))
    waiting = by_uncertainty[: int((~is_answered).sum())]
    pool = waiting[:POOL_SIZE]
    if not len(pool):
        return by_uncertainty
    others = waiting[POOL_SIZE:]
    limit = REFERENCE_SIZE - len(pool)
    if len(others) > limit:
        others = np.random.default_rng(0).choice(others, limit, replace=False)
    reference = np.concatenate([pool, others])
    similarity = np.exp(SHARPNESS * (features[pool] @ features[reference].T - 1))
    first = pool[greedy_coverage(similarity, np.arange(len(pool)), uncertainty[reference], NUM_CHOSEN)]
    rest = by_uncertainty[~np.isin(by_uncertainty, first)]
    return np.concatenate([first, rest])
