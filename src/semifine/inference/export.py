"""Exports a trained model as one file and compares the file with the run."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import nn

from semifine.data.decode import Pixels
from semifine.errors import UserError
from semifine.files import atomic_file, damage_as_user_error
from semifine.inference.calibration import softmax
from semifine.inference.model import TrainedModel
from semifine.inference.network import ImageClassifier, random_images
from semifine.inference.onnx_model import METADATA, OnnxModel
from semifine.inference.prediction import ModelMetadata
from semifine.models.classifier import create_classifier

Format = Literal["onnx", "torch", "safetensors"]
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


def format_of(out: Path) -> Format:
    """Returns the export format for the suffix of a file.

    Example:
        >>> format_of(Path("model.onnx"))
        'onnx'
    """
    for format, suffix in SUFFIX.items():
        if out.suffix.lower() == suffix:
            return format
    *first, last = SUFFIX.values()
    raise UserError(f"--out must end in {', '.join(first)} or {last}, not '{out.name}'.")


def check_suffix(out: Path, format: Format) -> None:
    """Raises ``UserError`` if the suffix of a file does not belong to the format."""
    if out.suffix.lower() != SUFFIX[format]:
        raise UserError(f"--format {format} writes {SUFFIX[format]} files, not '{out.name}': change one of them.")


CHECKED_BATCH_SIZES = (1, 2, 5)
TOLERANCE = 1e-3
"""Largest accepted difference of a probability; kernels of other libraries round differently."""

Array = NDArray[np.floating[Any]]
Network = Callable[[Pixels], tuple[Array, Array]]
"""Maps images ``(N, S, S, 3)`` to calibrated probabilities and logits ``(N, K)``."""


def export(model: TrainedModel, out: Path, format: Format) -> float:
    """Exports a model and compares the exported file with it.

    Args:
        model: The trained model.
        out: File to write; must not exist.
        format: ``"onnx"``, ``"torch"`` or ``"safetensors"``.

    Returns:
        The largest difference of a probability between the exported file and the model.

    Raises:
        UserError: If the file exists, or if a probability differs by more than ``TOLERANCE``.
    """
    check_suffix(out, format)
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent}, the folder of --out, does not exist.")
    metadata = model.metadata
    network = copy.deepcopy(model.network).cpu()  # the original stays on its device
    classifier = ImageClassifier(network, metadata.calibration.temperature).eval()
    write, read = {
        "onnx": (_write_onnx, _read_onnx),
        "torch": (_write_torch, _read_torch),
        "safetensors": (_write_safetensors, _read_safetensors),
    }[format]
    with atomic_file(out) as partial:
        write(classifier, metadata, partial)
        difference = largest_difference(classifier, metadata.image_size, read(partial))
        if not difference <= TOLERANCE:
            raise UserError(
                f"The exported model differs from the run by {difference:.2g} in a probability, so it was removed: "
                "try another --format."
            )
    return difference


def largest_difference(classifier: ImageClassifier, size: int, exported: Network) -> float:
    """Returns the largest difference of a probability over batches of several sizes.

    Compares uncalibrated probabilities, too, because a high temperature would hide differences.
    """
    largest, original = 0.0, _as_network(classifier)
    for batch_size in CHECKED_BATCH_SIZES:
        images = random_images(batch_size, size)
        (expected, expected_logits), (actual, actual_logits) = original(images), exported(images)
        uncalibrated = softmax(actual_logits) - softmax(expected_logits)
        largest = max(largest, float(np.abs(actual - expected).max()), float(np.abs(uncalibrated).max()))
    return largest


def _as_network(classifier: nn.Module) -> Network:
    def run(images: Pixels) -> tuple[Array, Array]:
        with torch.inference_mode():
            probabilities, logits, _ = classifier(torch.from_numpy(images))
        return probabilities.numpy(), logits.numpy()

    return run


def _write_onnx(classifier: ImageClassifier, metadata: ModelMetadata, path: Path) -> None:
    try:
        import onnx  # optional
        import onnxscript  # noqa: F401 - optional; torch.onnx needs it
    except ImportError:
        raise UserError("Export to ONNX needs more packages: pip install 'semifine[export]'.") from None
    with _quiet():
        program = torch.onnx.export(
            classifier,
            _example(metadata),
            dynamo=True,
            input_names=["images"],
            output_names=["probabilities", "logits", "features"],
            dynamic_shapes=_any_batch(),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    model.metadata_props.add(key=METADATA, value=json.dumps(metadata.as_dict()))
    onnx.save(model, path)


def _read_onnx(path: Path) -> Network:
    session = OnnxModel(path, "cpu").session

    def run(images: Pixels) -> tuple[Array, Array]:
        probabilities, logits = session.run(["probabilities", "logits"], {"images": images})
        return probabilities, logits

    return run


def _write_torch(classifier: ImageClassifier, metadata: ModelMetadata, path: Path) -> None:
    data = io.BytesIO()  # PyTorch would report a full disk as a RuntimeError that names no file
    with _quiet():
        program = torch.export.export(classifier, _example(metadata), dynamic_shapes=_any_batch())
        torch.export.save(program, data, extra_files={METADATA: json.dumps(metadata.as_dict())})
    path.write_bytes(data.getvalue())


def _read_torch(path: Path) -> Network:
    with _quiet():
        return _as_network(torch.export.load(path).module())


def _write_safetensors(classifier: ImageClassifier, metadata: ModelMetadata, path: Path) -> None:
    weights = {name: value.contiguous() for name, value in classifier.network.state_dict().items()}
    # save_file would ignore the umask and make the file unreadable for other users.
    path.write_bytes(save(weights, metadata={METADATA: json.dumps(metadata.as_dict())}))


def _read_safetensors(path: Path) -> Network:
    metadata = read_safetensors_metadata(path)
    network = create_classifier(
        metadata.backbone,
        len(metadata.class_names),
        metadata.image_size,
        backbone_args=metadata.backbone_args,
        mean=metadata.mean,
        std=metadata.std,
    )
    network.load_state_dict(load_file(path))
    return _as_network(ImageClassifier(network, metadata.calibration.temperature).eval())


def read_safetensors_metadata(path: Path) -> ModelMetadata:
    """Reads the metadata of an exported safetensors file."""
    with damage_as_user_error(path), safe_open(path, "np") as file:
        return ModelMetadata.from_dict(json.loads(file.metadata()[METADATA]))


def _example(metadata: ModelMetadata) -> tuple[torch.Tensor]:
    return (torch.from_numpy(random_images(2, metadata.image_size)),)


def _any_batch() -> dict[str, Any]:
    return {"images": {0: torch.export.Dim("batch", min=1)}}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings and output of the exporters."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
