"""The result of a run: statistics, calibration, and the choice between the trained network and the probe."""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import asdict
from typing import Any, cast

import torch

from semifine.config import RunSettings
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.devices import peak_gpu_bytes
from semifine.errors import UserError
from semifine.files import read_json, write_json
from semifine.inference.model import TrainedModel
from semifine.inference.network import DivergedError
from semifine.inference.prediction import Checkpoint
from semifine.methods import method_class
from semifine.models.classifier import Classifier
from semifine.runs.checkpoint import save_interpolated
from semifine.runs.folder import RunFolder
from semifine.runs.run import CHECKPOINT_OF, Run
from semifine.training.evaluate import RunEvaluator
from semifine.training.interpolation import DEFAULT_WEIGHT, Comparison, compare, interpolate
from semifine.training.probe import RunProbe, RunProbeFitter, set_head, write_probe
from semifine.training.progress import Display
from semifine.training.trainer import Trainer


def check_pretrained(settings: RunSettings) -> None:
    """Raises ``UserError`` for a probe on random features."""
    if not settings.train.pretrained and not settings.train.weights:
        raise UserError(
            "The probe needs a pretrained network: add --pretrained, or weights with --weights, or --no-probe."
        )


def fit_and_write_probe(
    settings: RunSettings,
    folder: RunFolder,
    dataset: Dataset,
    classifier: Classifier,
    device: torch.device,
    display: Display,
    environment: dict[str, Any],
    like: RunProbe | None = None,
) -> RunProbe:
    """Fits the probe and writes it to the run folder, which is complete from then on.

    Args:
        settings: Settings of the run.
        folder: The run folder.
        dataset: The images, with an open store.
        classifier: The network with pretrained weights.
        device: Device of the computations.
        display: Receives the accuracy.
        environment: Code version, hardware and libraries.
        like: In a trial, the probe of its run, whose regularization and cross-validation are used again.
    """
    start = time.perf_counter()
    fitter = RunProbeFitter(settings, dataset, classifier, device, display)
    if like is None and device.type == "cpu" and len(dataset.catalog.rows(Split.UNLABELED)):
        # Features of many unlabeled images take minutes on a CPU, so a probe without them is written first.
        probe = fitter.fit_labeled()
        _write_probe_result(settings, folder, dataset, probe, device, environment, start, with_samples=False)
        display.log(f"{probe.describe()}; {folder.path} can be used from now on")
    probe = fitter.fit(like)
    found = _write_probe_result(settings, folder, dataset, probe, device, environment, start)
    display.log(probe.describe())
    if found.get("suspect_labels"):
        display.log(
            f"labels to check: {found['suspect_labels']} of {found['cross_validation']['images']} contradict confident "
            f"predictions of the probe (wrong labels, or its errors); {folder.label_check} lists them first"
        )
    return probe


def _write_probe_result(
    settings: RunSettings,
    folder: RunFolder,
    dataset: Dataset,
    probe: RunProbe,
    device: torch.device,
    environment: dict[str, Any],
    start: float,
    *,
    with_samples: bool = True,
) -> dict[str, Any]:
    """Writes the files of the probe and its result, and returns its accuracies."""
    written = write_probe(folder, dataset, probe, with_samples=with_samples)
    seconds = round(time.perf_counter() - start, 2)
    found: dict[str, Any] = written["probe"]
    result = {
        "method": method_class(settings.method).name,
        "data": settings.data,
        "seed": settings.train.seed,
        "iterations": 0,
        "top1": found["top1"],
        "top5": found["top5"],
        **({"val": found["val"]} if "val" in found else {}),
        "chosen": "probe",
        **written,
        **describe_data(dataset),
        "seconds": seconds,
        "time": {"probe": seconds},
        "peak_gpu_bytes": peak_gpu_bytes(device),
        "environment": environment,
    }
    model = TrainedModel(Run(folder.path, dataset), checkpoint="probe", device=settings.train.device)
    model.store_calibration(probe.calibration())
    write_json(folder.probe, result)
    return found


def finish_probe(folder: RunFolder) -> dict[str, Any]:
    """Makes the probe the result of the run."""
    result = read_json(folder.probe)
    write_json(folder.result, result)
    return result


def summarize_run(
    settings: RunSettings,
    dataset: Dataset,
    trainer: Trainer,
    unlabeled: dict[str, Any],
    environment: dict[str, Any],
) -> dict[str, Any]:
    """Returns the content of ``result.json``."""
    return {
        "method": trainer.method.name,
        "data": settings.data,
        "seed": settings.train.seed,
        "iterations": settings.train.iterations,
        **summarize_evaluations(trainer.evaluations()),
        "unlabeled": unlabeled,
        **describe_data(dataset),
        "seconds": round(trainer.timer.training, 2),
        "time": {phase: round(seconds, 2) for phase, seconds in trainer.timer.seconds.items()},
        "peak_gpu_bytes": peak_gpu_bytes(trainer.fabric.device),
        "environment": environment,
    }


def describe_data(dataset: Dataset) -> dict[str, Any]:
    return {
        "num_classes": dataset.catalog.num_classes,
        "images": {split.name.lower(): len(dataset.catalog.rows(split)) for split in Split},
        "unreadable": [path for path, _ in dataset.unreadable],
    }


def summarize_evaluations(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarizes the evaluations of a run.

    Returns:
        ``top1`` and ``top5``: test accuracy at the last evaluation. ``val``: validation accuracy at the last
        evaluation. ``selected_on_val``: test accuracy at the best validation accuracy. ``best_on_test``: the best top-1
        and, separately, the best top-5 test accuracy, which is the paper's protocol.

    Example:
        >>> summarize_evaluations([{"step": 10, "val_top1": 50.0, "val_top5": 90.0}])
        {'top1': None, 'top5': None, 'val': {'top1': 50.0, 'top5': 90.0}}
    """
    if not evaluations:
        return {}
    last = evaluations[-1]
    result: dict[str, Any] = {"top1": last.get("test_top1"), "top5": last.get("test_top5")}
    if "val_top1" in last:
        result["val"] = {"top1": last["val_top1"], "top5": last["val_top5"]}
    if "val_top1" in last and "test_top1" in last:
        selected = max(evaluations, key=lambda record: record["val_top1"])
        result["selected_on_val"] = {
            "step": selected["step"],
            "top1": selected["test_top1"],
            "top5": selected["test_top5"],
        }
    if "test_top1" in last:
        result["best_on_test"] = {
            "top1": max(record["test_top1"] for record in evaluations),
            "top5": max(record["test_top5"] for record in evaluations),
            "note": "selected on the test set, as in the paper's protocol; not an unbiased estimate",
        }
    return result


def finish_run(
    trainer: Trainer,
    settings: RunSettings,
    dataset: Dataset,
    environment: dict[str, Any],
    probe: RunProbe | None,
    trial: Run | None,
) -> dict[str, Any]:
    """Chooses the resulting network, writes its statistics, its calibration and ``result.json``, and returns the last.

    Only the first process calls this.
    """
    with trainer.timer.measure("evaluation"):
        choice: dict[str, Any] = {}
        chosen, evaluator = "trained", trainer.evaluator
        if probe is not None:
            chosen, evaluator, choice = _choose_network(trainer, dataset, probe, trial)
        if chosen == "probe" and probe is not None:
            unlabeled = write_probe(trainer.folder, dataset, probe)["unlabeled"]
        else:
            unlabeled = evaluator.write_stats()
            _calibrate(settings, trainer, dataset, CHECKPOINT_OF[chosen], trial)
    result = {**summarize_run(settings, dataset, trainer, unlabeled, environment), **choice}
    write_json(trainer.folder.result, result)
    return result


def _choose_network(
    trainer: Trainer, dataset: Dataset, probe: RunProbe, trial: Run | None
) -> tuple[str, RunEvaluator, dict[str, Any]]:
    """Chooses the probe, the trained network or weights between them, on validation images or images of the trial.

    Returns:
        The choice, the evaluator of the chosen network, and the accuracies for ``result.json``.
    """
    catalog, trained = dataset.catalog, trainer.train_state.evaluated
    start = copy.deepcopy(probe.network)
    set_head(start, probe.start)
    comparison = None
    rows = catalog.rows(Split.VAL)
    if len(rows):
        comparison = compare(start, trained, trainer.evaluator.evaluator, rows, catalog.label[rows])
    elif trial is not None:
        comparison = Comparison.from_dict(trial.result["comparison"])
    weight = comparison.best if comparison else DEFAULT_WEIGHT if trainer.settings.head_init == "probe" else 1.0
    if comparison:
        trainer.display.log(comparison.describe())
    found = read_json(trainer.folder.probe)["probe"]
    scores = trainer.evaluations()[-1]
    facts = {
        "probe": found,
        "trained": {key: value for key, value in summarize_evaluations([scores]).items() if key in found},
        "comparison": asdict(comparison) if comparison else None,
        "weight": weight,
    }
    if weight == 0:
        accuracies = {name: found[name] for name in ("top1", "top5", "val") if name in found}
        return "probe", trainer.evaluator, {**facts, "chosen": "probe", **accuracies}
    if weight == 1:
        return "trained", trainer.evaluator, {**facts, "chosen": "trained"}
    between = interpolate(start, trained, weight)
    save_interpolated(trainer.folder.checkpoints, between.state_dict())
    evaluator = trainer.evaluator.for_network(between)
    scores = evaluator.scores(between)
    accuracies = {"top1": scores.get("test_top1"), "top5": scores.get("test_top5")}
    if "val_top1" in scores:
        accuracies["val"] = {"top1": scores["val_top1"], "top5": scores["val_top5"]}
    return "interpolated", evaluator, {**facts, "chosen": "interpolated", **accuracies}


def _calibrate(settings: RunSettings, trainer: Trainer, dataset: Dataset, checkpoint: str, trial: Run | None) -> None:
    """Calibrates the resulting network on validation images, or takes the calibration of the trial.

    The images are decoded already, because the photos may be gone when the run is used.
    """
    has_validation = len(dataset.catalog.rows(Split.VAL)) > 0
    if not trainer.method.trains_classifier or not (has_validation or trial is not None):
        return
    device = settings.train.device
    model = TrainedModel(Run(trainer.folder.path, dataset), checkpoint=cast("Checkpoint", checkpoint), device=device)
    try:
        if trial is not None:
            found = TrainedModel(trial, device=device).calibration
            if found.is_fitted:
                model.store_calibration(found)
        trainer.display.log(model.calibration_note)
    except DivergedError as error:
        print(f"note: {error}", file=sys.stderr)  # even with --quiet
