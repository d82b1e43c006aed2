"""A trained model that answers with logits: a run folder, or an exported file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.inference.prediction import ModelMetadata
from semifine.inference.preprocess import Preprocessor

Device = Literal["auto", "cpu", "cuda"]


class Model(Protocol):
    """What predictions need."""

    @property
    def metadata(self) -> ModelMetadata:
        """What is known beside the network."""
        ...

    @property
    def identity(self) -> str:
        """Changes with the weights."""
        ...

    @property
    def calibration_note(self) -> str:
        """One sentence about how its confidences are calibrated."""
        ...

    @property
    def preprocessor(self) -> Preprocessor:
        """How it gets to see images."""
        ...

    @property
    def batch_size(self) -> int:
        """How many images at a time suit it."""
        ...

    def logits(self, views: Sequence[Any]) -> Logits:
        """N views of its sight, (S, S, 3) levels each -> (N, K)."""
        ...


def open_model(path: Path, checkpoint: Literal["last", "best_val"] | None, device: Device) -> Model:
    """The model in a run folder, by default its last one, or in an ONNX file, which needs no torch."""
    if path.suffix.lower() == ".onnx":
        if checkpoint is not None:
            raise UserError(f"{path} holds one set of weights: leave out --checkpoint, which is chosen at export.")
        from semifine.inference.onnx_model import OnnxModel

        return OnnxModel(path, device)
    if path.is_file():
        raise UserError(f"{path} cannot predict: give the folder of a run, or an .onnx file of 'semifine export'.")
    from semifine.inference.run import Run

    return Run(path, checkpoint or "last", device)
