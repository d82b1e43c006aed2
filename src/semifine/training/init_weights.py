"""Initial weights of a run, and networks that were trained before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from semifine.config import TrainSettings
from semifine.errors import UserError
from semifine.models.classifier import Classifier, create_classifier, normalization
from semifine.models.pretrained import LoadReport, load_imagenet_weights, load_weights_file
from semifine.runs.checkpoint import WEIGHTS, check_weights
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run


def load_initial_weights(
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


def load_frozen(path: Path, like: Classifier, classes: tuple[str, ...], settings: TrainSettings) -> Classifier:
    """A trained classifier of the same classes that a new student learns from, frozen.

    A run folder may have any backbone, as long as it wants images of the student's colors; a weights file must
    be of the student's own.
    """
    if path.is_dir():
        run = Run(path)
        if run.class_names != classes:
            raise UserError(f"The run in {path} learned other classes than those of the data.")
        network = run.load_network()
        if not network.num_classes:
            raise UserError(f"{path} holds no classifier of these {len(classes)} classes to learn from.")
    else:
        network = create_classifier(settings.backbone, len(classes), settings.image_size).eval()
        load_weights_file(network, path, keep_head=True)
    if normalization(network) != normalization(like):
        raise UserError(f"The network in {path} expects other image colors than '{settings.backbone}' does.")
    return network.requires_grad_(False)
