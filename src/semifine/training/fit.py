"""From settings to a finished run folder."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from semifine.config import RunSettings, write_settings
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.extra_labels import ExtraLabels, freeze_labels, read_frozen_labels, read_labels
from semifine.devices import describe_hardware, process_rank
from semifine.errors import Interrupted, OutOfMemory, UserError, exhausted_memory
from semifine.features.activations import CachedActivations
from semifine.features.probe import Linear
from semifine.files import create_folder, write_json
from semifine.methods import method_class
from semifine.methods.registry import is_method_file, method_file_hash
from semifine.models.classifier import Classifier, check_backbone_name
from semifine.models.imagenet import check_imagenet_weights
from semifine.models.pretrained import LoadReport
from semifine.runs.checkpoint import newest_checkpoint
from semifine.runs.folder import RunFolder, locked
from semifine.runs.run import Run
from semifine.training.budget import plan_training
from semifine.training.estimates import benchmark_run, estimate_memory, estimate_time
from semifine.training.fabric import Fabric, create_fabric, explain_peer_failures, launch_processes
from semifine.training.folder_checks import METHOD_HASH, check_folder, check_same_settings
from semifine.training.init_weights import create_network, load_frozen
from semifine.training.loader import check_images
from semifine.training.loggers import Loggers, parse_logger_names
from semifine.training.optim import check_optimizer_name
from semifine.training.probe import RunProbe, fit_new_classes, set_head
from semifine.training.profiling import profile_steps
from semifine.training.progress import Display, record_log
from semifine.training.result import check_pretrained, finish_probe, finish_run, fit_and_write_probe
from semifine.training.state import split_for_training
from semifine.training.trainer import Trainer, cache_activations, create_pipeline
from semifine.training.trial import hold_out_labels
from semifine.version import code_version


def fit(
    settings: RunSettings,
    out: Path,
    *,
    dataset: Dataset | None = None,
    resume: bool = False,
    display: Display | None = None,
    profile: bool = False,
    started: float | None = None,
) -> dict[str, Any]:
    """Trains a run, or resumes it, in the folder ``out``.

    Args:
        settings: All settings of the run.
        out: The run folder.
        dataset: The data set of the settings, if it is already open.
        resume: Continue the run in ``out`` if there is one.
        display: Receives messages and metrics; by default the terminal.
        profile: Profile some steps and write their trace to ``out``.
        started: Start of the program on ``time.perf_counter``, from which the time to the first step counts.

    Returns:
        The content of ``result.json``; an empty dict in all processes but the first.

    Raises:
        Interrupted: After SIGINT or SIGTERM, when a checkpoint has been saved.
        UserError: If settings, data, memory or disk space do not allow the run.

    Example:
        >>> from semifine.config import resolve
        >>> settings = resolve([{"method.name": "soc", "iterations": 100}])
        >>> fit(settings, Path("runs/soc"))["top1"]  # doctest: +SKIP
        52.5
    """
    dataset = dataset or Dataset.open(settings.data, settings.data_settings)
    is_first = process_rank() == 0
    display = display if display and is_first else Display(quiet=not is_first)
    if is_first:
        check_folder(out, resume)
    with locked(out, display.log) if is_first else nullcontext():
        folder = RunFolder(out)
        if folder.settings.exists():
            settings = check_same_settings(settings, folder)
        if resume and folder.result.exists():
            if not newest_checkpoint(folder.checkpoints)[1]:
                display.log(f"{out} is already finished.")
                return folder.read_result() if is_first else {}
            display.log(f"{out} was finished, but its last checkpoint is damaged; continuing from the one before.")
        try:
            with (
                _system_errors_as_user_errors(out),
                record_log(folder.log, display, process_rank()),
                explain_peer_failures(folder.log, process_rank()),
            ):
                return _fit(settings, folder, dataset, display, started or time.perf_counter(), profile)
        except Interrupted:
            if is_first:
                raise
            return {}  # a failure would make the launcher kill the first process, which may still be saving


@contextmanager
def _system_errors_as_user_errors(out: Path) -> Iterator[None]:
    """Replaces errors of exhausted memory and of a full disk by a ``UserError`` with the remedy."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not (memory := exhausted_memory(error)):
            raise
        raise OutOfMemory(
            memory,
            "lower --batch-size, --mu or --image-size, choose a smaller --backbone, or store the images elsewhere "
            f"with --store {'host' if memory == 'GPU' else 'disk'}",
        ) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"The disk is full ({error.filename or out}): free some space and continue with --resume."
        ) from error


@dataclass(frozen=True)
class _OuterRun:
    """What a trial takes from its run."""

    probe: RunProbe
    views: CachedActivations | None


def _fit(
    settings: RunSettings,
    folder: RunFolder,
    dataset: Dataset,
    display: Display,
    started: float,
    profile: bool,
    outer: _OuterRun | None = None,
) -> dict[str, Any]:
    logger_names = parse_logger_names(settings.train.loggers)
    check_backbone_name(settings.train.backbone)  # before images are decoded, which may take an hour
    check_optimizer_name(settings.train.optimizer)
    fabric = launch_processes(create_fabric(settings.train))

    # Data
    class_names = _prepare_data(settings, folder, dataset, fabric, display)

    # Networks
    method = method_class(settings.method)
    has_probe = _has_probe(settings)
    classifier, report = create_network(settings, folder, class_names, always_load=_keeps_initial_weights(settings))
    if report:
        display.log(f"weights: {report}")
    environment = _describe_environment(settings, fabric)

    # Probe
    probe = None
    if has_probe:
        probe = _fit_probe(settings, folder, dataset, classifier, fabric, display, environment, report, outer)
    if not method.takes_steps:
        return finish_probe(folder) if fabric.is_global_zero else {}

    # Time budget and trial
    views, trial, used = None, None, time.perf_counter() - started
    planned = _plan(settings, folder, dataset, classifier, fabric, display, used, has_probe)
    if planned is None:
        return finish_probe(folder) if fabric.is_global_zero else {}
    settings = planned
    if probe is not None and fabric.world_size == 1:
        outer = outer or _OuterRun(probe, _cache_views(settings, dataset, classifier, fabric.device, display))
        views, trial = outer.views, _run_trial(settings, folder, dataset, display, outer)

    # Training
    display.log(estimate_memory(settings, classifier, dataset, fabric.device.type))
    image_seconds = benchmark_run(settings, classifier, fabric)
    frozen_path = method.frozen_network(settings.method_settings)
    frozen = load_frozen(Path(frozen_path), classifier, class_names, settings.train) if frozen_path else None
    trainer = Trainer(settings, folder, fabric, dataset, classifier, display, frozen, views)
    if fabric.is_global_zero and probe is None:
        _write_inputs(settings, folder, dataset, environment, report)
    trainer.resume()
    _announce(trainer, settings, logger_names, environment, image_seconds, frozen)
    profiled = profile and fabric.is_global_zero
    with profile_steps(folder.path / "profile", display.log) if profiled else nullcontext() as after_step:
        trainer.run(started, after_step)
    result = finish_run(trainer, settings, dataset, environment, probe, trial) if fabric.is_global_zero else {}
    fabric.barrier()  # the first process still writes
    return result


def _describe_environment(settings: RunSettings, fabric: Fabric) -> dict[str, Any]:
    """Returns code version, hardware and libraries, and the hash of the method file if the method is a file."""
    code: dict[str, Any] = {"semifine": code_version()}
    if is_method_file(settings.method):
        code[METHOD_HASH] = method_file_hash(settings.method)
    return {**code, "processes": fabric.world_size, **describe_hardware(fabric.device.type)}


def _prepare_data(
    settings: RunSettings, folder: RunFolder, dataset: Dataset, fabric: Fabric, display: Display
) -> tuple[str, ...]:
    """Decodes the images and returns the names of the classes."""
    if not dataset.is_decoded:
        _check_weights(settings, folder)
    labels = _read_extra_labels(settings, folder, fabric)
    _decode_images(dataset, settings, labels, display, near_duplicates=fabric.is_global_zero)
    fabric.barrier()  # one process decodes the images
    class_names = dataset.catalog.class_names
    if folder.settings.exists():
        folder.check_classes(class_names)
    for note in (dataset.catalog.describe(), *settings.notes):
        display.log(note)
    return class_names


def _fit_probe(
    settings: RunSettings,
    folder: RunFolder,
    dataset: Dataset,
    classifier: Classifier,
    fabric: Fabric,
    display: Display,
    environment: dict[str, Any],
    report: LoadReport | None,
    outer: _OuterRun | None = None,
) -> RunProbe | None:
    """Fits the probe in the first process and makes it the head of the network in all processes.

    Of the head of ``--weights``, the rows of known classes are kept if they were loaded. ``head_init=random`` keeps the
    random head.
    """
    probe = None
    if fabric.is_global_zero:
        check_images(dataset.catalog, method_class(settings.method))
        check_pretrained(settings)
        _write_inputs(settings, folder, dataset, environment, report)
        like = outer.probe if outer else None
        probe = fit_and_write_probe(settings, folder, dataset, classifier, fabric.device, display, environment, like)
    if settings.train.head_init != "probe":
        return probe
    start = None
    if probe is not None and (report is None or not report.head):
        start = Linear(probe.start.weight.cpu(), probe.start.bias.cpu())
    elif probe is not None and report is not None and report.new_classes:
        is_new = torch.tensor([name in report.new_classes for name in dataset.catalog.class_names])
        head = classifier.head.state_dict()
        start = fit_new_classes(probe, dataset.catalog, Linear(head["weight"], head["bias"]), is_new)
    start = fabric.broadcast(start)
    if start is not None:
        set_head(classifier, start)
    return probe


def _announce(
    trainer: Trainer,
    settings: RunSettings,
    logger_names: list[str],
    environment: dict[str, Any],
    image_seconds: float | None,
    frozen: Classifier | None,
) -> None:
    """Starts the loggers and prints what is about to be trained."""
    is_first, display = trainer.fabric.is_global_zero, trainer.display
    trainer.loggers = Loggers(logger_names if is_first else [], settings, trainer.folder, trainer.step, display.log)
    display.log(
        f"{trainer.method.name} with {settings.train.backbone} on {environment['device']}, "
        f"from step {trainer.step} of {settings.train.iterations}"
    )
    if image_seconds is not None:
        seconds = image_seconds / trainer.fabric.world_size
        views = len(trainer.method.unlabeled_views)
        display.log(estimate_time(settings.train, trainer.step, trainer.batches.loader.full_steps, views, seconds))
    if frozen is not None:
        display.log(f"frozen network of the method: {_format_scores(trainer.evaluator.scores(frozen))}")


# Time budget and trial


def _plan(
    settings: RunSettings,
    folder: RunFolder,
    dataset: Dataset,
    classifier: Classifier,
    fabric: Fabric,
    display: Display,
    used: float,
    has_probe: bool,
) -> RunSettings | None:
    """Returns the settings with as many steps as fit into the time budget; None if the rest is too short to train.

    A run with a checkpoint, or with a trial, keeps its plan.
    """
    has_plan = newest_checkpoint(folder.checkpoints)[0] is not None or RunFolder(folder.trial).settings.exists()
    if settings.train.time is None or has_plan:
        return settings
    has_trial = has_probe and fabric.world_size == 1 and _trial_data(settings, dataset) is not None
    plan = plan_training(settings, dataset.catalog, classifier, fabric.device, used, trainings=1 + has_trial)
    plan = fabric.broadcast(plan)
    if plan is None:
        if not has_probe:
            raise UserError(f"--time {settings.train.time} is too short for a training; allow more time.")
        display.log(f"training: --time {settings.train.time} is too short for it, so the probe is the result")
        return None
    display.log(plan.note)
    settings = plan.apply(settings)
    if fabric.is_global_zero and folder.settings.exists():
        write_settings(settings, folder.settings)
    return settings


def _cache_views(
    settings: RunSettings, dataset: Dataset, classifier: Classifier, device: torch.device, display: Display
) -> CachedActivations | None:
    """Computes the activations of the frozen stages for the trial and the training; None if no stage is frozen."""
    method = method_class(settings.method)
    split = split_for_training(classifier, method, settings.train)
    if split is None:
        return None
    pipeline = create_pipeline(settings.train, dataset.store, classifier, device)
    return cache_activations(settings.train, method, dataset.catalog, pipeline, split.trunk, display)


def _run_trial(
    settings: RunSettings, folder: RunFolder, dataset: Dataset, display: Display, outer: _OuterRun
) -> Run | None:
    """Trains without a part of the labels, in a run folder inside the run folder; None if no trial is needed."""
    held_out = _trial_data(settings, dataset)
    if held_out is None:
        return None
    trial = RunFolder(folder.trial)
    create_folder(trial.path)
    if not trial.result.is_file():
        train = settings.train
        last_only = replace(train, time=None, evaluate_every=train.iterations, save_every=train.save_interval)
        without_time = replace(settings, train=last_only, notes=())
        number, labels = len(held_out.catalog.rows(Split.VAL)), len(dataset.catalog.rows(Split.LABELED))
        display.log(f"trial: training without {number} of {labels} labels, to compare the result with the probe")
        _fit(without_time, trial, held_out, Display(quiet=True), time.perf_counter(), False, outer)
    return Run(trial.path, held_out)


def _trial_data(settings: RunSettings, dataset: Dataset) -> Dataset | None:
    """Returns the data set with held-out labels; None if the run has validation images or too few labels."""
    if not settings.train.trial or len(dataset.catalog.rows(Split.VAL)):
        return None
    return hold_out_labels(dataset, settings.train.seed)


# Data and results


def _decode_images(
    dataset: Dataset, settings: RunSettings, labels: ExtraLabels | None, display: Display, near_duplicates: bool
) -> None:
    """Decodes the images of the data set with a progress bar."""
    with display.bar("decoding images", len(dataset.catalog)):
        dataset.open_store(
            settings.train.stored_side,
            cache_dir=settings.train.cache,
            labels=labels,
            near_duplicates=near_duplicates,
            progress=lambda done, _: display.advance(done),
            log=display.log,
        )


def _read_extra_labels(settings: RunSettings, folder: RunFolder, fabric: Fabric) -> ExtraLabels | None:
    """Reads the labels of ``--labels`` in the first process; a resumed run uses the labels with which it started."""
    if not settings.train.labels:
        return None
    labels = None
    if fabric.is_global_zero:
        labels = read_frozen_labels(folder.labels) or read_labels(Path(settings.train.labels))
    return fabric.broadcast(labels)


def _write_inputs(
    settings: RunSettings, folder: RunFolder, dataset: Dataset, environment: dict[str, Any], report: LoadReport | None
) -> None:
    """Writes the inputs of the run; from ``settings.yaml`` on, the folder is a run folder."""
    write_json(folder.environment, environment)
    write_json(folder.classes, {"names": dataset.catalog.class_names, "groups": dataset.catalog.class_groups})
    if dataset.report:
        write_json(folder.data, dataset.report.as_dict())
    if report:
        write_json(folder.weights, report.as_dict())
    write_settings(settings, folder.settings)
    freeze_labels(dataset.labels, folder.labels)


def _format_scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.1f} %" for name, value in scores.items()) or "unknown accuracy"


def _check_weights(settings: RunSettings, folder: RunFolder) -> None:
    """Raises ``UserError`` if ImageNet weights are needed and cannot be had, before images are decoded."""
    train = settings.train
    is_needed = _keeps_initial_weights(settings) or newest_checkpoint(folder.checkpoints)[0] is None
    if train.pretrained and is_needed:
        check_imagenet_weights(train.backbone, train.image_size, train.backbone_args)


def _keeps_initial_weights(settings: RunSettings) -> bool:
    """Whether a resumed run needs its initial weights, too: for the probe, or for the activations of frozen stages."""
    return _has_probe(settings) or settings.train.trained_stages is not None


def _has_probe(settings: RunSettings) -> bool:
    return settings.train.probe or not method_class(settings.method).takes_steps
