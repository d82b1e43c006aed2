"""The training loop: ``loader.py`` makes the batches, ``step.py`` trains on one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from semifine.config import RunSettings, TrainSettings
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.store import ImageStore
from semifine.devices import resolve_precision
from semifine.errors import Interrupted
from semifine.features.activations import CachedActivations
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.methods import method_class
from semifine.methods.base import DataInfo, Method, Progress
from semifine.methods.supervised import Supervised
from semifine.models.classifier import Classifier, normalization
from semifine.runs.checkpoint import remove_best_after, save_best
from semifine.runs.folder import RunFolder
from semifine.training.acceleration import GraphedStep, StepFunction, choose_acceleration
from semifine.training.estimates import relative_step_cost
from semifine.training.evaluate import ClusterHistory, RunEvaluator
from semifine.training.fabric import Fabric, StopRequest, agree_to_stop, catch_stop_signals, training_stream
from semifine.training.loader import (
    LABELED,
    UNLABELED,
    BatchLoader,
    Prefetcher,
    check_images,
    check_mixup,
    place_store,
    view_versions,
)
from semifine.training.loggers import Loggers
from semifine.training.meters import AverageMeter, LabelHistory, PseudoLabelMeter
from semifine.training.optim import learning_rate_factor, make_learning_rate_tensor, set_learning_rate
from semifine.training.profiling import PhaseTimer, TimeEstimator
from semifine.training.progress import Display, find_warnings
from semifine.training.sample_stats import keep_sample_stats, read_votes
from semifine.training.state import Checkpointer, create_train_state, split_for_training
from semifine.training.step import NonFiniteGuard, TrainStep, nonfinite_error, seed_random_layers


class Trainer:
    """Trains one run: assembles data, networks, method and optimizer, and runs the steps.

    Args:
        settings: All settings of the run.
        folder: The run folder, for metrics and checkpoints.
        fabric: Device, precision and processes.
        dataset: The images, with an open store.
        classifier: The network with its initial weights.
        display: Receives messages and metrics.
        frozen: The trained network that the method uses, if any.
        views: Activations of the frozen stages; computed here if some stages are frozen.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        fabric: Fabric,
        dataset: Dataset,
        classifier: Classifier,
        display: Display,
        frozen: Classifier | None = None,
        views: CachedActivations | None = None,
    ) -> None:
        self.settings = settings.train
        self.folder = folder
        self.fabric = fabric
        self.catalog = dataset.catalog
        self.display = display
        self.step = 0
        self.timer = PhaseTimer()
        self.loggers: Loggers | None = None
        self._num_reported_skips = 0

        # Method and data: the oracle trains on the hidden labels, every other method on the catalog as it is.
        method, device = method_class(settings.method), fabric.device
        precision = resolve_precision(self.settings.precision, device.type)
        self.acceleration = choose_acceleration(self.settings, method, device, precision, fabric.world_size)
        store = self._place_store(dataset)
        catalog = self.catalog.with_truth_revealed() if method.trains_on_truth else self.catalog
        check_images(catalog, method)
        info = self._data_info(catalog, classifier, method, settings.method_settings)
        self.method = method(settings.method_settings, info).to(device)
        check_mixup(self.settings, method)
        self.split = split_for_training(classifier, method, self.settings)
        self.batches = self._create_batches(catalog, store, classifier, views)

        # Networks and optimizer
        self.train_state = create_train_state(
            classifier, frozen, self.method, self.settings, self.acceleration, fabric, display.log, self.split
        )
        self._prepare_learning_rate()

        # Statistics
        truth = torch.from_numpy(catalog.truth[catalog.rows(Split.UNLABELED)]).to(device)
        self.pseudo_labels = PseudoLabelMeter(truth, catalog.num_classes)
        self.history = LabelHistory(len(self.catalog.rows(Split.UNLABELED)), catalog.num_classes).to(device)
        self.clusters = ClusterHistory(self.method.class_stats())
        self.guard = NonFiniteGuard().to(device)

        # Steps: the supervised warmup and cooldown train on labeled images only.
        self.labeled_step = self._create_step(Supervised(settings.method_settings, info).to(device))
        self.full_step = self._create_step(self.method)

        self.evaluator = self._create_evaluator(store)
        self.checkpointer = self._create_checkpointer()
        for note in [*self.acceleration.notes, *self.method.notes()]:
            display.log(note)

    def run(self, started: float | None = None, after_step: Callable[[], None] | None = None) -> None:
        """Trains from the current step to the last one.

        Args:
            started: Start of the program on ``time.perf_counter``, from which the time to the first step counts.
            after_step: Called after each step.

        Raises:
            Interrupted: After SIGINT or SIGTERM, when a checkpoint has been saved.
        """
        self.train_state.train_mode()
        self.timer.start_steps(started)
        self._last_logged = self.step
        with (
            catch_stop_signals() as stop,
            self.display.training(self.settings.iterations, self.step),
            training_stream(self.fabric.device),
        ):
            try:
                self._loop(stop, started, after_step)
            finally:
                if self.loggers is not None:
                    self.loggers.close()

    def _loop(self, stop: StopRequest, started: float | None, after_step: Callable[[], None] | None) -> None:
        first, total = self.step, self.settings.iterations
        full_steps = self.batches.loader.full_steps
        full_cost = relative_step_cost(self.settings, len(self.method.unlabeled_views))
        estimator = TimeEstimator(self.display.log, total, self.fabric.device, full_steps.start, full_cost)
        labeled_step, full_step = (self._accelerate(step) for step in (self.labeled_step, self.full_step))
        self.guard.start_at(first)

        for step in range(first, total):
            # Batch: samples and augmented views on the device
            batch = self.batches.take(step)

            # Forward, loss, backward, optimizer, EMA, statistics
            factor = learning_rate_factor(step, self.settings)
            set_learning_rate(self.train_state.optimizer, self.settings.lr * factor)
            if self.settings.drop_path:
                seed_random_layers(self.settings, step, self.fabric.global_rank)
            train_step = full_step if step in full_steps else labeled_step
            train_step(batch, Progress(step, total))
            self.step = step + 1

            # The next batch is made while the GPU runs this step.
            if self.step < total:
                self.batches.prefetch(self.step)

            # Progress
            if step == first and started is not None:
                self._log_first_step(started)
            if step == full_steps.start:
                estimator.restart()
            estimator.update(self.step)
            if after_step is not None:
                after_step()

            # Log, evaluate, save
            if self._is_due(self.settings.log_every):
                self._log()
            if self._is_due(self.settings.evaluation_interval):
                with self.timer.measure("evaluation"):
                    self._evaluate()
                    self.fabric.barrier()
            stop_signal = agree_to_stop(self.fabric, stop, self._is_due(self.settings.log_every))
            if self._is_due(self.settings.save_interval) or stop_signal:
                with self.timer.measure("saving"):
                    self.save()
            if stop_signal:
                raise Interrupted(stop_signal)

    def save(self) -> None:
        """Saves a checkpoint, from which a resumed run continues bit for bit. All processes must call this."""
        self._check_losses()
        self.checkpointer.save(self.step, self.timer.seconds)
        self.fabric.barrier()

    def resume(self) -> None:
        """Restores the newest checkpoint, if there is one."""
        self.step, seconds = self.checkpointer.restore(self.display.log)
        self.timer.seconds.update(seconds)
        self._prepare_learning_rate()
        if self.settings.on_nonfinite == "stop":
            self.guard.reset()  # steps that were skipped before the resume are no reason to stop
        if self.fabric.is_global_zero:
            remove_best_after(self.folder.checkpoints, self.step)
        self.fabric.barrier()

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the records of all evaluations so far, including those before a resume."""
        return [record for record in self.folder.read_metrics() if record.get("kind") == "evaluation"]

    def _place_store(self, dataset: Dataset) -> ImageStore:
        store, note = place_store(dataset.store, self.settings.store, self.fabric.device)
        if note:
            self.display.log(note)
        return store

    def _create_batches(
        self, catalog: Catalog, store: ImageStore, classifier: Classifier, views: CachedActivations | None
    ) -> Prefetcher:
        device = self.fabric.device
        pipeline = create_pipeline(self.settings, store, classifier, device)
        if self.split is not None and views is None:
            trunk = self.split.trunk.to(device)
            views = cache_activations(self.settings, self.method, catalog, pipeline, trunk, self.display)
        rank, world_size = self.fabric.global_rank, self.fabric.world_size
        loader = BatchLoader(catalog, views or pipeline, self.method, self.settings, device, rank, world_size)
        return Prefetcher(loader, device)

    def _data_info(
        self, catalog: Catalog, classifier: Classifier, method: type[Method], method_settings: Any
    ) -> DataInfo:
        labeled = catalog.rows(Split.LABELED)
        return DataInfo(
            num_classes=catalog.num_classes,
            num_labeled=len(labeled),
            num_unlabeled=len(catalog.rows(Split.UNLABELED)),
            seed=seed_for("method", self.settings),
            label=torch.from_numpy(catalog.label[labeled]),
            unlabeled_batch=self.settings.batch_size * self.settings.mu,
            feature_dim=classifier.feature_dim,
            votes=read_votes(method.voters(method_settings), catalog),
        )

    def _create_step(self, method: Method) -> TrainStep:
        return TrainStep(
            self.fabric,
            method,
            self.train_state,
            AverageMeter(),
            self.pseudo_labels,
            self.history,
            self.guard,
            skip_nonfinite=self.settings.on_nonfinite == "skip",
            clip_grad=self.settings.clip_grad,
        )

    def _create_evaluator(self, store: ImageStore) -> RunEvaluator:
        preprocessor = create_preprocessor(self.settings.image_size, self.settings.stored_side, self.fabric.device)
        batch_size = self.settings.batch_size * (1 + 2 * self.settings.mu)  # needs no more memory than a step
        return RunEvaluator(
            self.folder,
            self.catalog,
            Evaluator(store, preprocessor, self.fabric.device, batch_size),
            self.train_state.evaluated,
            self.method,
            self.history,
            self.clusters,
        )

    def _create_checkpointer(self) -> Checkpointer:
        return Checkpointer(
            self.folder,
            self.catalog,
            self.train_state,
            self.method,
            histories={"history": self.history, "clusters": self.clusters, "nonfinite": self.guard},
            meters={
                "labeled": self.labeled_step.metrics,
                "full": self.full_step.metrics,
                "pseudo_labels": self.pseudo_labels,
            },
            fabric=self.fabric,
        )

    def _accelerate(self, step: TrainStep) -> StepFunction:
        return GraphedStep(step, self.display.log) if self.acceleration.cuda_graphs else step

    def _prepare_learning_rate(self) -> None:
        if self.acceleration.cuda_graphs:
            make_learning_rate_tensor(self.fabric.device, self.train_state.optimizer)

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.settings.iterations

    def _log_first_step(self, started: float) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        self.display.log(f"first step done after {time.perf_counter() - started:.1f} s")

    def _log(self) -> None:
        """Logs the metrics since the last call. Waits for the device."""
        skipped = self._check_losses()
        metrics = {**self.labeled_step.metrics.read(), **self.full_step.metrics.read(), **self.pseudo_labels.read()}
        seconds, steps = self.timer.lap(), self.step - self._last_logged
        self._last_logged = self.step
        with_unlabeled = self.method.unlabeled_views and self.step - 1 in self.batches.loader.full_steps
        images = self.settings.batch_size * (1 + (self.settings.mu if with_unlabeled else 0))
        metrics["images_per_second"] = steps * images / seconds
        metrics["step_seconds"] = seconds / steps
        metrics["data_wait"] = self.batches.pop_seconds() / seconds
        if self.fabric.is_global_zero:
            self._write_record({"kind": "train", "step": self.step, **metrics})
        warnings = find_warnings(self.step, self.settings.iterations, self.catalog.num_classes, metrics, skipped)
        self.display.log_metrics(self.step, metrics, warnings)

    def _evaluate(self) -> None:
        """Evaluates in the first process."""
        self._check_losses()
        counts = self.history.pop_class_counts()
        if not self.method.trains_classifier or not self.fabric.is_global_zero:
            return
        if any(counts["predicted"]):
            self.folder.append_metrics({"kind": "classes", "step": self.step, **counts})
        unlabeled = len(self.catalog.rows(Split.UNLABELED))
        keep = keep_sample_stats(self.settings, unlabeled, bool(self.method.unlabeled_views))
        record = self.evaluator.evaluate(self.step, keep)
        best_before = max((e["val_top1"] for e in self.evaluations() if "val_top1" in e), default=-1.0)
        if record.get("val_top1", -1.0) > best_before:
            save_best(self.folder.checkpoints, self.step, self.train_state.evaluated_weights())
        self._write_record(record)
        images = {split.name.lower(): len(self.catalog.rows(split)) for split in (Split.VAL, Split.TEST)}
        self.display.log_evaluation(record, self.settings.iterations, images)
        self.train_state.train_mode()

    def _write_record(self, record: dict[str, Any]) -> None:
        self.folder.append_metrics(record)
        if self.loggers is not None:
            self.loggers.log(record)

    def _check_losses(self) -> int:
        """Returns the number of skipped steps; stops the run if ``on_nonfinite`` is ``stop`` and a loss was not finite.

        Called before anything is logged, evaluated or saved.
        """
        step, count = self.guard.read()
        if step is None:
            return 0
        if self.settings.on_nonfinite == "stop":
            paths = [str(self.catalog.paths[row]) for row in self.batches.loader.rows(step)]
            raise nonfinite_error(step, paths)
        if count > self._num_reported_skips:
            self.display.log(
                f"{count} step{'s' if count > 1 else ''} so far had a loss that is not finite and "
                f"{'were' if count > 1 else 'was'} skipped; the first was step {step}."
            )
        self._num_reported_skips = count
        return count


def create_pipeline(
    settings: TrainSettings, store: ImageStore, classifier: Classifier, device: torch.device
) -> AugmentPipeline:
    """Returns the augmentation pipeline of a run."""
    channels = normalization(classifier)
    augmentation = AugmentSettings.from_options(
        settings, size=settings.image_size, mean=channels.mean, std=channels.std
    )
    return AugmentPipeline(store, augmentation, seed=seed_for("views", settings), device=device)


def cache_activations(
    settings: TrainSettings,
    method: Method | type[Method],
    catalog: Catalog,
    pipeline: AugmentPipeline,
    trunk: nn.Module,
    display: Display,
) -> CachedActivations:
    """Runs the frozen stages on a few versions of each view, with a progress bar."""
    rows = {LABELED: catalog.rows(Split.LABELED), UNLABELED: catalog.rows(Split.UNLABELED)}
    versions = view_versions(settings, method)
    total = sum(len(rows[stream]) * sum(views.values()) for stream, views in versions.items())
    with display.bar("computing activations", total):
        return CachedActivations(pipeline, trunk, versions, rows, seed_for("views", settings), display.advance)
