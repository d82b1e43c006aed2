"""The calibration of a run: read from its folder, or fitted on its validation images and kept there."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semifine.data.catalog import Split
from semifine.data.decode import Pixels
from semifine.data.store_files import try_decode
from semifine.errors import UserError
from semifine.files import write_atomically
from semifine.inference.calibration import FEWEST_IMAGES, Calibration, calibrate
from semifine.inference.pipeline import answer
from semifine.inference.preprocess import decode_batches
from semifine.inference.view_classifier import DivergedError, check_finite, try_out

if TYPE_CHECKING:
    from semifine.inference.model import TrainedModel


def calibration_of(model: TrainedModel, identity: str) -> tuple[Calibration, str]:
    """The calibration of these weights, and one sentence about it; whatever uses a run as a classifier passes here."""
    kept = _read(model.run.folder.calibration)
    if identity in kept:
        return kept[identity], kept[identity].describe()
    try:
        fitted = fit_on_validation(model)
        note = fitted.describe()
    except DivergedError:
        raise
    except UserError as error:
        fitted, note = Calibration(), f"not calibrated, because the data of the run cannot be used: {error}"
    if fitted.is_fitted:
        with suppress(OSError):  # a folder that cannot be written to is fitted anew each time
            values = {of_weights: known.as_dict() for of_weights, known in {**kept, identity: fitted}.items()}
            write_atomically(model.run.folder.calibration, json.dumps(values) + "\n")
    else:
        try_out(model)  # no validation image has shown that the weights are of use
    return fitted, note


def fit_on_validation(model: TrainedModel) -> Calibration:
    """Reads the validation images as predictions read theirs; test images are never looked at."""
    catalog = model.run.catalog
    rows = catalog.rows(Split.VAL)
    if len(rows) < FEWEST_IMAGES:
        return Calibration()

    def decode(row: int) -> Pixels | str:
        decoded = try_decode(catalog.reader, row, model.preprocessor.known.stored_side)
        return decoded if isinstance(decoded, str) else decoded.pixels

    groups = decode_batches(rows.tolist(), decode, model.preprocessor)
    batches, readable = [], []
    for answered in answer(model.logits, model.preprocessor, groups, model.batch_size):
        batches.append(answered.logits)
        readable += [place not in answered.problems for place in range(answered.size)]
    logits = np.concatenate(batches)
    check_finite(logits, model.run.folder.path)
    return calibrate(logits, catalog.label[rows[np.array(readable)]])


def weights_identity(checkpoint: Path) -> str:
    """A hash of the weights."""
    with (checkpoint / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _read(path: Path) -> dict[str, Calibration]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {identity: Calibration.from_dict(values) for identity, values in kept.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged, or of a later version: remove it, and it will be made anew.") from error
