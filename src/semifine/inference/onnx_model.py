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
from semifine.inference.views import AveragedViews

METADATA = "semifine"
"""Key of the model metadata in an exported file; the value is JSON."""


class OnnxModel:
    """A model exported by ``semifine export --format onnx``.

    Args:
        path: The ONNX file.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        views: Number of views of each image whose predictions are averaged, see :class:`AveragedViews`.
    """

    def __init__(self, path: Path, device: str = "auto", views: int = 1) -> None:
        if not path.is_file():
            raise UserError(f"{path} does not exist: give a run folder, or an .onnx file of 'semifine export'.")
        self.path = path
        self.session = _open(path, device)
        described = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if described is None:
            raise UserError(f"{path} has no semifine metadata: export the run again with 'semifine export'.")
        with damage_as_user_error(path):
            self.metadata = ModelMetadata.from_dict(json.loads(described))
        self.views = AveragedViews(views, self.metadata.image_size)
        self.preprocessor = CpuPreprocessor(self.views.side, max(self.metadata.stored_side, self.views.side))
        self.batch_size = max(1, BATCH_SIZE // views)

    @cached_property
    def identity(self) -> str:
        """Hash of the file, with the number of views if there are several."""
        with self.path.open("rb") as file:
            found = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
        return found if self.views.count == 1 else f"{found}-{self.views.count}"

    @property
    def calibration_note(self) -> str:
        """Description of the calibration in one sentence."""
        return self.metadata.calibration.describe()

    def logits(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Returns logits ``(N, K)`` of N preprocessed images, each ``(S, S, 3)`` uint8."""
        views = [np.ascontiguousarray(view) for view in self.views.of(np.stack(images))]
        outputs = [self.session.run(["logits"], {"images": view})[0] for view in views]
        mean: NDArray[np.float32] = np.mean(np.asarray(outputs, np.float32), axis=0, dtype=np.float32)
        return mean


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
