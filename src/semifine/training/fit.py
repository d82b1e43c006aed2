"""From settings to a finished run folder."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from semifine.config import RunSettings, read_run_settings, write_settings
from semifine.config.loading import first_difference
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.extra_labels import ExtraLabels, freeze_labels, read_frozen_labels, read_labels
from semifine.devices import describe_hardware, peak_gpu_bytes, process_rank, resolve_precision
from semifine.errors import Interrupted, OutOfMemory, UserError, exhausted_memory
from semifine.files import write_json
from semifine.methods import method_class
from semifine.models.classifier import Classifier, check_backbone_name, check_image_size, create_classifier
from semifine.models.pretrained import LoadReport
from semifine.runs.checkpoint import newest_checkpoint
from semifine.runs.folder import LOCK, RunFolder, locked
from semifine.training.estimate import (
    MIN_STEPS_TO_BENCHMARK,
    benchmark_throughput,
    count_effective_images,
    format_memory_estimate,
    profile_steps,
    format_time_estimate,
)
from semifine.training.fabric import Fabric, create_fabric
from semifine.training.init_weights import load_frozen, load_initial_weights
from semifine.training.interruption import explain_peer_failures
from semifine.training.loggers import Loggers, parse_logger_names
from semifine.training.progress import Display, record_log
from semifine.training.trainer import Trainer
from semifine.version import code_version


def summarize_evaluations(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """``top1`` and ``top5`` are of the last evaluation; others stand beside them under their own names.

    ``selected_on_val`` is the test accuracy at the best validation accuracy. ``best_on_test`` is the
    paper's protocol, which looks at the test set to choose: best top-1 and, apart from it, best top-5.
    """
    if not evaluations:
        return {}
    last = evaluations[-1]
    result: dict[str, Any] = {"top1": last.get("test_top1"), "top5": last.get("test_top5")}
    if "val_top1" in last:
        result["val"] = {"top1": last["val_top1"], "top5": last["val_top5"]}
    if "val_top1" in last and "test_top1" in last:
        chosen = max(evaluations, key=lambda record: record["val_top1"])
        result["selected_on_val"] = {
            "step": chosen["step"],
            "top1": chosen["test_top1"],
            "top5": chosen["test_top5"],
        }
    if "test_top1" in last:
        result["best_on_test"] = {
            "top1": max(record["test_top1"] for record in evaluations),
            "top5": max(record["test_top5"] for record in evaluations),
            "note": "chosen on the test set, as the paper's protocol does; not an honest estimate",
        }
    return result


# What an attempt leaves, besides its lock and its log, that ended before its run began.
BEFORE_A_RUN = ("classes.json", "data.json", "environment.json", "weights.json")


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
    """Trains, or goes on training, in the folder ``out``, and returns what ``result.json`` holds.

    ``dataset`` is the data that ``settings`` name, if it is open already.
    With several processes the first one writes, speaks and returns the result; the others return nothing.
    ``profile`` watches some steps and leaves their trace in the folder; ``started`` is the moment, on
    ``time.perf_counter``, from which the time to the first step counts.
    """
    dataset = dataset or Dataset.open(settings.data, settings.data_settings)
    is_first = process_rank() == 0
    display = display if display and is_first else Display(quiet=not is_first)
    started = time.perf_counter() if started is None else started
    if is_first:
        _check_folder(out, resume)
    with locked(out, display.log) if is_first else nullcontext():
        folder = RunFolder(out)
        if is_first and folder.settings.exists():
            _check_same_settings(settings, folder)
        if resume and folder.result.exists():
            if not newest_checkpoint(folder.checkpoints)[1]:
                display.log(f"{out} is finished already.")
                return folder.read_result() if is_first else {}
            display.log(
                f"{out} was finished, but its last checkpoint is not whole: it goes on from the newest that is."
            )
        try:
            with record_log(folder.log, display, process_rank()), explain_peer_failures(folder.log, process_rank()):
                return _fit(settings, folder, dataset, display, started, profile)
        except Interrupted:
            if is_first:
                raise
            return {}  # a failure would make the launcher kill the first process, which may still be busy
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
                f"The disk is full ({error.filename or out}): make room and go on with --resume."
            ) from error


def _fit(
    settings: RunSettings, folder: RunFolder, dataset: Dataset, display: Display, started: float, profile: bool
) -> dict[str, Any]:
    logger_names = parse_logger_names(settings.train.loggers)
    check_backbone_name(settings.train.backbone)  # before images are decoded, which may take an hour
    fabric = create_fabric(settings.train)
    fabric.launch()
    labels = _labels_of_the_run(settings, folder, fabric)
    _decode_images(dataset, settings, labels, display, near_duplicates=fabric.is_global_zero)
    fabric.barrier()  # whoever decodes images, the others wait for it
    if folder.settings.exists():
        folder.check_classes(dataset.catalog.class_names)
    for note in (dataset.catalog.describe(), *settings.notes):
        display.log(note)
    classifier, report = _create_network(settings, folder, dataset.catalog.class_names)
    if report:
        display.log(f"weights: {report}")
    display.log(_memory_estimate(settings, classifier, dataset, fabric.device.type))
    image_seconds = _benchmark_image_seconds(settings, classifier, fabric)
    frozen = _load_frozen(settings, classifier, dataset.catalog.class_names)
    trainer = Trainer(settings, folder, fabric, dataset, classifier, display, frozen)
    environment = {"semifine": code_version(), "processes": fabric.world_size, **describe_hardware(fabric.device.type)}
    if fabric.is_global_zero:
        _begin_folder(settings, folder, dataset, environment, report)
        freeze_labels(dataset.labels, folder.labels)
    trainer.resume()
    names = logger_names if fabric.is_global_zero else []
    trainer.loggers = Loggers(names, settings, folder, trainer.step, display.log)
    display.log(
        f"{trainer.method.name} with {settings.train.backbone} on {environment['device']}, "
        f"from step {trainer.step} of {settings.train.iterations}"
    )
    if image_seconds is not None:
        display.log(_time_estimate(trainer, image_seconds / fabric.world_size))
    if trainer.train_state.frozen is not None:
        display.log(f"learns from a network with {_in_words(trainer.assessment.scores(trainer.train_state.frozen))}")
    watched = profile and fabric.is_global_zero  # one trace, of the process that speaks
    with profile_steps(folder.path / "profile", display.log) if watched else nullcontext() as after_step:
        trainer.run(started, after_step)
    if not fabric.is_global_zero:
        fabric.barrier()  # the first process still writes
        return {}
    with trainer.time.measure("evaluation"):
        unlabeled = trainer.assessment.write_stats()
    result = {
        "method": trainer.method.name,
        "data": settings.data,
        "seed": settings.train.seed,
        "iterations": settings.train.iterations,
        **summarize_evaluations(trainer.evaluations()),
        "unlabeled": unlabeled,
        "num_classes": dataset.catalog.num_classes,
        "images": {split.name.lower(): len(dataset.catalog.rows(split)) for split in Split},
        "unreadable": [path for path, _ in dataset.unreadable],
        "seconds": round(trainer.time.training, 2),
        "time": {part: round(seconds, 2) for part, seconds in trainer.time.seconds.items()},
        "peak_gpu_bytes": peak_gpu_bytes(fabric.device),
        "environment": environment,
    }
    write_json(folder.result, result)
    fabric.barrier()
    return result


def _decode_images(
    dataset: Dataset, settings: RunSettings, labels: ExtraLabels | None, display: Display, near_duplicates: bool
) -> None:
    """Decodes the images of the data set behind a progress bar."""
    with display.bar("decoding images", len(dataset.catalog)):
        dataset.open_store(
            settings.train.stored_side,
            cache_dir=settings.train.cache,
            skip_unreadable=settings.train.skip_unreadable,
            labels=labels,
            near_duplicates=near_duplicates,
            progress=lambda done, _: display.advance(done),
            log=display.log,
        )


def _labels_of_the_run(settings: RunSettings, folder: RunFolder, fabric: Fabric) -> ExtraLabels | None:
    """Somebody may be labeling: all processes, and a resumed run, keep to what there was when the run began."""
    if not settings.train.labels:
        return None
    labels = None
    if fabric.is_global_zero:
        labels = read_frozen_labels(folder.labels) or read_labels(Path(settings.train.labels))
    return fabric.broadcast(labels)


def _begin_folder(
    settings: RunSettings, folder: RunFolder, dataset: Dataset, environment: dict[str, Any], report: LoadReport | None
) -> None:
    """Only now, when nothing of what was asked for is wrong, does the folder become that of a run."""
    write_json(folder.environment, environment)
    write_json(folder.classes, {"names": dataset.catalog.class_names, "groups": dataset.catalog.class_groups})
    if dataset.report:
        write_json(folder.data, dataset.report.as_dict())
    if report:
        write_json(folder.weights, report.as_dict())
    write_settings(settings, folder.settings)


def _create_network(
    settings: RunSettings, folder: RunFolder, class_names: Sequence[str]
) -> tuple[Classifier, LoadReport | None]:
    train = settings.train
    torch.manual_seed(seed_for("weights", train))
    method = method_class(settings.method)
    num_classes = len(class_names) if method.trains_classifier else 0
    heads = partial(method.heads, settings.method_settings)
    classifier = create_classifier(train.backbone, num_classes, train.image_size, heads)
    check_image_size(classifier, train.backbone, train.image_size)
    if newest_checkpoint(folder.checkpoints)[0] is not None:
        return classifier, None  # the checkpoint will fill it; the file that the run began with may be gone by now
    return classifier, load_initial_weights(classifier, train, class_names)


def _benchmark_image_seconds(settings: RunSettings, classifier: Classifier, fabric: Fabric) -> float | None:
    """Seconds that an image takes; None in a process that says nothing, and for a short run."""
    train = settings.train
    if not fabric.is_global_zero or train.iterations < MIN_STEPS_TO_BENCHMARK:
        return None
    images = -(-_learning_images(settings) // fabric.world_size)
    return benchmark_throughput(classifier, train.image_size, images, fabric.device, fabric.autocast)


def _time_estimate(trainer: Trainer, image_seconds: float) -> str:
    first, last = trainer.step, trainer.settings.iterations
    labeled_only = max(0, trainer.batches.loader.supervised_steps - first)
    views = len(trainer.method.unlabeled_views)
    images = count_effective_images(labeled_only, last - first - labeled_only, trainer.settings, views)
    return format_time_estimate(images * image_seconds, last - first)


def _learning_images(settings: RunSettings) -> int:
    """Images a step from which the network learns."""
    train = settings.train
    return train.batch_size * (1 + train.mu * bool(method_class(settings.method).unlabeled_views))


def _memory_estimate(settings: RunSettings, classifier: Classifier, dataset: Dataset, device: str) -> str:
    train, precision = settings.train, resolve_precision(settings.train.precision, device)
    sentence = format_memory_estimate(
        classifier,
        train.image_size,
        _learning_images(settings),
        has_average=bool(train.ema),
        number_bytes=4 if precision == "fp32" else 2,
        stored_bytes=dataset.store.nbytes,
    )
    return f"{sentence}; precision {precision}"


def _load_frozen(settings: RunSettings, classifier: Classifier, classes: tuple[str, ...]) -> Classifier | None:
    path = method_class(settings.method).frozen_network(settings.method_settings)
    return load_frozen(Path(path), classifier, classes, settings.train) if path else None


def _in_words(scores: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.1f} %" for name, value in scores.items()) or "unknown accuracy"


def _check_folder(out: Path, resume: bool) -> None:
    """A folder that holds anything is only touched to resume the run in it."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder for the run.")
    if not out.exists() or _has_only_an_attempt(out):
        return
    if not RunFolder(out).settings.exists():
        raise UserError(f"{out} is not empty and not a run folder; choose another --out.")
    if not resume:
        raise UserError(f"{out} already holds a run; continue it with --resume, or choose another --out.")


def _has_only_an_attempt(out: Path) -> bool:
    """Whether a run that begins there harms nothing: files of our names are ours beside the log of an attempt."""
    log = RunFolder(out).log.name
    half_written = {path.name for path in out.glob(".*.partial")}
    names = {path.name for path in out.iterdir()} - {LOCK}
    return not names or (log in names and names <= {log, *BEFORE_A_RUN, *half_written})


def _check_same_settings(settings: RunSettings, folder: RunFolder) -> None:
    """A resumed run must be the run that was begun."""
    difference = first_difference(read_run_settings(folder.settings), settings)
    if difference:
        key, before, now = difference
        raise UserError(
            f"The run in {folder.path} was begun with {key} = {before}, not {now}; "
            "a resumed run keeps its settings: leave the option out, or choose another --out."
        )
