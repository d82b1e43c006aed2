"""Where a run's network starts: fresh, from ImageNet, or from a file or another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from semifine.config import TrainSettings
from semifine.engine.checkpoint import WEIGHTS, check_weights
from semifine.errors import UserError
from semifine.models.classifier import Classifier
from semifine.models.matching import LoadReport
from semifine.models.weights import load_imagenet_weights, load_weights_file
from semifine.run_folder import RunFolder


def load_starting_weights(
    classifier: Classifier, settings: TrainSettings, class_names: Sequence[str]
) -> LoadReport | None:
    """Fills the classifier as the settings ask; None when its weights stay fresh."""
    if settings.weights is None:
        if settings.weights_head == "keep":
            raise UserError("--weights-head keep takes the classifier of a file: name one with --weights.")
        return load_imagenet_weights(classifier, settings.backbone) if settings.pretrained else None
    path = find_weights(Path(settings.weights))
    if path.name == WEIGHTS:
        check_weights(path.parent)
    keep_head = settings.weights_head == "keep"
    if settings.weights_head == "auto" and classes_of(path) == list(class_names):
        keep_head = classifier.num_classes > 0 and has_classifier(path)
    return load_weights_file(classifier, path, keep_head)


def find_weights(path: Path) -> Path:
    """The file itself, or the evaluated model of a run or a checkpoint whose folder is given."""
    if not path.is_dir():
        return path
    for file in (RunFolder(path).checkpoints / "last" / WEIGHTS, path / WEIGHTS):
        if file.is_file():
            return file
    raise UserError(f"The folder {path} holds no weights: it is neither a run with a checkpoint nor a checkpoint.")


def has_classifier(path: Path) -> bool:
    """Whether one of our files of weights has a classifier; a network that was only pre-trained has none."""
    with safe_open(path, "pt") as tensors:
        return "head.weight" in tensors.keys()  # noqa: SIM118


def classes_of(path: Path) -> list[str] | None:
    """The class names of the run that a file of weights lies in; None for a file from elsewhere."""
    if path.name != WEIGHTS or path.parent.parent.name != "checkpoints":
        return None
    folder = RunFolder(path.parent.parent.parent)
    return folder.read_class_names() if folder.classes.is_file() else None
