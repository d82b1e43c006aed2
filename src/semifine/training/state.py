"""The training state: networks, average and optimizer, and what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn

from semifine.config import TrainSettings
from semifine.config.autotune import ema_decay_for, ema_is_too_slow, ema_steps
from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError
from semifine.methods.base import Method
from semifine.models.classifier import Classifier
from semifine.models.ema import create_ema, update_ema
from semifine.models.forward import Networks
from semifine.runs.checkpoint import (
    load_training_state,
    load_weights,
    newest_checkpoint,
    point_last_at,
    save_checkpoint,
)
from semifine.runs.folder import RunFolder
from semifine.training.compile import Acceleration, compile_network
from semifine.training.fabric import Fabric
from semifine.training.meters import AverageMeter, PseudoLabelMeter
from semifine.training.optim import create_optimizer
from semifine.training.progress import Phase


@dataclass(frozen=True)
class TrainState:
    """The networks of a run, on its device, ready to be trained."""

    classifier: nn.Module
    teacher: nn.Module | None
    """The average of the classifier's weights, where the run keeps one."""
    ema: float
    evaluated: nn.Module
    """The one of the two whose accuracy is reported."""
    frozen: nn.Module | None
    networks: Networks
    optimizer: Any

    def average(self) -> None:
        """Takes the classifier's weights into the average."""
        if self.teacher is not None:
            update_ema(self.teacher, self.classifier, self.ema)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes: of the networks, and the optimizer's momentum, once there is any."""
        networks = {"student": self.classifier, "teacher": self.teacher}
        state = {
            f"{owner}.{name}": value
            for owner, network in networks.items()
            if network is not None
            for name, value in (*network.named_parameters(), *network.named_buffers())
        }
        for parameter, memory in self.optimizer.state_dict()["state"].items():
            state |= {f"{parameter}.{name}": value for name, value in memory.items() if isinstance(value, Tensor)}
        return state

    def unevaluated(self) -> dict[str, nn.Module]:
        """The network beside the evaluated one, where there are two, by its name in a checkpoint."""
        both = {"student": self.classifier, "teacher": self.teacher}
        return {name: net for name, net in both.items() if net is not None and net is not self.evaluated}


def create_train_state(
    classifier: Classifier,
    frozen: Classifier | None,
    method: Method,
    settings: TrainSettings,
    acceleration: Acceleration,
    fabric: Fabric,
    log: Callable[[str], None],
) -> TrainState:
    if method.needs_ema and not settings.ema:
        raise UserError(f"The method '{method.name}' learns from the averaged model: give --ema above 0.")
    classifier.to(fabric.device)
    teacher = create_ema(classifier) if settings.ema else None
    evaluated = teacher if teacher is not None and method.evaluates_ema else classifier
    if evaluated is teacher and ema_is_too_slow(settings.ema, settings.iterations):
        log(
            f"note: the model that is evaluated averages about {ema_steps(settings.ema)} steps "
            f"(--ema {settings.ema}), long for a run of {settings.iterations}, and will lag behind; "
            f"--ema {ema_decay_for(settings.iterations)} would suit."
        )
    trained: nn.Module = classifier
    if settings.sync_bn and fabric.world_size > 1:
        trained = convert_sync_batchnorm(classifier)  # timm's own: torch's drops the activations in timm's layers
    if acceleration.compiled:
        torch.backends.cudnn.benchmark = not settings.deterministic  # the search takes about as long as compiling
        compile_network(trained, log)
    optimizer = create_optimizer(trained, settings, fused=fabric.device.type == "cuda")
    student, optimizer = fabric.setup(trained, optimizer)
    frozen = frozen.to(fabric.device) if frozen is not None else None
    return TrainState(
        classifier=classifier,
        teacher=teacher,
        ema=settings.ema,
        evaluated=evaluated,
        frozen=frozen,
        networks=Networks(student, teacher, settings.forward, frozen, fabric.autocast),
        optimizer=optimizer,
    )


class TrainingState:
    """The parts of a run that steps change, each with a state of its own."""

    def __init__(
        self,
        folder: RunFolder,
        catalog: Catalog,
        train_state: TrainState,
        method: Method,
        histories: Mapping[str, nn.Module],
        meters: Mapping[str, AverageMeter | PseudoLabelMeter],
        fabric: Fabric,
    ) -> None:
        self._folder = folder
        self._learner = train_state
        self._method = method
        self._histories = histories
        self._meters = meters
        self._fabric = fabric
        self._images = {split.name.lower(): len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED)}

    def save(self, step: int, seconds: Mapping[Phase, float]) -> None:
        """All processes must ask, and the first one writes."""
        state = {
            "step": step,
            "seconds": dict(seconds),
            "images": self._images,
            "optimizer": self._learner.optimizer.state_dict(),
            "method": self._method.state_dict(),
            **{name: history.state_dict() for name, history in self._histories.items()},
            **{name: network.state_dict() for name, network in self._learner.unevaluated().items()},
            "meters": {name: meter.state_dict() for name, meter in self._meters.items()},
            "loss_scale": self._fabric.strategy.precision.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self._fabric.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self._fabric.device)
        if self._fabric.is_global_zero:
            save_checkpoint(self._folder.checkpoints, step, self._learner.evaluated.state_dict(), state)

    def restore(self, log: Callable[[str], None]) -> tuple[int, dict[Phase, float]]:
        """Fills everything from the newest checkpoint that is whole; the steps and seconds until it, 0 without one."""
        newest, notes = newest_checkpoint(self._folder.checkpoints)
        for note in notes:
            log(note)
        if newest is None:
            return 0, {}
        weights, state = load_weights(newest), load_training_state(newest)
        if (then := state.get("images", self._images)) != self._images:
            raise UserError(
                f"The run in {self._folder.path} would go on with other images than it began with (then: {then}, "
                f"now: {self._images}): bring them back, or begin another run."
            )
        try:
            self._fill(weights, state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UserError(
                f"The checkpoint {newest} does not fit the run that {self._folder.settings} and the data describe: "
                "they have changed since it was written."
            ) from error
        if self._fabric.is_global_zero:
            point_last_at(newest)
        seconds = state["seconds"]
        return state["step"], seconds if isinstance(seconds, dict) else {"steps": seconds}  # runs of before had the sum

    def _fill(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._learner.evaluated.load_state_dict(weights)
        for name, network in self._learner.unevaluated().items():
            network.load_state_dict(state[name])
        self._learner.optimizer.load_state_dict(state["optimizer"])
        self._method.load_state_dict(state["method"])
        for name, history in self._histories.items():
            if name in state:  # runs of before it was kept go on without
                history.load_state_dict(state[name])
        for name, meter_state in state.get("meters", {}).items():
            self._meters[name].load_state_dict(meter_state, self._fabric.device)
        if state.get("loss_scale"):  # of fp16 alone
            self._fabric.strategy.precision.load_state_dict(state["loss_scale"])
        torch.set_rng_state(state["random"])
        if "random_cuda" in state and self._fabric.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self._fabric.device)
