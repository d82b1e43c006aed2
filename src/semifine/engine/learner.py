"""What learns in a run: the network, its average, and the optimiser between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn

from semifine.config import TrainSettings
from semifine.config.average_length import averaged_steps, averaging_decay, lags
from semifine.engine.acceleration import Acceleration
from semifine.engine.averaging import create_teacher, update_teacher
from semifine.engine.compiling import compile_network
from semifine.engine.devices import Fabric
from semifine.engine.optimiser import create_optimiser
from semifine.errors import UserError
from semifine.methods.base import Method
from semifine.models.classifier import Classifier
from semifine.models.networks import Networks


@dataclass(frozen=True)
class Learner:
    """The networks of a run, on its device, ready to be trained."""

    classifier: nn.Module
    teacher: nn.Module | None
    """The average of the classifier's weights, where the run keeps one."""
    ema: float
    evaluated: nn.Module
    """The one of the two whose accuracy is reported."""
    frozen: nn.Module | None
    networks: Networks
    optimiser: Any

    def average(self) -> None:
        """Takes the classifier's weights into the average."""
        if self.teacher is not None:
            update_teacher(self.teacher, self.classifier, self.ema)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes: of the networks, and the optimiser's momentum, once there is any."""
        networks = {"student": self.classifier, "teacher": self.teacher}
        state = {
            f"{owner}.{name}": value
            for owner, network in networks.items()
            if network is not None
            for name, value in (*network.named_parameters(), *network.named_buffers())
        }
        for parameter, memory in self.optimiser.state_dict()["state"].items():
            state |= {f"{parameter}.{name}": value for name, value in memory.items() if isinstance(value, Tensor)}
        return state

    def unevaluated(self) -> dict[str, nn.Module]:
        """The network beside the evaluated one, where there are two, by its name in a checkpoint."""
        both = {"student": self.classifier, "teacher": self.teacher}
        return {name: net for name, net in both.items() if net is not None and net is not self.evaluated}


def set_up_learner(
    classifier: Classifier,
    frozen: Classifier | None,
    method: Method,
    settings: TrainSettings,
    acceleration: Acceleration,
    fabric: Fabric,
    say: Callable[[str], None],
) -> Learner:
    if method.needs_average and not settings.ema:
        raise UserError(f"The method '{method.name}' learns from the averaged model: give --ema above 0.")
    classifier.to(fabric.device)
    teacher = create_teacher(classifier) if settings.ema else None
    evaluated = teacher if teacher is not None and method.evaluates_average else classifier
    if evaluated is teacher and lags(settings.ema, settings.iterations):
        say(
            f"note: the model that is evaluated averages about {averaged_steps(settings.ema)} steps "
            f"(--ema {settings.ema}), long for a run of {settings.iterations}, and will lag behind; "
            f"--ema {averaging_decay(settings.iterations)} would suit."
        )
    trained: nn.Module = classifier
    if settings.sync_bn and fabric.world_size > 1:
        trained = convert_sync_batchnorm(classifier)  # timm's own: torch's drops the activations in timm's layers
    if acceleration.compiled:
        torch.backends.cudnn.benchmark = not settings.deterministic  # the search takes about as long as compiling
        compile_network(trained, say)
    optimiser = create_optimiser(trained, settings, fused=fabric.device.type == "cuda")
    student, optimiser = fabric.setup(trained, optimiser)
    frozen = frozen.to(fabric.device) if frozen is not None else None
    return Learner(
        classifier=classifier,
        teacher=teacher,
        ema=settings.ema,
        evaluated=evaluated,
        frozen=frozen,
        networks=Networks(student, teacher, settings.forward, frozen, fabric.autocast),
        optimiser=optimiser,
    )
