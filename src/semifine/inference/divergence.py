"""Weights of a training that diverged: whatever the image, their logits are no numbers to go by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.inference.pictures import pictures
from semifine.inference.view_classifier import ViewClassifier

if TYPE_CHECKING:
    from semifine.inference.run import Run

PICTURES = 5


class DivergedError(UserError):
    """The weights are of no use, unlike data that cannot be found, without which a run still predicts."""


def check_finite(logits: Logits, folder: Path) -> None:
    """Refuses the weights of the run in a folder by what they answered."""
    if not np.isfinite(logits).all():
        raise DivergedError(
            f"The weights of {folder} give no finite numbers (the training diverged): train again with a lower --lr."
        )


@torch.inference_mode()
def try_out(run: Run) -> None:
    """Refuses weights that answer a few pictures without finite numbers; all of them may be finite themselves.

    In float32, and not by ``run.logits``: on a GPU such pictures could change its number format for good.
    """
    views = torch.from_numpy(pictures(PICTURES, run.settings.image_size)).to(run.device)
    _, logits, _ = ViewClassifier(run.network).to(run.device)(views)
    check_finite(logits.cpu().numpy(), run.folder.path)
