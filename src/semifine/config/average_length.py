"""How many steps the averaged model should hold, which is evaluated in most runs."""

from __future__ import annotations

GOOD_SHARE = 0.1
"""Of a run's steps: a longer average would hold the beginning to the end."""
LONGEST_SHARE = 0.5
"""From here on it is worth a word. After 500 steps of SoC on the embedded set, an average over 50 names 64 % of the
test images right, one over 1,000 steps 3 %."""
LONGEST_DECAY = 0.999


def averaging_decay(steps: int) -> float:
    """The decay that suits a run of so many steps."""
    return min(round(1 - 1 / max(GOOD_SHARE * steps, 1), 4), LONGEST_DECAY)


def averaged_steps(decay: float) -> int:
    """How many steps an average holds, roughly."""
    return round(1 / max(1 - decay, 1e-9))


def lags(decay: float, steps: int) -> bool:
    """Whether an average still holds much of the beginning in the end of a run."""
    return averaged_steps(decay) > LONGEST_SHARE * steps
