"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semifine.config import RunSettings
from semifine.data.catalog import Split
from semifine.engine.acceleration import choose_acceleration
from semifine.engine.averaging import create_teacher
from semifine.engine.checkpoint import (
    load_training_state,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
    save_weights,
)
from semifine.engine.dataset import Dataset
from semifine.engine.devices import Fabric, resolve_precision, training_stream
from semifine.engine.display import Display
from semifine.engine.entropy_sweep import EntropySweep
from semifine.engine.evaluation import Evaluator, confusion_matrix
from semifine.engine.facts import collect_sample_facts, summarise
from semifine.engine.feed import Feed, check_images
from semifine.engine.forecast import Pace
from semifine.engine.graphs import GraphedStep
from semifine.engine.health import find_warnings
from semifine.engine.history import LabelHistory
from semifine.engine.interruption import Interrupted, StopRequest, watching_for_stop
from semifine.engine.loggers import Loggers
from semifine.engine.meters import NumberMeter, PseudoLabelMeter
from semifine.engine.nonfinite import NonFiniteWatch
from semifine.engine.optimiser import create_optimiser, keep_learning_rate_on, set_learning_rate
from semifine.engine.placement import place_store
from semifine.engine.prefetch import Prefetcher
from semifine.engine.sample_table import write_sample_table
from semifine.engine.schedule import learning_rate_factor
from semifine.engine.seeds import seed_for
from semifine.engine.step import StepFunction, TrainStep
from semifine.errors import UserError
from semifine.methods import method_class
from semifine.methods.base import DataInfo, Method, NoSettings, Progress
from semifine.methods.supervised import Supervised
from semifine.models.classifier import Classifier, normalisation
from semifine.models.networks import Networks
from semifine.run_folder import RunFolder
from semifine.views import ViewMaker, ViewSettings

SHOWN_PATHS = 5


class Trainer:
    """One run: assembles networks, method, data and optimiser, and walks through the steps."""

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
        self.seconds = 0.0
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
            num_labelled=len(seen.rows(Split.LABELLED)),
            num_unlabelled=len(seen.rows(Split.UNLABELLED)),
            seed=seed_for("method", self.settings),
            label=torch.from_numpy(seen.label[seen.rows(Split.LABELLED)]),
            unlabelled_batch=self.settings.batch_size * self.settings.mu,
            feature_dim=classifier.feature_dim,
        )
        self.method = method(settings.method_settings, info).to(fabric.device)
        feed = Feed(seen, views, self.method, self.settings, fabric.device, fabric.global_rank, fabric.world_size)
        self.batches = Prefetcher(feed, fabric.device)
        self._set_up_networks(classifier, frozen)
        self.evaluator = Evaluator(views, fabric.autocast, self.settings.batch_size * (1 + 2 * self.settings.mu))
        truth = torch.from_numpy(seen.truth[seen.rows(Split.UNLABELLED)]).to(fabric.device)
        self.pseudo_labels = PseudoLabelMeter(truth, seen.num_classes)
        unlabelled = len(self.catalog.rows(Split.UNLABELLED))
        self.history = LabelHistory(unlabelled, seen.num_classes).to(fabric.device)
        self.watch = NonFiniteWatch(fabric.device)
        self.labelled_step = self._create_step(Supervised(NoSettings(), info))
        self.full_step = self._create_step(self.method)
        for remark in [*self.acceleration.remarks, *self.method.remarks()]:
            display.say(remark)

    def _create_views(self, dataset: Dataset, classifier: Classifier) -> ViewMaker:
        store, sentence = place_store(dataset.store, self.settings.store, self.fabric.device)
        if sentence:
            self.display.say(sentence)
        colours = normalisation(classifier)
        view_settings = ViewSettings(
            size=self.settings.image_size, crop_scale=self.settings.crop_scale, mean=colours.mean, std=colours.std
        )
        return ViewMaker(
            store,
            view_settings,
            seed=seed_for("views", self.settings),
            device=self.fabric.device,
        )

    def _set_up_networks(self, classifier: Classifier, frozen: Classifier | None) -> None:
        if self.method.needs_average and not self.settings.ema:
            raise UserError(f"The method '{self.method.name}' learns from the averaged model: give --ema above 0.")
        on_gpu = self.fabric.device.type == "cuda"
        classifier.to(self.fabric.device)
        self.classifier = classifier
        self.teacher = create_teacher(classifier) if self.settings.ema else None
        if self.settings.sync_bn and self.fabric.world_size > 1:
            classifier = nn.SyncBatchNorm.convert_sync_batchnorm(classifier)
        if self.acceleration.compiled:
            torch.backends.cudnn.benchmark = (
                not self.settings.deterministic
            )  # the search takes about as long as compiling
            classifier.compile(dynamic=False)
        optimiser = create_optimiser(classifier, self.settings, fused=on_gpu)
        student, self.optimiser = self.fabric.setup(classifier, optimiser)
        self._prepare_learning_rate()
        self.frozen = frozen.to(self.fabric.device) if frozen is not None else None
        self.networks = Networks(student, self.teacher, self.settings.forward, self.frozen, self.fabric.autocast)

    def _prepare_learning_rate(self) -> None:
        if self.acceleration.graphs:
            keep_learning_rate_on(self.fabric.device, self.optimiser)

    def _create_step(self, method: Method) -> TrainStep:
        return TrainStep(
            self.fabric,
            method,
            self.networks,
            self.optimiser,
            self.classifier,
            self.teacher,
            self.settings.ema,
            NumberMeter(),
            self.pseudo_labels,
            self.history,
            self.watch,
            self.settings.on_nonfinite == "skip",
        )

    @property
    def evaluated(self) -> nn.Module:
        """The network whose accuracy is reported: the average, or the student where the method or the run has none."""
        return self.teacher if self.teacher is not None and self.method.evaluates_average else self.classifier

    def _unevaluated(self) -> dict[str, nn.Module]:
        """The network beside the evaluated one, where there are two, by its name in a checkpoint."""
        both = {"student": self.classifier, "teacher": self.teacher}
        return {name: net for name, net in both.items() if net is not None and net is not self.evaluated}

    def run(self, started: float | None = None, after_step: Callable[[], None] | None = None) -> None:
        """Trains from the current step to the last; a signal saves and raises Interrupted.

        ``started`` is the moment from which the time to the first step counts; ``after_step`` is called after each.
        """
        self.classifier.train()
        self._clock = time.perf_counter()
        with (
            watching_for_stop() as stop,
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
        pace = Pace(self.display.say, total, self.fabric.device)
        run_labelled, run_full = (self._as_graph(step) for step in (self.labelled_step, self.full_step))
        for step in range(first, total):
            batch = self.batches.take(step)
            set_learning_rate(self.optimiser, self.settings.lr * learning_rate_factor(step, self.settings))
            run_step = run_full if step >= self.batches.feed.labelled_only_steps else run_labelled
            run_step(batch, Progress(step, total))
            self.step = step + 1
            if self.step < total:
                self.batches.prepare(self.step)
            if step == first and started is not None:
                self._say_first_step(started)
            if step == self.batches.feed.labelled_only_steps:
                pace.restart()
            pace.step_done(self.step)
            if after_step is not None:
                after_step()
            if self._due(self.settings.log_every):
                self._log()
            if self._due(self.settings.evaluation_interval):
                self._evaluate()
            stopped_by = self._agree_to_stop(stop.signal_number)
            if self._due(self.settings.save_interval) or stopped_by:
                self.save()
            if stopped_by:
                raise Interrupted(stopped_by)

    def _agree_to_stop(self, signal_number: int | None) -> int | None:
        """The signal that ends the run; several processes ask each other when they log, so that all end together."""
        if self.fabric.world_size == 1:
            return signal_number
        if not self._due(self.settings.log_every):
            return None
        seen = torch.tensor(float(signal_number or 0), device=self.fabric.device)
        return round(float(self.fabric.all_reduce(seen, reduce_op="max"))) or None  # type: ignore[arg-type]

    def _as_graph(self, step: TrainStep) -> StepFunction:
        return GraphedStep(step, self.display.say) if self.acceleration.graphs else step

    def _say_first_step(self, started: float) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        self.display.say(f"first step done after {time.perf_counter() - started:.1f} s")

    def _due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.settings.iterations

    def _check_losses(self) -> int:
        """Ends the run where a loss was not finite, before anything of it is saved; else how many were skipped."""
        step, count = self.watch.read()
        if step is None:
            return 0
        if self.settings.on_nonfinite == "skip":
            self.display.say(
                f"{count} steps so far had a loss that is not finite, and were skipped; the first was {step}."
            )
            return count
        rows = self.batches.feed.rows(step)
        shown = ", ".join(str(self.catalog.paths[row]) for row in rows[:SHOWN_PATHS])
        raise UserError(
            f"The loss of step {step} is not a finite number; its batch of {len(rows)} images begins with {shown}. "
            "The last checkpoint is from before it: lower --lr or look at these images and go on with --resume, or "
            "leave such batches out with --on-nonfinite skip."
        )

    def _log(self) -> None:
        skipped = self._check_losses()
        numbers = {**self.labelled_step.read_numbers(), **self.full_step.read_numbers()}
        now = time.perf_counter()
        steps = (self.step - 1) % self.settings.log_every + 1
        with_unlabelled = self.method.unlabelled_views and self.step > self.batches.feed.labelled_only_steps
        unlabelled = self.settings.mu if with_unlabelled else 0
        images = steps * self.settings.batch_size * (1 + unlabelled)
        numbers["images_per_second"] = images / (now - self._clock)
        numbers["data_wait"] = self.batches.take_seconds() / (now - self._clock)
        self.seconds += now - self._clock
        self._clock = now
        if self.fabric.is_global_zero:
            self._note({"kind": "train", "step": self.step, **numbers})
        warnings = find_warnings(self.step, self.settings.iterations, self.catalog.num_classes, numbers, skipped)
        self.display.training_numbers(self.step, numbers, warnings)

    def _note(self, record: dict[str, Any]) -> None:
        self.folder.append_metrics(record)
        if self.loggers is not None:
            self.loggers.log(record)

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Accuracies on the validation and test images that there are, such as ``test_top1``."""
        scores: dict[str, float] = {}
        for split in (Split.VAL, Split.TEST):
            rows = self.catalog.rows(split)
            if len(rows):
                label = torch.from_numpy(self.catalog.label[rows]).to(self.fabric.device)
                accuracies = self.evaluator.accuracy(network, rows, label)
                scores |= {f"{split.name.lower()}_{name}": value for name, value in accuracies.items()}
        return scores

    def _evaluate(self) -> None:
        counts = self.history.take_class_counts()
        if not self.method.trains_classifier or not self.fabric.is_global_zero:
            return
        if any(counts["predicted"]):
            self.folder.append_metrics({"kind": "classes", "step": self.step, **counts})
        record: dict[str, Any] = {"kind": "evaluation", "step": self.step, **self.scores(self.evaluated)}
        transitions = self.method.class_facts().get("transitions")
        if transitions is not None:
            record |= {"transitions": int(transitions.sum()), "transition_pairs": int((transitions > 0).sum())}
        if self.settings.keep_facts == "every":
            record["unlabelled"] = self._write_sample_facts(self.folder.samples_at(self.step))
        best_before = max((e["val_top1"] for e in self.evaluations() if "val_top1" in e), default=-1.0)
        if record.get("val_top1", -1.0) > best_before:
            self._save_best()
        self._note(record)
        self.display.evaluation(record, self.settings.iterations)
        self.classifier.train()

    def _save_best(self) -> None:
        best = self.folder.checkpoints / "best_val"
        best.mkdir(parents=True, exist_ok=True)
        save_weights(self.evaluated.state_dict(), best / "model.safetensors")

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations so far, those before a resume included."""
        return [record for record in self.folder.read_metrics() if record.get("kind") == "evaluation"]

    def save(self) -> None:
        """A checkpoint from which training goes on bit for bit; what it holds is the same in all processes."""
        self._check_losses()
        if not self.fabric.is_global_zero:
            return
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "images": self._image_counts(),
            "optimiser": self.optimiser.state_dict(),
            "method": self.method.state_dict(),
            "history": self.history.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.fabric.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        state |= {name: network.state_dict() for name, network in self._unevaluated().items()}
        save_checkpoint(self.folder.checkpoints, self.step, self.evaluated.state_dict(), state)

    def resume(self) -> None:
        """Takes up the newest checkpoint, where there is one."""
        newest, remarks = newest_checkpoint(self.folder.checkpoints)
        for remark in remarks:
            self.display.say(remark)
        if newest is None:
            self._keep_metrics()
            return
        weights, state = load_weights(newest), load_training_state(newest)
        now = self._image_counts()
        if (then := state.get("images", now)) != now:
            raise UserError(
                f"The run in {self.folder.path} would go on with other images than it began with (then: {then}, "
                f"now: {now}): bring them back, or begin another run."
            )
        try:
            self._take_up(weights, state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UserError(
                f"The checkpoint {newest} does not fit the run that {self.folder.settings} and the data describe: "
                "they have changed since it was written."
            ) from error
        self._keep_metrics()

    def _image_counts(self) -> dict[str, int]:
        return {split.name.lower(): len(self.catalog.rows(split)) for split in (Split.LABELLED, Split.UNLABELLED)}

    def _take_up(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.evaluated.load_state_dict(weights)
        for name, network in self._unevaluated().items():
            network.load_state_dict(state[name])
        self.optimiser.load_state_dict(state["optimiser"])
        self._prepare_learning_rate()
        self.method.load_state_dict(state["method"])
        if "history" in state:  # runs of before it was kept go on without
            self.history.load_state_dict(state["history"])
        torch.set_rng_state(state["random"])
        if "random_cuda" in state and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self.fabric.device)
        self.step, self.seconds = state["step"], state["seconds"]

    def _keep_metrics(self) -> None:
        if self.fabric.is_global_zero:
            self.folder.keep_metrics_until(self.step)
        self.fabric.barrier()

    def write_facts(self) -> dict[str, Any]:
        """What reports need beyond the metrics: facts of every unlabelled image, and of the classes."""
        if not self.method.trains_classifier:
            return {}
        sweep = EntropySweep()
        means = self._write_sample_facts(self.folder.samples, partial(sweep.update, self.method))
        self._write_class_facts(sweep.table())
        return means

    def _write_sample_facts(self, path: Path, see: Callable[[Tensor], None] = lambda _: None) -> dict[str, Any]:
        """The table of all unlabelled images, and its means; ``see`` is shown the probabilities on the way."""
        changes = self.history.changes.cpu().numpy()
        batches = collect_sample_facts(self.catalog, self.evaluator, self.evaluated, self.method, changes, see)
        facts = write_sample_table(path, batches)
        return summarise(facts, self.catalog.num_classes) if facts is not None else {}

    def _write_class_facts(self, entropy_by_k: Tensor | None) -> None:
        facts = dict(self.method.class_facts())
        if entropy_by_k is not None:
            facts["entropy_by_k"] = entropy_by_k
        rows = self.catalog.rows(Split.TEST)
        if len(rows):
            probs = torch.cat(list(self.evaluator.predict(self.evaluated, rows))).cpu()
            facts["confusion"] = confusion_matrix(probs, torch.from_numpy(self.catalog.label[rows]))
        save_weights(facts or {"none": torch.zeros(0)}, self.folder.class_facts)
