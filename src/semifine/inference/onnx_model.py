"""An exported ONNX file as a model. Needs onnxruntime and no PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.decode import Pixels
from semifine.errors import UserError
from semifine.files import damage_as_user_error
from semifine.inference.pipeline import BATCH_SIZE
from semifine.inference.prediction import ModelMetadata
from semifine.inference.preprocess import CpuPreprocessor

METADATA = "semifine"
"""Key of the model metadata in an exported file; the value is JSON."""


class OnnxModel:
    """A model exported by ``semifine export --format onnx``.

    Args:
        path: The ONNX file.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, path: Path, device: str = "auto") -> None:
        if not path.is_file():
            raise UserError(f"{path} does not exist: give a run folder, or an .onnx file of 'semifine export'.")
        self.path = path
        self.session = _open(path, device)
        described = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if described is None:
            raise UserError(f"{path} has no semifine metadata: export the run again with 'semifine export'.")
        with damage_as_user_error(path):
            self.metadata = ModelMetadata.from_dict(json.loads(described))
        self.preprocessor = CpuPreprocessor(self.metadata.image_size, self.metadata.stored_side)
        self.batch_size = BATCH_SIZE

    @cached_property
    def identity(self) -> str:
        """Hash of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]

    @property
    def calibration_note(self) -> str:
        """Description of the calibration in one sentence."""
        return self.metadata.calibration.describe()

    def logits(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Returns logits ``(N, K)`` of N preprocessed images, each ``(S, S, 3)`` uint8."""
        (logits,) = self.session.run(["logits"], {"images": np.stack(images)})
        return np.asarray(logits, np.float32)


def _open(path: Path, device: str) -> Any:
    try:
        import onnxruntime  # optional
    except ImportError:
        raise UserError("ONNX files need onnxruntime: pip install 'semifine[export]'.") from None
    providers = [name for name in onnxruntime.get_available_providers() if name.startswith(("CUDA", "CPU"))]
    has_cuda = any(name.startswith("CUDA") for name in providers)
    if device == "cuda" and not has_cuda:
        raise UserError("device is cuda, but this onnxruntime has no CUDA; choose --device cpu or auto.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    used = [name for name in providers if device != "cpu" or name.startswith("CPU")]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=used)
    except Exception as error:  # onnxruntime has a dozen exception classes
        raise UserError(f"{path} cannot be opened as an ONNX model: {' '.join(str(error).split())[:200]}.") from error
