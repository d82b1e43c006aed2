"""Learning rate over time, as a pure function of the step."""

from __future__ import annotations

import math

from semifine.config import TrainSettings

STEPS = (0.6, 0.8)
"""Shares of the horizon at which the schedule of MoCo v1 divides the learning rate by ten."""

FLOOR = 1e-3
"""What PyContrast's cosine leaves of the learning rate."""


def learning_rate_factor(step: int, settings: TrainSettings) -> float:
    """What the learning rate is multiplied with at a step.

    ``cos716`` is t/W for t < W, then max(0, cos(7/16 pi (t - W) / (T - W))), ending at 0.195;
    ``half_cosine`` ends at 0, ``half_cosine_floor`` at a thousandth; ``steps`` divides by ten at 60 % and at 80 %. T is
    the horizon, W its warm-up share.
    """
    horizon = settings.horizon or settings.iterations
    warmup = round(settings.warmup * horizon)
    if step < warmup:
        return step / warmup
    done = (step - warmup) / max(1, horizon - warmup)
    if settings.schedule == "cos716":
        return max(0.0, math.cos(7 / 16 * math.pi * done))
    half_cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if settings.schedule == "half_cosine":
        return half_cosine
    if settings.schedule == "half_cosine_floor":
        return FLOOR + (1 - FLOOR) * half_cosine
    if settings.schedule == "steps":
        return 0.1 ** sum(done >= share for share in STEPS)
    return 1.0
