"""Networks, EMA and optimizer of a run, and the checkpoints that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from semifine.config import TrainSettings
from semifine.config.autotune import ema_decay_for, ema_is_too_slow, ema_steps
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError
from semifine.methods.base import Method
from semifine.models.classifier import Classifier
from semifine.models.ema import create_ema, update_ema
from semifine.models.forward import Networks
from semifine.models.lora import add_low_rank_updates, is_low_rank_update, merged_state_dict
from semifine.models.trunk import SplitBackbone, TailClassifier, split_backbone
from semifine.runs.checkpoint import (
    load_training_state,
    load_weights,
    newest_checkpoint,
    repair_last_link,
    save_checkpoint,
)
from semifine.runs.folder import RunFolder
from semifine.training.acceleration import Acceleration, compile_network
from semifine.training.fabric import Fabric
from semifine.training.meters import AverageMeter, PseudoLabelMeter
from semifine.training.optim import create_optimizer
from semifine.training.profiling import Phase


@dataclass(frozen=True)
class TrainState:
    """The networks and the optimizer of a run, on its device."""

    student: Classifier
    ema: Classifier | None
    """Exponential moving average of the student's weights; None if the run has none."""
    ema_decay: float
    evaluated: Classifier
    """The student or its EMA: the network whose accuracy is reported."""
    networks: Networks
    """The networks as a method calls them; its student is wrapped for mixed precision and several processes."""
    optimizer: Any
    is_split: bool
    """Whether the networks take activations of a frozen trunk instead of images."""
    has_updates: bool = False
    """Whether the networks have low-rank updates (LoRA)."""

    def train_mode(self) -> None:
        """Sets the student to training mode. Batch norms of a partly frozen backbone keep their statistics."""
        self.student.train()
        if self.is_split:
            for module in self.student.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()

    def update_ema(self) -> None:
        if self.ema is not None:
            update_ema(self.ema, self.student, self.ema_decay)

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors that a step changes: parameters, buffers, and the momentum after the first step."""
        networks = {"student": self.student, "ema": self.ema}
        tensors = {
            f"{owner}.{name}": value
            for owner, network in networks.items()
            if network is not None
            for name, value in (*network.named_parameters(), *network.named_buffers())
        }
        for parameter, memory in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{parameter}.{name}": value for name, value in memory.items() if isinstance(value, Tensor)}
        return tensors

    def other_networks(self) -> dict[str, nn.Module]:
        """Returns the networks that a checkpoint needs beside the weights of the evaluated one, by name.

        They include the evaluated network if its weights are saved with merged low-rank updates.
        """
        networks = {"student": self.student, "ema": self.ema}
        return {
            name: net
            for name, net in networks.items()
            if net is not None and (net is not self.evaluated or self.has_updates)
        }

    def evaluated_weights(self) -> dict[str, Tensor]:
        """Returns the weights of the evaluated network, with merged low-rank updates."""
        return merged_state_dict(self.evaluated)


def create_train_state(
    classifier: Classifier,
    frozen: Classifier | None,
    method: Method,
    settings: TrainSettings,
    acceleration: Acceleration,
    fabric: Fabric,
    log: Callable[[str], None],
    split: SplitBackbone | None = None,
) -> TrainState:
    """Creates the EMA and the optimizer, and moves everything to the device.

    Args:
        classifier: The student with its initial weights. It is changed in place.
        frozen: The trained network that the method uses, if any.
        method: The method.
        settings: The training settings.
        acceleration: Whether to compile the student.
        fabric: Device, precision and processes.
        log: Receives notes for the user.
        split: Frozen trunk and trained tail of the backbone, if it is not trained as a whole.
    """
    if method.needs_ema and not settings.ema:
        raise UserError(f"The method '{method.name}' needs the EMA of the weights: set --ema above 0.")
    select_trained_parameters(classifier, settings)
    classifier.to(fabric.device)
    ema = create_ema(classifier) if settings.ema else None
    evaluated = ema if ema is not None and method.evaluates_ema else classifier
    if evaluated is ema and ema_is_too_slow(settings.ema, settings.iterations):
        log(
            f"note: --ema {settings.ema} averages about {ema_steps(settings.ema)} steps, which is long for a run of "
            f"{settings.iterations}; the evaluated model will lag behind. "
            f"--ema {ema_decay_for(settings.iterations)} suits this run."
        )
    student: nn.Module = classifier if split is None else TailClassifier(classifier, split.tail)
    if settings.sync_bn and fabric.world_size > 1:
        student = convert_sync_batchnorm(classifier)  # torch's version drops the activations of timm's layers
    if acceleration.compiled:
        torch.backends.cudnn.benchmark = not settings.deterministic  # its search takes about as long as compiling
        compile_network(student, log)
    optimizer = create_optimizer(classifier, settings, fused=fabric.device.type == "cuda")
    wrapped, optimizer = fabric.setup(student, optimizer)
    frozen = frozen.to(fabric.device) if frozen is not None else None
    return TrainState(
        student=classifier,
        ema=ema,
        ema_decay=settings.ema,
        evaluated=evaluated,
        networks=Networks(
            wrapped,
            _tail_of(ema, settings) if split is not None else ema,
            settings.forward,
            frozen,
            fabric.autocast,
            batch_statistics=split is None,
        ),
        optimizer=optimizer,
        is_split=split is not None,
        has_updates=settings.train == "lora",
    )


def split_for_training(classifier: Classifier, method: type[Method], settings: TrainSettings) -> SplitBackbone | None:
    """Freezes the first stages of the backbone as the settings say.

    Returns:
        The frozen and the trained part; None if the whole backbone is trained.
    """
    if settings.trained_stages is None:
        return None
    if settings.devices > 1 or settings.forward != "split" or not method.supports_frozen_stages:
        option = "--train head" if settings.train == "head" else "--train-stages"
        raise UserError(
            f"{option} needs one device, --forward split and another method than '{method.name}': omit it to "
            "train the whole backbone."
            if not method.supports_frozen_stages
            else f"{option} needs --devices 1 and --forward split: omit it to train the whole backbone."
        )
    split = split_backbone(classifier.backbone, settings.trained_stages, settings.image_size)
    for module in split.frozen:
        module.requires_grad_(False)
    return split


def _tail_of(network: Classifier | None, settings: TrainSettings) -> nn.Module | None:
    if network is None or settings.trained_stages is None:
        return None
    return TailClassifier(
        network, split_backbone(network.backbone, settings.trained_stages, settings.image_size).tail
    ).eval()


def select_trained_parameters(classifier: Classifier, settings: TrainSettings) -> None:
    """Freezes the parameters of the backbone that ``--train`` leaves out, in place. Heads are always trained.

    The parameters of frozen stages stay frozen.

    Raises:
        UserError: If the backbone has no norms or no linear layers to train.

    Example:
        >>> from semifine.models.classifier import create_classifier
        >>> network = create_classifier("test_resnet", 3, 32)
        >>> select_trained_parameters(network, TrainSettings(train="norm"))
        >>> network.backbone.bn1.weight.requires_grad, network.backbone.conv1[0].weight.requires_grad
        (True, False)
    """
    if settings.train not in ("norm", "lora"):
        return
    if settings.train == "lora":
        frozen = {id(value) for value in classifier.backbone.parameters() if not value.requires_grad}
        add_low_rank_updates(classifier.backbone, settings.lora_rank, seed_for("weights", settings, "lora"), frozen)
    norms = [module for module in classifier.backbone.modules() if "norm" in type(module).__name__.lower()]
    of_norms = {id(value) for module in norms for value in module.parameters(recurse=False)}
    for name, value in classifier.backbone.named_parameters():
        chosen = is_low_rank_update(name) if settings.train == "lora" else id(value) in of_norms
        value.requires_grad_(value.requires_grad and chosen)
    if not any(value.requires_grad for value in classifier.backbone.parameters()):
        raise UserError(
            f"--train norm: the trained part of the backbone '{settings.backbone}' has no norms; choose --train all."
        )


class Checkpointer:
    """Saves and restores everything that training steps change.

    Args:
        folder: The run folder.
        catalog: The images; a run resumes only with the same numbers of labeled and unlabeled images.
        train_state: Networks and optimizer.
        method: The method, whose state is in its buffers.
        histories: Further modules with state, by their names in the checkpoint.
        meters: Meters with state, by their names in the checkpoint.
        fabric: Device, precision and processes.
    """

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
        self._train_state = train_state
        self._method = method
        self._histories = histories
        self._meters = meters
        self._fabric = fabric
        self._images = {split.name.lower(): len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED)}

    def save(self, step: int, seconds: Mapping[Phase, float]) -> None:
        """Saves a checkpoint. All processes must call this; the first one writes.

        Args:
            step: Number of finished steps.
            seconds: Run time so far by phase.
        """
        state = {
            "step": step,
            "seconds": dict(seconds),
            "images": self._images,
            "optimizer": self._train_state.optimizer.state_dict(),
            "method": self._method.state_dict(),
            **{name: history.state_dict() for name, history in self._histories.items()},
            **{name: network.state_dict() for name, network in self._train_state.other_networks().items()},
            "meters": {name: meter.state_dict() for name, meter in self._meters.items()},
            "loss_scale": self._fabric.strategy.precision.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self._fabric.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self._fabric.device)
        if self._fabric.is_global_zero:
            state["metrics"] = self._folder.sync_metrics()
            save_checkpoint(self._folder.checkpoints, step, self._train_state.evaluated_weights(), state)

    def restore(self, log: Callable[[str], None]) -> tuple[int, dict[Phase, float]]:
        """Restores the newest undamaged checkpoint, and the metrics up to its step.

        Returns:
            The number of finished steps and the run time by phase; 0 and an empty dict without a checkpoint.
        """
        newest, notes = newest_checkpoint(self._folder.checkpoints)
        for note in notes:
            log(note)
        if newest is None:
            if self._fabric.is_global_zero:
                self._folder.truncate_metrics(0, saved=0)
            return 0, {}
        weights, state = load_weights(newest), load_training_state(newest)
        if state.get("images") != self._images:
            raise UserError(
                f"The images of the run in {self._folder.path} have changed (before: {str(state.get('images'))[:100]}, "
                f"now: {self._images}): restore them, or start another run."
            )
        try:
            self._load(weights, state)
            step, seconds = int(state["step"]), {phase: float(state["seconds"][phase]) for phase in state["seconds"]}
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"The checkpoint {newest} does not match {self._folder.settings} and the data: they have changed since "
                "it was written. Restore them, or start another run."
            ) from error
        if self._fabric.is_global_zero:
            repair_last_link(newest)
            if lost := self._folder.truncate_metrics(step, state.get("metrics")):
                log(
                    f"warning: {self._folder.metrics} has lost {lost} of the {state['metrics']} records before step "
                    f"{step}: curves and best accuracies of the run lack them."
                )
        return step, seconds

    def _load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        if not self._train_state.has_updates:
            self._train_state.evaluated.load_state_dict(weights)
        for name, network in self._train_state.other_networks().items():
            network.load_state_dict(state[name])
        self._train_state.optimizer.load_state_dict(state["optimizer"])
        self._method.load_state_dict(state["method"])
        for name, history in self._histories.items():
            history.load_state_dict(state[name])
        for name, meter in self._meters.items():
            meter.load_state_dict(state["meters"][name], self._fabric.device)
        if state["loss_scale"]:  # fp16 only
            self._fabric.strategy.precision.load_state_dict(state["loss_scale"])
        torch.set_rng_state(state["random"])
        if "random_cuda" in state and self._fabric.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self._fabric.device)
