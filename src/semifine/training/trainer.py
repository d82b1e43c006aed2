"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from semifine.config import RunSettings
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.devices import resolve_precision
from semifine.errors import Interrupted
from semifine.methods import method_class
from semifine.methods.base import DataInfo, Method, NoSettings, Progress
from semifine.methods.supervised import Supervised
from semifine.models.classifier import Classifier, normalization
from semifine.runs.checkpoint import forget_best_after, save_best
from semifine.runs.folder import RunFolder
from semifine.training.compile import choose_acceleration
from semifine.training.estimate import TimeEstimator, relative_step_cost
from semifine.training.evaluate import Assessment, ClusterHistory, Evaluator
from semifine.training.fabric import Fabric, training_stream
from semifine.training.interruption import StopRequest, agree_to_stop, catch_stop_signals
from semifine.training.loader import BatchLoader, Prefetcher, check_images, place_store
from semifine.training.loggers import Loggers
from semifine.training.meters import AverageMeter, PseudoLabelMeter
from semifine.training.optim import learning_rate_factor, make_learning_rate_tensor, set_learning_rate
from semifine.training.progress import Display, PhaseTimer, find_warnings
from semifine.training.sample_stats import LabelHistory, keep_sample_stats
from semifine.training.state import TrainingState, create_train_state
from semifine.training.step import GraphedStep, NonFiniteWatch, StepFunction, TrainStep, nonfinite_error


class Trainer:
    """One run: assembles networks, method, data and optimizer, and walks through the steps."""

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        fabric: Fabric,
        dataset: Dataset,
        classifier: Classifier,
        display: Display,
        frozen: Classifier | None = None,
    ) -> None:
        self.settings = settings.train
        self.folder = folder
        self.fabric = fabric
        self.catalog = dataset.catalog
        self.display = display
        self.step = 0
        self.time = PhaseTimer()
        self.loggers: Loggers | None = None

        method = method_class(settings.method)
        self.acceleration = choose_acceleration(
            self.settings,
            method,
            fabric.device,
            resolve_precision(self.settings.precision, fabric.device.type),
            fabric.world_size,
        )
        views = self._create_views(dataset, classifier)
        seen = self.catalog.with_truth_revealed() if method.trains_on_truth else self.catalog
        check_images(seen, method)
        info = DataInfo(
            num_classes=seen.num_classes,
            num_labeled=len(seen.rows(Split.LABELED)),
            num_unlabeled=len(seen.rows(Split.UNLABELED)),
            seed=seed_for("method", self.settings),
            label=torch.from_numpy(seen.label[seen.rows(Split.LABELED)]),
            unlabeled_batch=self.settings.batch_size * self.settings.mu,
            feature_dim=classifier.feature_dim,
        )
        self.method = method(settings.method_settings, info).to(fabric.device)
        loader = BatchLoader(
            seen, views, self.method, self.settings, fabric.device, fabric.global_rank, fabric.world_size
        )
        self.batches = Prefetcher(loader, fabric.device)
        self.train_state = create_train_state(
            classifier, frozen, self.method, self.settings, self.acceleration, fabric, display.log
        )
        self._prepare_learning_rate()
        truth = torch.from_numpy(seen.truth[seen.rows(Split.UNLABELED)]).to(fabric.device)
        self.pseudo_labels = PseudoLabelMeter(truth, seen.num_classes)
        unlabeled = len(self.catalog.rows(Split.UNLABELED))
        self.history = LabelHistory(unlabeled, seen.num_classes).to(fabric.device)
        evaluator = Evaluator(views, fabric.autocast, self.settings.batch_size * (1 + 2 * self.settings.mu))
        clusters = ClusterHistory(self.method.class_stats())
        self.assessment = Assessment(
            folder, self.catalog, evaluator, self.train_state.evaluated, self.method, self.history, clusters
        )
        self.watch = NonFiniteWatch().to(fabric.device)
        self._skips_told = 0
        self.labeled_step = self._create_step(Supervised(NoSettings(), info))
        self.full_step = self._create_step(self.method)
        histories = {"history": self.history, "clusters": clusters, "nonfinite": self.watch}
        meters: dict[str, AverageMeter | PseudoLabelMeter] = {
            "labeled": self.labeled_step.numbers,
            "full": self.full_step.numbers,
            "pseudo_labels": self.pseudo_labels,
        }
        self.state = TrainingState(folder, self.catalog, self.train_state, self.method, histories, meters, fabric)
        for note in [*self.acceleration.notes, *self.method.notes()]:
            display.log(note)

    def _create_views(self, dataset: Dataset, classifier: Classifier) -> AugmentPipeline:
        store, sentence = place_store(dataset.store, self.settings.store, self.fabric.device)
        if sentence:
            self.display.log(sentence)
        colors = normalization(classifier)
        view_settings = AugmentSettings.from_options(
            self.settings, size=self.settings.image_size, mean=colors.mean, std=colors.std
        )
        return AugmentPipeline(
            store,
            view_settings,
            seed=seed_for("views", self.settings),
            device=self.fabric.device,
        )

    def _prepare_learning_rate(self) -> None:
        if self.acceleration.graphs:
            make_learning_rate_tensor(self.fabric.device, self.train_state.optimizer)

    def _create_step(self, method: Method) -> TrainStep:
        return TrainStep(
            self.fabric,
            method,
            self.train_state,
            AverageMeter(),
            self.pseudo_labels,
            self.history,
            self.watch,
            self.settings.on_nonfinite == "skip",
        )

    def run(self, started: float | None = None, after_step: Callable[[], None] | None = None) -> None:
        """Trains from the current step to the last; a signal saves and raises Interrupted.

        ``started`` is the moment from which the time to the first step counts; ``after_step`` is called after each.
        """
        self.train_state.classifier.train()
        self.time.start_steps(started)
        self._logged = self.step
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
        self.watch.begin_at(first)
        labeled_only = self.batches.loader.supervised_steps
        full_cost = relative_step_cost(self.settings, len(self.method.unlabeled_views))
        time_estimator = TimeEstimator(self.display.log, total, self.fabric.device, labeled_only, full_cost)
        run_labeled, run_full = (self._as_graph(step) for step in (self.labeled_step, self.full_step))
        for step in range(first, total):
            batch = self.batches.take(step)
            set_learning_rate(self.train_state.optimizer, self.settings.lr * learning_rate_factor(step, self.settings))
            run_step = run_full if step >= labeled_only else run_labeled
            run_step(batch, Progress(step, total))
            self.step = step + 1
            if self.step < total:
                self.batches.prepare(self.step)
            if step == first and started is not None:
                self._say_first_step(started)
            if step == labeled_only:
                time_estimator.restart()
            time_estimator.update(self.step)
            if after_step is not None:
                after_step()
            if self._due(self.settings.log_every):
                self._log()
            if self._due(self.settings.evaluation_interval):
                with self.time.measure("evaluation"):
                    self._evaluate()
                    self.fabric.barrier()
            stopped_by = agree_to_stop(self.fabric, stop, self._due(self.settings.log_every))
            if self._due(self.settings.save_interval) or stopped_by:
                with self.time.measure("saving"):
                    self.save()
            if stopped_by:
                raise Interrupted(stopped_by)

    def _as_graph(self, step: TrainStep) -> StepFunction:
        return GraphedStep(step, self.display.log) if self.acceleration.graphs else step

    def _say_first_step(self, started: float) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        self.display.log(f"first step done after {time.perf_counter() - started:.1f} s")

    def _due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.settings.iterations

    def _check_losses(self) -> int:
        """Ends the run where a loss was not finite, before anything of it is saved; else how many were skipped."""
        step, count = self.watch.read()
        if step is None:
            return 0
        if self.settings.on_nonfinite == "skip":
            if count > self._skips_told:
                self.display.log(
                    f"{count} step{'s' if count > 1 else ''} so far had a loss that is not finite and "
                    f"{'were' if count > 1 else 'was'} skipped; the first was step {step}."
                )
            self._skips_told = count
            return count
        paths = [str(self.catalog.paths[row]) for row in self.batches.loader.rows(step)]
        raise nonfinite_error(step, paths)

    def _log(self) -> None:
        skipped = self._check_losses()
        numbers = {**self.labeled_step.read_numbers(), **self.full_step.read_numbers()}
        seconds, steps = self.time.lap(), self.step - self._logged
        self._logged = self.step
        with_unlabeled = self.method.unlabeled_views and self.step > self.batches.loader.supervised_steps
        unlabeled = self.settings.mu if with_unlabeled else 0
        numbers["images_per_second"] = steps * self.settings.batch_size * (1 + unlabeled) / seconds
        numbers["step_seconds"] = seconds / steps
        numbers["data_wait"] = self.batches.take_seconds() / seconds
        if self.fabric.is_global_zero:
            self._note({"kind": "train", "step": self.step, **numbers})
        warnings = find_warnings(self.step, self.settings.iterations, self.catalog.num_classes, numbers, skipped)
        self.display.log_metrics(self.step, numbers, warnings)

    def _note(self, record: dict[str, Any]) -> None:
        self.folder.append_metrics(record)
        if self.loggers is not None:
            self.loggers.log(record)

    def _evaluate(self) -> None:
        self._check_losses()
        counts = self.history.pop_class_counts()
        if not self.method.trains_classifier or not self.fabric.is_global_zero:
            return
        if any(counts["predicted"]):
            self.folder.append_metrics({"kind": "classes", "step": self.step, **counts})
        unlabeled = len(self.catalog.rows(Split.UNLABELED))
        keep = keep_sample_stats(self.settings, unlabeled, bool(self.method.unlabeled_views))
        record = self.assessment.evaluate(self.step, keep)
        best_before = max((e["val_top1"] for e in self.evaluations() if "val_top1" in e), default=-1.0)
        if record.get("val_top1", -1.0) > best_before:
            save_best(self.folder.checkpoints, self.step, self.train_state.evaluated.state_dict())
        self._note(record)
        self.display.log_evaluation(record, self.settings.iterations)
        self.train_state.classifier.train()

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations so far, those before a resume included."""
        return [record for record in self.folder.read_metrics() if record.get("kind") == "evaluation"]

    def save(self) -> None:
        """A checkpoint from which training goes on bit for bit; what it holds is the same in all processes."""
        self._check_losses()
        self.state.save(self.step, self.time.seconds)
        self.fabric.barrier()

    def resume(self) -> None:
        """Takes up the newest checkpoint, where there is one."""
        self.step, seconds = self.state.restore(self.display.log)
        self.time.seconds.update(seconds)
        self._prepare_learning_rate()
        if self.settings.on_nonfinite == "stop":
            self.watch.forget()
        if self.fabric.is_global_zero:
            self.folder.keep_metrics_until(self.step)
            forget_best_after(self.folder.checkpoints, self.step)
        self.fabric.barrier()
