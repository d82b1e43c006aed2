"""The network of a run with its initial weights, and the trained networks that methods use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open

from semifine.config import RunSettings, TrainSettings
from semifine.config.train_settings import seed_for
from semifine.errors import UserError
from semifine.files import damage_as_user_error
from semifine.methods import method_class
from semifine.models.classifier import Classifier, check_image_size, create_classifier, fill_zero_scales, normalization
from semifine.models.imagenet import load_imagenet_weights
from semifine.models.pretrained import ClassNames, LoadReport, load_weights_file
from semifine.runs.checkpoint import WEIGHTS, check_weights, newest_checkpoint
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run


def create_network(
    settings: RunSettings, folder: RunFolder, class_names: Sequence[str], *, always_load: bool = False
) -> tuple[Classifier, LoadReport | None]:
    """Creates the classifier of a run.

    Args:
        settings: Settings of the run.
        folder: The run folder.
        class_names: Names of the classes.
        always_load: Load the initial weights even if the run has a checkpoint.

    Returns:
        The classifier, and a report of the weights that were loaded. The report is None for random weights, and for a
        run with a checkpoint, which needs no initial weights.
    """
    train = settings.train
    torch.manual_seed(seed_for("weights", train))
    method = method_class(settings.method)
    num_classes = len(class_names) if method.trains_classifier else 0
    heads = partial(method.create_heads, settings.method_settings, len(class_names))
    classifier = create_classifier(
        train.backbone, num_classes, train.image_size, heads, drop_path=train.drop_path, **train.network_options
    )
    if not train.zero_init_last:
        fill_zero_scales(classifier.backbone)
    check_image_size(classifier, train.backbone, train.image_size)
    if not always_load and newest_checkpoint(folder.checkpoints)[0] is not None:
        return classifier, None
    return classifier, load_initial_weights(classifier, train, class_names)


def load_initial_weights(
    classifier: Classifier, settings: TrainSettings, class_names: Sequence[str]
) -> LoadReport | None:
    """Loads the weights that the settings name; returns None if the weights stay random."""
    if settings.weights is None:
        if settings.weights_head == "keep":
            raise UserError("--weights-head keep needs a weights file: set --weights.")
        if not settings.pretrained:
            return None
        return load_imagenet_weights(classifier, settings.backbone, settings.image_size, settings.backbone_args)
    path = find_weights(Path(settings.weights))
    if path.name == WEIGHTS:
        check_weights(path.parent)
    if settings.weights_head != "auto":
        return load_weights_file(classifier, path, keep_head=settings.weights_head == "keep")
    names = ClassNames(_class_names_of(path), class_names)
    knows_some = classifier.num_classes > 0 and not set(names.file).isdisjoint(class_names) and _has_classifier(path)
    return load_weights_file(classifier, path, knows_some, names if knows_some else None)


def find_weights(path: Path) -> Path:
    """Returns the weights file at a path: a file, a checkpoint folder, or a run folder, whose result is used."""
    if not path.is_dir():
        return path
    folder = RunFolder(path)
    checkpoints = folder.checkpoints
    result = [checkpoints / Run(path).find_checkpoint() / WEIGHTS] if folder.result.is_file() else []
    for file in (*result, checkpoints / "last" / WEIGHTS, checkpoints / "probe" / WEIGHTS, path / WEIGHTS):
        if file.is_file():
            return file
    raise UserError(f"The folder {path} contains no weights: it is neither a run with a checkpoint nor a checkpoint.")


def _has_classifier(path: Path) -> bool:
    """Returns whether a weights file of semifine has a classifier; networks of self-supervised runs have none."""
    with damage_as_user_error(path), safe_open(path, "pt") as tensors:
        return "head.weight" in tensors.keys()  # noqa: SIM118


def _class_names_of(path: Path) -> list[str]:
    """Returns the class names of the run that a weights file belongs to; none for other files."""
    if path.name != WEIGHTS or path.parent.parent.name != "checkpoints":
        return []
    folder = RunFolder(path.parent.parent.parent)
    return folder.read_class_names() if folder.classes.is_file() else []


def load_frozen(path: Path, like: Classifier, class_names: tuple[str, ...], settings: TrainSettings) -> Classifier:
    """Loads the trained network that a method uses, without gradient.

    Args:
        path: A run folder, with any backbone of the same normalization, or a weights file for the run's own backbone.
        like: The network of the run.
        class_names: The classes of the run.
        settings: The training settings of the run.
    """
    if path.is_dir():
        run = Run(path)
        if run.class_names != class_names:
            raise UserError(f"The run in {path} has other classes than the data; choose another run.")
        network = run.load_network()
        if not network.num_classes:
            raise UserError(f"{path} contains no classifier of these {len(class_names)} classes; choose another run.")
    else:
        network = create_classifier(
            settings.backbone, len(class_names), settings.image_size, **settings.network_options
        ).eval()
        load_weights_file(network, path, keep_head=True)
    if normalization(network) != normalization(like):
        raise UserError(
            f"The network in {path} needs another normalization of images than '{settings.backbone}'; "
            "choose a run with the same backbone."
        )
    return network.requires_grad_(False)
