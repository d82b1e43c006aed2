"""Compares ways to use unlabeled photos in the probe.

    python benchmarks/probe_variants.py SPECIES --first 1 --draws 0 1 2 3 4 --out benchmarks/results/probe-variants.json

SPECIES contains one folder of photos per class. Each draw takes neighboring or random classes, random labels and
unlabeled photos, and the rest as test photos; ``--first`` and ``--step`` select every n-th folder, so that settings
can be chosen on some classes and measured on others. The features are computed once. ``script`` is scikit-learn's
logistic regression on the same features (needs scikit-learn).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from semifine.data.dataset import Dataset
from semifine.devices import describe_hardware
from semifine.features.extract import FeatureEvaluator
from semifine.features.probe import (
    SELF_TRAINING,
    STRENGTHS,
    LabeledFeatures,
    Linear,
    Scaling,
    SelfTraining,
    UnlabeledFeatures,
    Whitening,
    cross_validate,
    fit_logistic_regression,
    fit_probe,
    stratified_folds,
)
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.models.classifier import create_classifier
from semifine.models.imagenet import load_imagenet_weights
from semifine.version import code_version

CPU = torch.device("cpu")


class Draw(NamedTuple):
    """Rows of the labeled, unlabeled and test photos, and the class of every photo."""

    labeled: Tensor
    unlabeled: Tensor
    test: Tensor
    label: Tensor
    num_classes: int


def draw_photos(label: np.ndarray[Any, Any], seed: int, options: argparse.Namespace, neighbors: bool) -> Draw:
    random, total = np.random.default_rng(seed), int(label.max()) + 1
    if neighbors:
        first = int(random.integers(total - options.classes + 1))
        chosen = list(range(first, first + options.classes))
    else:
        chosen = sorted(random.permutation(total)[: options.classes].tolist())
    labeled, rest = [], []
    for name in chosen:
        rows = random.permutation(np.flatnonzero(label == name)).tolist()
        labeled += rows[: options.labels]
        rest += rows[options.labels :]
    rest = random.permutation(rest).tolist()
    new = np.full(total, -1)
    new[chosen] = range(options.classes)
    parts = labeled, rest[: options.unlabeled], rest[options.unlabeled :]
    return Draw(*(torch.tensor(part) for part in parts), torch.from_numpy(new)[torch.from_numpy(label)], len(chosen))


class Images(NamedTuple):
    """Scaled features of a draw, and the regularization chosen by cross-validation."""

    labeled: LabeledFeatures
    unlabeled: UnlabeledFeatures
    test: Tensor
    strength: float


def scale(draw: Draw, views: tuple[Tensor, Tensor], *, whiten: bool, mirrored: bool) -> Images:
    used = torch.cat([draw.labeled, draw.unlabeled])
    scaling: Scaling | Whitening = Whitening.of(views[0][used]) if whiten else Scaling.of(views[0][used])
    scaled = [scaling.apply(view) for view in views]
    label = draw.label[draw.labeled]
    labeled = LabeledFeatures(tuple(view[draw.labeled] for view in scaled), label, draw.num_classes)
    found = cross_validate(labeled, stratified_folds(label), STRENGTHS)
    strength = min(found, key=lambda value: found[value].loss)
    unlabeled = UnlabeledFeatures.of(*(view[draw.unlabeled] for view in scaled[: 1 + mirrored]))
    return Images(labeled, unlabeled, scaled[0][draw.test], strength)


Fit = Callable[[Images], Linear]


def self_training(**changes: Any) -> Fit:
    settings = replace(SELF_TRAINING, **changes)
    return lambda images: fit_probe(images.labeled, images.strength, images.unlabeled, settings)


class _Candidates(UnlabeledFeatures):
    """Keeps the most probable classes only, in the place of smoothing."""

    def smooth(self, probs: Tensor, settings: SelfTraining) -> Tensor:  # noqa: ARG002
        kept = probs * (probs >= probs.topk(min(3, probs.shape[1]), dim=1).values[:, -1:])
        return kept / kept.sum(dim=1, keepdim=True)


class _Averaged(UnlabeledFeatures):
    """Averages probabilities with those of the neighbors, in the place of smoothing."""

    def smooth(self, probs: Tensor, settings: SelfTraining) -> Tensor:  # noqa: ARG002
        return (probs + (self.similarity[:, :, None] * probs[self.neighbors]).sum(dim=1)) / 2


def with_labels_of(kind: type[UnlabeledFeatures]) -> Fit:
    def fit(images: Images) -> Linear:
        known = images.unlabeled
        return fit_probe(images.labeled, images.strength, kind(known.views, known.neighbors, known.similarity))

    return fit


def mutual_information(images: Images) -> Linear:
    """TIM (Boudiaf et al., NeurIPS 2020): certain predictions that are spread over the classes, with weight 0.1."""
    features, target, weight = images.labeled.stacked()
    parameters = [
        value.clone().requires_grad_() for value in fit_logistic_regression(features, target, weight, images.strength)
    ]
    unlabeled = images.unlabeled.views[0]
    optimizer = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        layer = Linear(*parameters)
        losses = -(target * torch.log_softmax(layer.logits(features), dim=1)).sum(dim=1)
        probs = torch.softmax(layer.logits(unlabeled), dim=1)
        mean = probs.mean(dim=0)
        conditional = -(probs * probs.clamp_min(1e-9).log()).sum()
        marginal = -len(probs) * (mean * mean.clamp_min(1e-9).log()).sum()
        information = 0.1 * (marginal - conditional)
        loss = images.strength * ((weight * losses).sum() - information) + parameters[0].square().sum() / 2
        (loss / len(features)).backward()
        return loss.detach() / len(features)

    optimizer.step(closure)
    return Linear(*(value.detach() for value in parameters))


PLAIN, WHITENED = {"whiten": False, "mirrored": False}, {"whiten": True, "mirrored": False}
BOTH, MIRRORED = {"whiten": True, "mirrored": True}, {"whiten": False, "mirrored": True}
VARIANTS: dict[str, tuple[dict[str, bool], Fit]] = {
    "labels alone": (PLAIN, lambda images: fit_probe(images.labeled, images.strength)),
    "labels alone, whitened": (WHITENED, lambda images: fit_probe(images.labeled, images.strength)),
    "self-training": (PLAIN, self_training(smoothing=0.0)),
    "self-training, whitened": (WHITENED, self_training(smoothing=0.0)),
    "self-training, mirror images": (MIRRORED, self_training(smoothing=0.0)),
    "self-training, whitened, mirror images": (BOTH, self_training(smoothing=0.0)),
    "self-training, smoothed": (PLAIN, self_training()),
    "self-training, whitened, smoothed": (WHITENED, self_training()),
    "all three (the default)": (BOTH, self_training()),
    "all three, smoothing 0.5": (BOTH, self_training(smoothing=0.5)),
    "all three, weight 1": (BOTH, self_training(weight=1.0)),
    "all three, eight rounds": (BOTH, self_training(rounds=8)),
    "three candidates in the place of smoothing": (BOTH, with_labels_of(_Candidates)),
    "mean of the neighbors in the place of smoothing": (BOTH, with_labels_of(_Averaged)),
    "mutual information in the place of self-training": (WHITENED, mutual_information),
}


def accuracies(draw: Draw, views: tuple[Tensor, Tensor]) -> dict[str, float]:
    truth = draw.label[draw.test]
    script = LogisticRegression(max_iter=2000).fit(views[0][draw.labeled].numpy(), draw.label[draw.labeled].numpy())
    found = {"script": 100 * float((script.predict(views[0][draw.test].numpy()) == truth.numpy()).mean())}
    scaled: dict[tuple[bool, ...], Images] = {}
    for name, (options, fit) in VARIANTS.items():
        key = tuple(options.values())
        scaled[key] = scaled.get(key) or scale(draw, views, **options)
        predicted = fit(scaled[key]).logits(scaled[key].test).argmax(dim=1)
        found[name] = 100 * float((predicted == truth).double().mean())
    return found


def compute_features(
    folders: list[Path], backbone: str, size: int
) -> tuple[tuple[Tensor, Tensor], np.ndarray[Any, Any]]:
    table = Path("build/probe-variants.csv")
    table.parent.mkdir(parents=True, exist_ok=True)
    files = [path.resolve() for folder in folders for path in sorted(folder.iterdir())]
    table.write_text("path,label\n" + "".join(f'"{path}","{path.parent.name}"\n' for path in files))
    dataset = Dataset.open(str(table), {"val_share": 0})
    store = dataset.open_store(size * 8 // 7)
    network = create_classifier(backbone, 0, size).eval()
    load_imagenet_weights(network, backbone)
    evaluator = Evaluator(store, create_preprocessor(size, size * 8 // 7, CPU), CPU)
    features = FeatureEvaluator(evaluator, network, store)
    rows = np.arange(len(dataset.catalog))
    both = tuple(torch.from_numpy(features.features(rows, flip=flip)) for flip in (False, True))
    return (both[0], both[1]), dataset.catalog.label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("species", type=Path)
    parser.add_argument("--first", type=int, default=0, help="number of the first folder")
    parser.add_argument("--step", type=int, default=2, help="distance between folders")
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--labels", type=int, default=8)
    parser.add_argument("--unlabeled", type=int, default=500)
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folders = sorted(path for path in options.species.iterdir() if path.is_dir())[options.first :: options.step]
    views, label = compute_features(folders, options.backbone, options.size)
    tables: dict[str, dict[str, list[float]]] = {}
    for kind in ("neighbors", "random"):
        rows = [accuracies(draw_photos(label, seed, options, kind == "neighbors"), views) for seed in options.draws]
        tables[kind] = {name: [round(row[name], 2) for row in rows] for name in rows[0]}
        for name, values in tables[kind].items():
            print(f"{kind:10} {name:50} {statistics.mean(values):5.1f}  {values}", flush=True)
    report = {
        "command": " ".join(["python", "benchmarks/probe_variants.py", *sys.argv[1:]]),
        "version": code_version(),
        "hardware": describe_hardware("cpu"),
        "means": {kind: {n: round(statistics.mean(v), 2) for n, v in table.items()} for kind, table in tables.items()},
        "draws": tables,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
