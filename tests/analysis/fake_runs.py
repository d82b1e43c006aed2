"""Run folders as training leaves them, made up in a moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from semifine.run_folder import RunFolder, write_json


def planted_counts(groups: Sequence[str], seed: int = 0, within: float = 20, between: float = 0.5) -> NDArray[np.int64]:
    """Transitions that mostly stay within a group."""
    names = np.array(groups)
    rate = np.where(names[:, None] == names, within, between)
    counts = np.random.default_rng(seed).poisson(rate)
    np.fill_diagonal(counts, 0)
    return counts


def make_groups(num_groups: int, size: int) -> list[str]:
    return [f"Genus {place // size}" for place in range(num_groups * size)]


def write_run(
    path: Path,
    method: str = "soc",
    *,
    seed: int = 0,
    names: Sequence[str] = (),
    groups: Sequence[str] | None = None,
    transitions: NDArray[np.int64] | None = None,
    top1: float | None = 60.0,
    val: float | None = None,
    truth_known: bool = True,
    images_per_class: int = 10,
    settings: dict[str, Any] | None = None,
) -> Path:
    """One finished run; without ``top1`` it has no test images, without ``val`` no validation images."""
    names = list(names) or [f"class {place}" for place in range(len(groups or range(6)))]
    folder = RunFolder(path)
    path.mkdir(parents=True)
    written = {
        "data": {"source": "synthetic", "species": 8},
        "method": {"name": method, "alpha": 5.0} if method == "soc" else {"name": method},
        "iterations": 1000,
        "backbone": "resnet18",
        "crop_scale": [0.2, 1.0],
        "seed": seed,
        "cache": None,
        **(settings or {}),
    }
    folder.settings.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
    environment = {"semifine": "0.1.0", "device": "a processor", "kind": "cpu", "torch": "2.15"}
    write_json(folder.environment, environment)
    write_json(folder.classes, {"names": names, "groups": groups})
    evaluations = write_metrics(folder, method, top1, val, truth_known)
    write_matrices(folder, names, transitions, top1, images_per_class)
    unlabelled = write_samples(folder, method, truth_known)
    result = {
        "method": method,
        "data": "synthetic",
        "seed": seed,
        "iterations": 1000,
        "top1": top1,
        "top5": None if top1 is None else min(100.0, top1 + 20.25),
        **({} if val is None else {"val": {"top1": val, "top5": val + 10}}),
        "unlabelled": unlabelled,
        "num_classes": len(names),
        "set_aside": [],
        "seconds": 123.4,
        "environment": environment,
    }
    if top1 is not None:
        best = max(record["test_top1"] for record in evaluations)
        result["best_on_test"] = {"top1": best, "top5": best + 20, "note": "not an honest estimate"}
    if top1 is not None and val is not None:
        result["selected_on_val"] = {"step": 900, "top1": top1 - 0.75, "top5": top1 + 15}
    write_json(folder.result, result)
    return path


def write_metrics(
    folder: RunFolder, method: str, top1: float | None, val: float | None, truth_known: bool
) -> list[dict[str, Any]]:
    """Twenty lines of training numbers, ten evaluations."""
    evaluations = []
    for step in range(50, 1001, 50):
        share = (1 - np.exp(-step / 300)) / (1 - np.exp(-1000 / 300))
        numbers: dict[str, Any] = {"kind": "train", "step": step, "loss": 2.0 - share, "images_per_second": 500.0}
        if method != "supervised":
            numbers["candidates"] = 12 - 9 * share if method == "soc" else 1.0
            numbers["accepted"] = 1.0
        if method != "supervised" and truth_known:
            numbers |= {"pseudo_label_accuracy": 65 * share, "candidate_hit_rate": 95 - 10 * share}
        folder.append_metrics(numbers)
        if step % 100 == 0:
            record: dict[str, Any] = {"kind": "evaluation", "step": step}
            if val is not None:
                record |= {"val_top1": val * share, "val_top5": 100 * share}
            if top1 is not None:
                record |= {"test_top1": top1 * share + 4 * (step == 900), "test_top5": 100 * share}
            folder.append_metrics(record)
            evaluations.append(record)
    return evaluations


def write_matrices(
    folder: RunFolder,
    names: Sequence[str],
    transitions: NDArray[np.int64] | None,
    top1: float | None,
    images_per_class: int,
) -> None:
    facts: dict[str, NDArray[Any]] = {}
    if transitions is not None:
        facts["transitions"] = transitions.astype(np.int32)
    if top1 is not None:
        rng = np.random.default_rng(1)
        weight = np.ones((len(names), len(names))) if transitions is None else transitions + 0.3
        np.fill_diagonal(weight, 0)
        weight = (100 - top1) / 100 * weight / weight.sum(axis=1, keepdims=True) + top1 / 100 * np.eye(len(names))
        facts["confusion"] = np.stack([rng.multinomial(images_per_class, row / row.sum()) for row in weight])
    save_file(facts or {"none": np.zeros(0)}, folder.class_facts)


def write_samples(folder: RunFolder, method: str, truth_known: bool) -> dict[str, float]:
    table = {
        "index": np.arange(4),
        "truth": np.array([0, 1, 2, 3]) if truth_known else np.full(4, -1),
        "confidence": np.array([0.9, 0.8, 0.5, 0.3], np.float32),
        "candidates": pa.array([[0], [1, 2], [2], [0, 3]], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(table), folder.samples)
    means = {"images": 4000.0, "candidates": 3.2 if method == "soc" else 1.0, "confidence": 0.6}
    if truth_known:
        means |= {"pseudo_label_accuracy": 61.25, "candidate_hit_rate": 84.5, "z_obj1": 0.4}
    return means


def result_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "result.json").read_text(encoding="utf-8")))
