"""Flips labels of photos and measures how many of them ``label_check.csv`` lists.

    python benchmarks/label_errors.py PHOTOS --out benchmarks/results/label-errors.json

PHOTOS has one folder of photos per class, whose labels count as right. In each draw, the script keeps some labels of
each class, makes the other photos unlabeled, and gives a share of the labels another class at random. Then it fits the
probe as ``semifine train --method probe`` does, and compares the listed labels with the flipped ones. ``errors`` lists
all labels that the cross-validated probe does not predict, instead of confident learning. A share of 0 counts the
labels that are listed although none was flipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from provenance import provenance
from semifine.config import RunSettings
from semifine.config.loading import open_and_resolve
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.label_check import LabelCheck
from semifine.devices import resolve_device
from semifine.runs.folder import RunFolder
from semifine.training.init_weights import create_network
from semifine.training.probe import RunProbeFitter
from semifine.training.progress import Display


def draw_labels(dataset: Dataset, labels: int, share: float, seed: int) -> tuple[Dataset, set[str]]:
    """Returns the data set with some labels per class, a share of them flipped, and the paths of the flipped ones."""
    random, catalog = np.random.default_rng(seed), dataset.catalog
    truth = catalog.truth
    rows = [random.permutation(np.flatnonzero(truth == name))[:labels] for name in range(catalog.num_classes)]
    labeled = np.concatenate(rows)
    split = np.full(len(truth), np.uint8(Split.UNLABELED))
    split[labeled] = Split.LABELED
    label = np.full(len(truth), -1, np.int64)
    label[labeled] = truth[labeled]
    flipped = random.permutation(labeled)[: round(share * len(labeled))]
    label[flipped] = (truth[flipped] + random.integers(1, catalog.num_classes, len(flipped))) % catalog.num_classes
    changed = dataclasses.replace(catalog, split=split, label=label, truth=np.where(label < 0, truth, label))
    return Dataset.from_catalog(changed, dataset.store), {str(catalog.paths[row]) for row in flipped}


def measure(check: LabelCheck, flipped: set[str]) -> dict[str, Any]:
    """Returns the share of flipped labels that are listed, and the share of listed labels that are flipped."""
    wrong = [path for path, label, prediction in zip(check.paths, check.label, check.prediction, strict=True)
             if label != prediction]  # fmt: skip
    result: dict[str, Any] = {"labels": len(check.paths), "flipped": len(flipped)}
    for name, listed in (("suspects", check.paths[: check.num_suspects]), ("errors", wrong)):
        found = len(flipped & set(listed))
        result[name] = {
            "listed": len(listed),
            "recall": found / len(flipped) if flipped else None,
            "precision": found / len(listed) if listed else None,
        }
    return result


def run(dataset: Dataset, settings: RunSettings, labels: int, share: float, seed: int) -> dict[str, Any]:
    device = resolve_device(settings.train.device)
    drawn, flipped = draw_labels(dataset, labels, share, seed)
    with tempfile.TemporaryDirectory() as folder:
        network, _ = create_network(settings, RunFolder(Path(folder)), drawn.catalog.class_names)
    probe = RunProbeFitter(settings, drawn, network, torch.device(device), Display(quiet=True)).fit()
    check = probe.check_labels(drawn.catalog)
    assert check is not None
    result = {"labels_per_class": labels, "share": share, "seed": seed, **measure(check, flipped)}
    print(json.dumps(result), file=sys.stderr)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings, dataset = open_and_resolve([{"data.source": str(options.photos), "method.name": "probe"}])
    dataset.open_store(settings.train.stored_side)
    draws = [
        run(dataset, settings, labels, share, seed)
        for labels in options.labels
        for share in options.shares
        for seed in range(options.seeds)
    ]
    train, catalog = settings.train, dataset.catalog
    facts = {
        **provenance(resolve_device(train.device)),
        "backbone": train.backbone,
        "image_size": train.image_size,
        "classes": catalog.num_classes,
    }
    options.out.write_text(json.dumps({**facts, "photos": len(catalog), "draws": draws}, indent=2) + "\n")


if __name__ == "__main__":
    main()
