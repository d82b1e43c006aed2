"""Running statistics of training steps, kept on the device so that no step waits for the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from semifine.distributed import all_gather, all_reduce_sum, last_occurrence, rank
from semifine.methods.base import PseudoLabels
from semifine.training.sample_stats import entropy, is_raised, sample_stats


class AverageMeter:
    """Means of the metrics that steps return.

    Example:
        >>> meter = AverageMeter()
        >>> meter.update({"loss": torch.tensor(1.0)})
        >>> meter.update({"loss": torch.tensor(2.0)})
        >>> meter.read()
        {'loss': 1.5}
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None
        """Sums of the metrics and, last, the number of steps. Changed in place, as CUDA graphs require."""

    def update(self, metrics: dict[str, Tensor]) -> None:
        """Adds the metrics of a step, which have the same names in every step."""
        values = [value.float() for value in metrics.values()]
        row = torch.stack([*values, torch.ones_like(values[0])])
        if self._sums is None:
            self._names, self._sums = tuple(metrics), torch.zeros_like(row)
        self._sums.add_(row)

    def read(self) -> dict[str, float]:
        """Returns the means over all processes since the last call. Waits for the device."""
        if self._sums is None:
            return {}
        *sums, steps = all_reduce_sum(self._sums).tolist()
        self._sums.zero_()
        return {name: value / steps for name, value in zip(self._names, sums, strict=True)} if steps else {}

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that steps change; empty before the first step."""
        return {} if self._sums is None else {"sums": self._sums}

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums over all processes since the last :meth:`read`. All processes must call this."""
        if self._sums is None:
            return {}
        *sums, steps = all_reduce_sum(self._sums).unbind()
        return {"sums": dict(zip(self._names, sums, strict=True)), "steps": steps}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        if state:
            self._names = tuple(state["sums"])
            self._sums = _share_of(torch.stack([*state["sums"].values(), state["steps"]]).to(device))


class PseudoLabelMeter:
    """Quality of the pseudo-labels of training steps, measured with the hidden labels.

    Only this part of the training loop sees hidden labels, and nothing flows back from it.

    Args:
        truth: ``(num_unlabeled,)`` true classes; -1 if unknown, ``num_classes`` or more if out of class.
        num_classes: Number of classes K.
    """

    # Means over all images, and over in-class images whose true class is known, by their names in metrics.jsonl.
    OVER_ALL = ("candidates", "accepted", "entropy_before", "entropy_after", "single_candidate", "entropy_raised")
    OVER_KNOWN = ("pseudo_label_accuracy", "candidate_hit_rate", "z_obj1")
    IN_PERCENT = ("pseudo_label_accuracy", "candidate_hit_rate")

    def __init__(self, truth: Tensor, num_classes: int) -> None:
        self._truth = truth
        self._num_classes = num_classes
        self._sums = torch.zeros(len(self.OVER_ALL) + len(self.OVER_KNOWN) + 4, device=truth.device)
        self._predicted = torch.zeros(num_classes, device=truth.device)
        self._counted = torch.zeros(2, device=truth.device)  # images of known true class, and those out of class

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        """Adds the pseudo-labels of a step; ``index`` ``(B,)`` numbers the images within the unlabeled set."""
        truth = self._truth[index]
        stats = sample_stats(pseudo, truth)
        known = ((truth >= 0) & (truth < self._num_classes)).float()
        known_and_accepted = known * stats["accepted"]
        over_all = [
            stats["z_obj2"],
            stats["accepted"],
            stats["entropy_before"],
            stats["entropy_after"],
            stats["z_obj2"] == 1,
            is_raised(stats["entropy_before"], stats["entropy_after"]),
        ]
        over_known = [stats["correct"], stats["hit"], stats["z_obj1"]]
        counts = [torch.ones_like(known), known, known_and_accepted, known_and_accepted * stats["correct"]]
        columns = [*over_all, *over_known, *counts]
        self._sums.add_(torch.stack([column.float() for column in columns]).sum(dim=1))
        classes = torch.arange(self._num_classes, device=truth.device)
        self._predicted.add_((stats["prediction"][:, None] == classes).float().sum(dim=0))
        if pseudo.counted is not None:
            known_or_outside = torch.stack([truth >= 0, truth >= self._num_classes])
            self._counted.add_((known_or_outside & pseudo.counted).float().sum(dim=1))

    def read(self) -> dict[str, float]:
        """Returns the means over all processes since the last call. Waits for the device."""
        *sums, count, known, accepted, correct = all_reduce_sum(self._sums).tolist()
        predicted_classes = _effective_number(all_reduce_sum(self._predicted))
        counted, outside = all_reduce_sum(self._counted).tolist()
        for tensor in self.tensors().values():
            tensor.zero_()
        if not count:
            return {}
        over_all, over_known = sums[: len(self.OVER_ALL)], sums[len(self.OVER_ALL) :]
        metrics = {name: value / count for name, value in zip(self.OVER_ALL, over_all, strict=True)}
        metrics["predicted_classes"] = predicted_classes
        if known:
            metrics |= {
                name: value / known * (100 if name in self.IN_PERCENT else 1)
                for name, value in zip(self.OVER_KNOWN, over_known, strict=True)
            }
        if accepted:
            metrics["accepted_accuracy"] = 100 * correct / accepted
        if counted:
            metrics["counted_out_of_class"] = outside / counted
        return metrics

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that steps change."""
        return {"sums": self._sums, "predicted": self._predicted, "counted": self._counted}

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums over all processes since the last :meth:`read`. All processes must call this."""
        return {name: all_reduce_sum(tensor) for name, tensor in self.tensors().items()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(_share_of(state[name].to(device)))


def _share_of(total: Tensor) -> Tensor:
    """Returns the part of restored sums that this process holds: all of them in the first process, else zeros."""
    return total if rank() == 0 else torch.zeros_like(total)


def _effective_number(counts: Tensor) -> float:
    """Returns exp(entropy of the counts): K if all classes are equally frequent, 1 if only one occurs."""
    return float(entropy(counts / counts.sum().clamp(min=1)).exp())


NEVER = -1


class LabelHistory(nn.Module):
    """Prediction changes of each unlabeled image and pseudo-labels of each class, equal in all processes.

    The buffers are part of a checkpoint, so that a resumed run continues the counts. Training does not depend on them.

    Args:
        num_samples: Number of unlabeled images.
        num_classes: Number of classes K.
    """

    last: Tensor
    changes: Tensor
    predicted: Tensor
    accepted: Tensor

    def __init__(self, num_samples: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((num_samples,), NEVER))
        self.register_buffer("changes", torch.zeros(num_samples, dtype=torch.int64))
        self.register_buffer("predicted", torch.zeros(num_classes))
        self.register_buffer("accepted", torch.zeros(num_classes))

    @torch.no_grad()
    def update(self, pseudo: PseudoLabels, index: Tensor) -> None:
        """Adds the pseudo-labels of a step; ``index`` ``(B,)`` numbers the images within the unlabeled set."""
        index = all_gather(index)
        prediction = all_gather(pseudo.probs.argmax(dim=1))
        accepted = all_gather(pseudo.accepted.float())
        before = self.last[index]
        changed = (before != NEVER) & (before != prediction)
        place = last_occurrence(index)  # if an image occurs twice in a batch, the later prediction counts
        self.changes.index_copy_(0, index, (self.changes[index] + changed)[place])
        self.last.index_copy_(0, index, prediction[place])
        is_class = (prediction[:, None] == torch.arange(len(self.predicted), device=index.device)).float()
        self.predicted.add_(is_class.sum(dim=0))
        self.accepted.add_((is_class * accepted[:, None]).sum(dim=0))

    def pop_class_counts(self) -> dict[str, list[int]]:
        """Returns the number of predictions and of accepted pseudo-labels per class since the last call."""
        counts = torch.stack([self.predicted, self.accepted]).round().long().tolist()
        self.predicted.zero_()
        self.accepted.zero_()
        return dict(zip(("predicted", "accepted"), counts, strict=True))
