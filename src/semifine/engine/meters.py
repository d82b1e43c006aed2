"""Running means on the device, read once per log interval so that no step waits on the host."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from semifine.methods.base import PseudoLabels


def sum_over_processes(sums: Tensor) -> Tensor:
    """The sum over all processes, which must all ask for it; in a single one the numbers themselves."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        sums = sums.clone()
        dist.all_reduce(sums)
    return sums


class NumberMeter:
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

    def read(self) -> dict[str, float]:
        """The means since the last reading; the one place that waits for the device."""
        if self._sums is None:
            return {}
        *sums, steps = sum_over_processes(self._sums).tolist()
        self._sums.zero_()
        return {name: value / steps for name, value in zip(self._names, sums, strict=True)} if steps else {}


class PseudoLabelMeter:
    """How good the pseudo-labels of training steps are, against the hidden truth.

    This is the only place of the training loop that sees the truth, and nothing flows back from it.
    """

    def __init__(self, truth: Tensor, num_classes: int) -> None:
        self._truth = truth
        self._num_classes = num_classes
        self._sums = torch.zeros(8, device=truth.device)

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        truth = self._truth[index]
        known = ((truth >= 0) & (truth < self._num_classes)).float()
        candidates = pseudo.target > 0
        correct = (pseudo.probs.argmax(dim=1) == truth).float()
        hit = candidates.gather(1, truth.clamp(0, self._num_classes - 1)[:, None])[:, 0].float()
        columns = [
            torch.ones_like(known),
            candidates.sum(dim=1).float(),
            pseudo.accepted.float(),
            known,
            known * correct,
            known * hit,
            known * pseudo.accepted.float(),
            known * pseudo.accepted.float() * correct,
        ]
        self._sums.add_(torch.stack(columns).sum(dim=1))

    def read(self) -> dict[str, float]:
        """Means since the last reading: over all images, and over in-class ones with a known truth."""
        count, size, accepted, known, correct, hit, taken, taken_correct = sum_over_processes(self._sums).tolist()
        self._sums.zero_()
        if not count:
            return {}
        numbers = {"candidates": size / count, "accepted": accepted / count}
        if known:
            numbers |= {"pseudo_label_accuracy": 100 * correct / known, "candidate_hit_rate": 100 * hit / known}
        if taken:
            numbers["accepted_accuracy"] = 100 * taken_correct / taken
        return numbers
