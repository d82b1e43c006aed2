"""Whether an evaluation leaves the facts of every unlabelled image."""

from __future__ import annotations

from semifine.config import TrainSettings

SMALL = 0.1
"""Of the images trained on since the evaluation before. A look at an image costs about a quarter of training on it, a
row of the table about 70 bytes: a run becomes about 3 % longer at most, and 50,000 steps leave about 70 MB at most."""


def keeps_facts(settings: TrainSettings, unlabelled: int, learns_from_unlabelled: bool) -> bool:
    """As the settings say; ``auto``: where there are few unlabelled images beside those of the steps in between."""
    if settings.keep_facts != "auto":
        return settings.keep_facts == "every"
    images_a_step = settings.batch_size * (1 + settings.mu * learns_from_unlabelled)
    return unlabelled <= SMALL * settings.evaluation_interval * images_a_step
