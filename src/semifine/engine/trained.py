"""Networks that were trained before: those of a run folder, or of a weights file."""

from __future__ import annotations

from pathlib import Path

from semifine.config import TrainSettings, read_train_settings
from semifine.engine.checkpoint import load_weights
from semifine.errors import UserError
from semifine.models.classifier import Classifier, create_classifier, normalisation
from semifine.models.weights import load_weights_file
from semifine.run_folder import RunFolder


def load_trained(folder: RunFolder, checkpoint: str = "last") -> Classifier:
    """The evaluated network of a run, in eval mode, without the heads that only training needs."""
    settings = read_train_settings(folder.settings)
    weights = load_weights(folder.checkpoints / checkpoint)
    num_classes = len(folder.read_class_names()) if "head.weight" in weights else 0
    network = create_classifier(settings.backbone, num_classes, settings.image_size)
    try:
        network.load_state_dict({name: value for name, value in weights.items() if not name.startswith("heads.")})
    except RuntimeError as error:
        raise UserError(
            f"The weights in {folder.checkpoints / checkpoint} are not of the network that {folder.settings} and "
            f"{folder.classes} describe ({settings.backbone}, {num_classes} classes): one of these files belongs to "
            "another run."
        ) from error
    return network.eval()


def load_frozen(path: Path, like: Classifier, classes: tuple[str, ...], settings: TrainSettings) -> Classifier:
    """A trained classifier of the same classes that a new student learns from, frozen.

    A run folder may have any backbone, as long as it wants images of the student's colours; a weights file must
    be of the student's own.
    """
    if path.is_dir():
        folder = RunFolder.open(path)
        if folder.read_class_names() != list(classes):
            raise UserError(f"The run in {path} learnt other classes than those of the data.")
        network = load_trained(folder)
        if not network.num_classes:
            raise UserError(f"{path} holds no classifier of these {len(classes)} classes to learn from.")
    else:
        network = create_classifier(settings.backbone, len(classes), settings.image_size).eval()
        load_weights_file(network, path, keep_head=True)
    if normalisation(network) != normalisation(like):
        raise UserError(f"The network in {path} expects other image colours than '{settings.backbone}' does.")
    return network.requires_grad_(False)
