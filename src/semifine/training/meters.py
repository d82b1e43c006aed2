"""Running means on the device, read once per log interval so that no step waits on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semifine.distributed import all_reduce_sum, rank
from semifine.methods.base import PseudoLabels
from semifine.training.sample_stats import entropy, is_raised, sample_stats


def _share_of(total: Tensor) -> Tensor:
    """This process's part of sums that go on: the first one takes them all."""
    return total if rank() == 0 else torch.zeros_like(total)


class AverageMeter:
    """Means of the named numbers that steps return."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None  # the last one counts the steps; changed in place, as a CUDA graph needs it

    def update(self, numbers: dict[str, Tensor]) -> None:
        """Adds a step's numbers, always under the same names."""
        values = [value.float() for value in numbers.values()]
        row = torch.stack([*values, torch.ones_like(values[0])])
        if self._sums is None:
            self._names, self._sums = tuple(numbers), torch.zeros_like(row)
        self._sums.add_(row)

    def sums(self) -> dict[str, Tensor]:
        """What steps add to, once there was one."""
        return {} if self._sums is None else {"sums": self._sums}

    def state_dict(self) -> dict[str, Any]:
        """What was added since the last reading, by all processes, which must all ask."""
        if self._sums is None:
            return {}
        *sums, steps = all_reduce_sum(self._sums).unbind()
        return {"sums": dict(zip(self._names, sums, strict=True)), "steps": steps}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        if state:
            self._names = tuple(state["sums"])
            self._sums = _share_of(torch.stack([*state["sums"].values(), state["steps"]]).to(device))

    def read(self) -> dict[str, float]:
        """The means since the last reading; the one place that waits for the device."""
        if self._sums is None:
            return {}
        *sums, steps = all_reduce_sum(self._sums).tolist()
        self._sums.zero_()
        return {name: value / steps for name, value in zip(self._names, sums, strict=True)} if steps else {}


class PseudoLabelMeter:
    """How good the pseudo-labels of training steps are, against the hidden truth.

    This is the only place of the training loop that sees the truth, and nothing flows back from it.
    """

    # Means over all images, and over in-class ones whose truth is known, by their names in metrics.jsonl.
    OVER_ALL = ("candidates", "accepted", "entropy_before", "entropy_after", "single_candidate", "entropy_raised")
    OVER_KNOWN = ("pseudo_label_accuracy", "candidate_hit_rate", "z_obj1")
    SHARES_IN_PERCENT = ("pseudo_label_accuracy", "candidate_hit_rate")

    def __init__(self, truth: Tensor, num_classes: int) -> None:
        self._truth = truth
        self._num_classes = num_classes
        self._sums = torch.zeros(len(self.OVER_ALL) + len(self.OVER_KNOWN) + 4, device=truth.device)
        self._predicted = torch.zeros(num_classes, device=truth.device)
        self._counted = torch.zeros(2, device=truth.device)  # images with a known truth, and those out of class

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        truth = self._truth[index]
        stats = sample_stats(pseudo, truth)
        known = ((truth >= 0) & (truth < self._num_classes)).float()
        taken = known * stats["accepted"]
        over_all = [
            stats["z_obj2"],
            stats["accepted"],
            stats["entropy_before"],
            stats["entropy_after"],
            stats["z_obj2"] == 1,
            is_raised(stats["entropy_before"], stats["entropy_after"]),
        ]
        over_known = [stats["correct"], stats["hit"], stats["z_obj1"]]
        columns = [*over_all, *over_known, torch.ones_like(known), known, taken, taken * stats["correct"]]
        self._sums.add_(torch.stack([column.float() for column in columns]).sum(dim=1))
        classes = torch.arange(self._num_classes, device=truth.device)
        self._predicted.add_((stats["prediction"][:, None] == classes).float().sum(dim=0))
        if pseudo.counted is not None:
            among = torch.stack([truth >= 0, truth >= self._num_classes])
            self._counted.add_((among & pseudo.counted).float().sum(dim=1))

    def sums(self) -> dict[str, Tensor]:
        """What steps add to."""
        return {"sums": self._sums, "predicted": self._predicted, "counted": self._counted}

    def state_dict(self) -> dict[str, Any]:
        """What was added since the last reading, by all processes, which must all ask."""
        return {name: all_reduce_sum(sums) for name, sums in self.sums().items()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        for name, total in state.items():  # runs of before may have kept fewer
            self.sums()[name].copy_(_share_of(total.to(device)))

    def read(self) -> dict[str, float]:
        """Means since the last reading."""
        *sums, count, known, taken, taken_correct = all_reduce_sum(self._sums).tolist()
        spread = _effective_number(all_reduce_sum(self._predicted))
        counted, outside = all_reduce_sum(self._counted).tolist()
        for sums_so_far in self.sums().values():
            sums_so_far.zero_()
        if not count:
            return {}
        over_all, over_known = sums[: len(self.OVER_ALL)], sums[len(self.OVER_ALL) :]
        numbers = {name: value / count for name, value in zip(self.OVER_ALL, over_all, strict=True)}
        numbers["predicted_classes"] = spread
        if known:
            numbers |= {
                name: value / known * (100 if name in self.SHARES_IN_PERCENT else 1)
                for name, value in zip(self.OVER_KNOWN, over_known, strict=True)
            }
        if taken:
            numbers["accepted_accuracy"] = 100 * taken_correct / taken
        if counted:
            numbers["counted_out_of_class"] = outside / counted
        return numbers


def _effective_number(counts: Tensor) -> float:
    """exp of the entropy of the counts: K when all classes are predicted equally often, 1 when a single one is."""
    return float(entropy(counts / counts.sum().clamp(min=1)).exp())
