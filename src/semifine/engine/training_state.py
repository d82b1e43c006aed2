"""All that training needs to go on bit for bit: written as a checkpoint, taken up from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from semifine.data.catalog import Catalog, Split
from semifine.engine.checkpoint import (
    load_training_state,
    load_weights,
    newest_checkpoint,
    point_last_at,
    save_checkpoint,
)
from semifine.engine.devices import Fabric
from semifine.engine.learner import Learner
from semifine.engine.meters import NumberMeter, PseudoLabelMeter
from semifine.engine.time_spent import Part
from semifine.errors import UserError
from semifine.methods.base import Method
from semifine.run_folder import RunFolder


class TrainingState:
    """The parts of a run that steps change, each with a state of its own."""

    def __init__(
        self,
        folder: RunFolder,
        catalog: Catalog,
        learner: Learner,
        method: Method,
        histories: Mapping[str, nn.Module],
        meters: Mapping[str, NumberMeter | PseudoLabelMeter],
        fabric: Fabric,
    ) -> None:
        self._folder = folder
        self._learner = learner
        self._method = method
        self._histories = histories
        self._meters = meters
        self._fabric = fabric
        self._images = {split.name.lower(): len(catalog.rows(split)) for split in (Split.LABELLED, Split.UNLABELLED)}

    def save(self, step: int, seconds: Mapping[Part, float]) -> None:
        """All processes must ask, and the first one writes."""
        state = {
            "step": step,
            "seconds": dict(seconds),
            "images": self._images,
            "optimiser": self._learner.optimiser.state_dict(),
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

    def take_up(self, say: Callable[[str], None]) -> tuple[int, dict[Part, float]]:
        """Fills everything from the newest checkpoint that is whole; the steps and seconds until it, 0 without one."""
        newest, remarks = newest_checkpoint(self._folder.checkpoints)
        for remark in remarks:
            say(remark)
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
        self._learner.optimiser.load_state_dict(state["optimiser"])
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
