"""Checkpoints in the layouts of other projects, with a small network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semifine.models.classifier import Classifier, create_classifier

BACKBONE = "test_resnet"
CLASSES = 6


def small_classifier(seed: int, num_classes: int = CLASSES) -> Classifier:
    """A classifier with random values in all tensors, including batch-norm statistics."""
    torch.manual_seed(seed)
    classifier = create_classifier(BACKBONE, num_classes, 32)
    for value in classifier.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.1, 1)
    return classifier


def named(classifier: Classifier, prefix: str = "", head: int | None = None) -> dict[str, Tensor]:
    """Tensors of the backbone with a prefix, and a head ``fc`` with ``head`` classes."""
    state = {prefix + name: value for name, value in classifier.backbone.state_dict().items()}
    if head == classifier.head.out_features:
        state |= {f"{prefix}fc.{name}": value for name, value in classifier.head.state_dict().items()}
    elif head:
        state |= {f"{prefix}fc.weight": torch.ones(head, classifier.head.in_features)}
        state |= {f"{prefix}fc.bias": torch.ones(head)}
    return state


def sgd_state(classifier: Classifier) -> dict[str, Any]:
    return torch.optim.SGD(classifier.parameters(), lr=np.float64(0.1).item(), momentum=0.9).state_dict()


def supervised(of: Classifier, other: Classifier, prefix: str = "") -> dict[str, Any]:
    """Su et al.: ``model`` is a name, and the best accuracy is a NumPy number."""
    return {
        "iteration": 10_000,
        "best_acc": np.float64(53.1),
        "model": "resnet50",
        "model_state_dict": named(of, prefix, head=CLASSES),
        "optimizer_state_dict": sgd_state(other),
    }


def inat(of: Classifier, _: Classifier) -> dict[str, Any]:
    return {"epoch": 75, "arch": "resnet50", "best_acc1": torch.tensor(60.0), "state_dict": named(of, "module.", 8142)}


def pycontrast(of: Classifier, other: Classifier) -> dict[str, Any]:
    """MoCo by PyContrast: the key encoder is separate and has no prefix of data parallelism."""
    width = of.head.in_features
    projection = {"head.0.weight": torch.ones(128, width), "head.0.bias": torch.ones(128)}
    return {
        "opt": argparse.Namespace(arch="resnet50", lr=np.float64(0.03), crop=np.array([0.2, 1.0]), epochs=[120, 160]),
        "model": named(of, "module.encoder.") | {f"module.{name}": value for name, value in projection.items()},
        "model_ema": named(other, "encoder.") | projection,
        "contrast": {"memory": torch.ones(32, 128)},
        "optimizer": sgd_state(other),
        "epoch": np.int64(800),
    }


def moco(of: Classifier, other: Classifier) -> dict[str, Any]:
    """MoCo's own: both encoders in one table, the key encoder first here to make the choice hard."""
    width = of.head.in_features
    state = named(other, "module.encoder_k.") | named(of, "module.encoder_q.")
    state |= {"module.encoder_q.fc.0.weight": torch.ones(width, width), "module.encoder_q.fc.0.bias": torch.ones(width)}
    return {"epoch": 200, "arch": "resnet50", "state_dict": state | {"module.queue": torch.ones(128, 64)}}


def soc(of: Classifier, other: Classifier) -> dict[str, Any]:
    """SoC's released code: the trained and the evaluated network."""
    return {
        "train_model": named(other, "feature_extractor.", CLASSES),
        "eval_model": named(of, "feature_extractor.", CLASSES),
        "optimizer": sgd_state(other),
        "scheduler": {"base_lrs": [0.01], "last_epoch": 3, "lr_lambdas": [None]},
        "it": 3,
    }


def old_torchvision(of: Classifier, _: Classifier) -> dict[str, Any]:
    """Files from before torch 0.4.1 count no batches."""
    return {name: value for name, value in named(of, head=1000).items() if "num_batches_tracked" not in name}


Layout = Callable[[Classifier, Classifier], dict[str, Any]]

# Files whose head speaks of our classes, and files whose head does not, or which have none.
WITH_OUR_HEAD: dict[str, Layout] = {
    "supervised": supervised,
    "supervised on several GPUs": lambda of, other: supervised(of, other, "module."),
    "SoC": soc,
    "SoC's input": lambda of, _: {"model_state_dict": named(of, "module.", CLASSES)},
    "TorchSSL": lambda of, other: {"model": named(other, head=CLASSES), "ema_model": named(of, head=CLASSES), "it": 1},
    "timm's training": lambda of, other: {
        "state_dict": named(other, head=CLASSES),
        "state_dict_ema": named(of, head=CLASSES),
        "args": argparse.Namespace(model="resnet50"),
    },
    "ours": lambda of, _: of.state_dict(),
    "plain": lambda of, _: named(of, head=CLASSES),
}
WITHOUT_OUR_HEAD: dict[str, Layout] = {
    "torchvision or timm": lambda of, _: named(of, head=1000),
    "old torchvision": old_torchvision,
    "iNaturalist": inat,
    "PyContrast, Su et al.'s MoCo": pycontrast,
    "MoCo": moco,
    "MoCo, query encoder alone": lambda of, _: {"state_dict": named(of, "module.encoder_q.", CLASSES)},
}
ALL = WITH_OUR_HEAD | WITHOUT_OUR_HEAD
