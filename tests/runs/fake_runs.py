"""Run folders as training leaves them, made up in a moment."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from semifine.files import write_json
from semifine.methods.base import PseudoLabels
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run
from semifine.soft_labels.selector import select_candidates
from semifine.training.sample_stats import sample_stats, summarize, write_sample_table


def planted_counts(groups: Sequence[str], seed: int = 0, within: float = 20, between: float = 0.5) -> NDArray[np.int64]:
    """Transitions that mostly stay within a group."""
    names = np.array(groups)
    rate = np.where(names[:, None] == names, within, between)
    counts = np.random.default_rng(seed).poisson(rate)
    np.fill_diagonal(counts, 0)
    return counts


def make_groups(num_groups: int, size: int) -> list[str]:
    return [f"Genus {place // size}" for place in range(num_groups * size)]


def changed_run(run: Run, **parts: Any) -> Run:
    """A copy of a run, some of whose parts are replaced, such as its result."""
    copied = copy.copy(run)
    vars(copied).update(parts)
    return copied


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
    val_images: int | None = None,
    settings: dict[str, Any] | None = None,
    unlabeled: int = 0,
    result: dict[str, Any] | None = None,
) -> Path:
    """One finished run; without ``top1`` it has no test images, without ``val`` no validation images.

    With ``unlabeled`` images it has the whole facts of them, the labels of each class and findings about the data.
    ``result`` replaces entries of ``result.json``.
    """
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
    means = write_samples(folder, method, truth_known)
    if unlabeled:
        means = write_stats(folder, method, names, groups, unlabeled, truth_known)
    written_result: dict[str, Any] = {
        "method": method,
        "data": "synthetic",
        "seed": seed,
        "iterations": 1000,
        "top1": top1,
        "top5": None if top1 is None else min(100.0, top1 + 20.25),
        **({} if val is None else {"val": {"top1": val, "top5": val + 10}}),
        "unlabeled": means,
        "num_classes": len(names),
        **({} if val_images is None else {"images": {"val": val_images, "test": 0}}),
        "unreadable": [],
        "seconds": 123.4,
        "time": {"start_up": 6.6, "steps": 100.0, "evaluation": 20.8, "saving": 2.6},
        "environment": environment,
    }
    if top1 is not None:
        best = max(record["test_top1"] for record in evaluations)
        written_result["best_on_test"] = {"top1": best, "top5": best + 20, "note": "not an honest estimate"}
    if top1 is not None and val is not None:
        written_result["selected_on_val"] = {"step": 900, "top1": top1 - 0.75, "top5": top1 + 15}
    write_json(folder.result, {**written_result, **(result or {})})
    return path


def write_metrics(
    folder: RunFolder, method: str, top1: float | None, val: float | None, truth_known: bool
) -> list[dict[str, Any]]:
    """Twenty lines of training numbers, ten evaluations."""
    evaluations = []
    for step in range(50, 1001, 50):
        share = (1 - np.exp(-step / 300)) / (1 - np.exp(-1000 / 300))
        numbers: dict[str, Any] = {"kind": "train", "step": step, "loss": 2.0 - share, "images_per_second": 500.0}
        numbers |= {"data_wait": 0.25, "step_seconds": 0.1}
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
            if method == "soc" and evaluations:
                record["cluster_changes"] = 12 - 12 * share
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
    stats: dict[str, NDArray[Any]] = {}
    if transitions is not None:
        stats["transitions"] = transitions.astype(np.int32)
    if top1 is not None:
        rng = np.random.default_rng(1)
        weight = np.ones((len(names), len(names))) if transitions is None else transitions + 0.3
        np.fill_diagonal(weight, 0)
        weight = (100 - top1) / 100 * weight / weight.sum(axis=1, keepdims=True) + top1 / 100 * np.eye(len(names))
        stats["confusion"] = np.stack([rng.multinomial(images_per_class, row / row.sum()) for row in weight])
    save_file(stats or {"none": np.zeros(0)}, folder.class_stats)


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


def write_stats(
    folder: RunFolder, method: str, names: Sequence[str], groups: Sequence[str] | None, images: int, truth_known: bool
) -> dict[str, Any]:
    """Facts of made-up predictions that confuse classes of a group, by the definitions that training uses."""
    size = len(names)
    of_group = np.unique(np.array(groups), return_inverse=True)[1] if groups else np.arange(size) // 2
    random = np.random.default_rng(7)
    truth = random.integers(0, size, images)
    truth[: images // 50] = size  # of no class
    batches = [
        _facts_of(range(start, min(start + 1000, images)), truth[start : start + 1000], of_group, method, random)
        for start in range(0, images, 1000)
    ]
    if not truth_known:
        batches = [{**batch, "truth": np.full(len(batch["truth"]), -1)} for batch in batches]
    stats = write_sample_table(folder.samples, iter(batches))
    assert stats is not None
    predicted = np.bincount(stats["prediction"], minlength=size)
    for share in (1, 2, 3, 4):
        counts = (predicted * share / 4).round().astype(int).tolist()
        folder.append_metrics({"kind": "classes", "step": 250 * share, "predicted": counts, "accepted": counts})
    report = {
        "name": "made up",
        "splits": {"labeled": 5 * size, "unlabeled": images, "val": 2 * size, "test": 10 * size},
        "classes": {name: {"labeled": 5, "val": 0, "test": 10} for name in names},
        "labeled_per_class": {"min": 5, "median": 5.0, "max": 5},
        "unlabeled_truth": {"known_class": images - images // 50, "other_class": images // 50, "unknown": 0},
        "duplicates": [["a/1.jpg", "b/<1>.jpg"]],
        "errors": [],
        "warnings": ["1 image has exact copies in unlabeled (a/1.jpg = b/<1>.jpg)."],
    }
    write_json(folder.data, report)
    return summarize(stats, size)


def _facts_of(
    rows: range, truth: NDArray[np.int64], of_group: NDArray[np.int64], method: str, random: np.random.Generator
) -> dict[str, NDArray[Any]]:
    size = len(of_group)
    kin = of_group[np.minimum(truth, size - 1)][:, None] == of_group
    logits = random.normal(0, 1, (len(truth), size)) + 2 * kin + 3 * (truth[:, None] == np.arange(size))
    probs = torch.softmax(torch.from_numpy(logits), dim=1)
    confidence, prediction = probs.max(dim=1)
    groups = torch.from_numpy(of_group)
    alike = groups[prediction][:, None] == groups
    sure = (confidence > 0.7) if method == "soc" else torch.ones_like(prediction, dtype=torch.bool)
    candidates = torch.where(sure[:, None], torch.nn.functional.one_hot(prediction, size).bool(), alike)
    target = select_candidates(probs, candidates)
    k = 2 + (confidence * size / 5).long() if method == "soc" else None
    pseudo = PseudoLabels(probs, target, torch.ones(len(probs)), k)
    return {
        "index": np.array(rows),
        "path": np.array([f"unlabeled/photo {row:06d}.jpg" for row in rows], dtype=object),
        **{name: value.numpy() for name, value in sample_stats(pseudo, torch.from_numpy(truth)).items()},
        "changes": random.poisson(3 * (1 - confidence.numpy())),
        "candidates": target.float().numpy(),
    }


def result_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "result.json").read_text(encoding="utf-8")))
