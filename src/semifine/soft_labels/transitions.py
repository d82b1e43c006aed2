"""Class transition tracking: how often predictions change from class m to class n.

Each time an unlabeled sample occurs in a batch, its prediction is compared with its previous one. A change m -> n adds
1 to C[m, n]. C is the sum over the last ``window`` batches. A ring buffer of encoded transitions and a running sum need
O(window * batch + K^2 + M) memory instead of K x K x window.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

WINDOW = 5120
"""Default number of recent batches whose transitions are counted (N_b in the paper)."""
NO_CLASS = -1  # in the bank: the sample has not occurred yet
NO_TRANSITION = -1  # in the ring: the sample did not change its class

# A transition m -> n is stored as m * K + n in 32 bits.
MAX_CLASSES = 46_340


def sequential_predictions(bank: Tensor, index: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the predictions before and after each sample, as if the batch were processed one sample at a time.

    An index may occur several times in a batch; its second occurrence is compared with the prediction of the first. A
    (batch, batch) comparison finds the previous occurrence of each sample without synchronizing with the host.

    Args:
        bank: (M,) last prediction of each unlabeled image.
        index: (batch,) indices into the bank.
        prediction: (batch,) predicted classes.

    Returns:
        (batch,) previous class of each sample (-1: none), and (batch,) class of its index after the whole batch, which
        is equal for all occurrences, so that they can be written in any order.
    """
    same = index.unsqueeze(1) == index.unsqueeze(0)
    position = torch.arange(index.numel(), device=index.device)
    none = torch.full_like(position, -1)
    latest_earlier = torch.where(same.tril(-1), position, none).amax(dim=1)
    last = torch.where(same, position, none).amax(dim=1)
    seen_in_batch = prediction.index_select(0, latest_earlier.clamp(min=0))
    before = torch.where(latest_earlier >= 0, seen_in_batch, bank.index_select(0, index).to(prediction.dtype))
    return before, prediction.index_select(0, last)


def encode_transitions(before: Tensor, after: Tensor, num_classes: int) -> Tensor:
    """Encodes each change m -> n as m * K + n; -1 for a first prediction and for no change. Shapes: all (batch,)."""
    counts = (before != NO_CLASS) & (before != after)
    return torch.where(counts, before * num_classes + after, NO_TRANSITION)


def add_transitions(counts: Tensor, codes: Tensor, sign: int) -> None:
    """Adds ``sign`` to C[m, n] for each code in place; ignores -1. Shapes: counts (K, K), codes (any,)."""
    element = codes.clamp(min=0).long()
    amount = (codes >= 0).to(counts.dtype)  # -1 adds 0 to element 0
    counts.view(-1).index_add_(0, element, amount, alpha=sign)


class TransitionTracker(nn.Module):
    """Tracks the last prediction of each sample and the (K, K) sum C of the transitions in the last batches.

    All state is in persistent buffers. ``update`` equals processing the batch one sample at a time. It does not
    synchronize with the host and can be captured in a CUDA graph after the first batch, which sets the width of the
    ring buffer.

    Args:
        num_classes: Number of classes K.
        num_samples: Number of unlabeled images M.
        window: Number of recent batches whose transitions are counted. The official code counts one batch less, because
            it clears the next entry before it sums.

    Example::

        >>> tracker = TransitionTracker(num_classes=3, num_samples=10)
        >>> _ = tracker.update(index=torch.tensor([4, 7]), prediction=torch.tensor([0, 1]))
        >>> _ = tracker.update(index=torch.tensor([4, 7]), prediction=torch.tensor([2, 1]))
        >>> tracker.counts
        tensor([[0, 0, 1],
                [0, 0, 0],
                [0, 0, 0]], dtype=torch.int32)
    """

    bank: Tensor
    """(M,) last prediction of each sample, -1 if it has not occurred."""
    ring: Tensor
    """(window, batch) encoded transitions of each batch."""
    cursor: Tensor
    """Row of the ring that the next batch overwrites."""
    counts: Tensor
    """(K, K) sum of the transitions."""

    def __init__(self, num_classes: int, num_samples: int, window: int = WINDOW) -> None:
        super().__init__()
        if not 2 <= num_classes <= MAX_CLASSES:
            raise ValueError(f"num_classes must be between 2 and {MAX_CLASSES}, got {num_classes}.")
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}.")
        if window < 1:
            raise ValueError(f"window must be at least 1 batch, got {window}.")
        self.num_classes = num_classes
        self.num_samples = num_samples
        self.window = window
        self.register_buffer("bank", torch.full((num_samples,), NO_CLASS, dtype=torch.int32))
        self.register_buffer("ring", torch.empty((window, 0), dtype=torch.int32))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))
        self.register_buffer("counts", torch.zeros((num_classes, num_classes), dtype=torch.int32))

    @torch.no_grad()
    def update(self, index: Tensor, prediction: Tensor) -> Tensor:
        """Adds a batch.

        Args:
            index: (batch,) indices of the images in the unlabeled set.
            prediction: (batch,) predicted classes.

        Returns:
            (batch,) encoded transitions m * K + n of this batch, -1 for samples without a change.
        """
        self._check(index, prediction)
        index, prediction = index.long(), prediction.long()
        before, after = sequential_predictions(self.bank, index, prediction)
        self.bank.index_copy_(0, index, after.to(self.bank.dtype))
        codes = encode_transitions(before, prediction, self.num_classes)
        self._push(codes)
        return codes

    def forward(self, index: Tensor, prediction: Tensor) -> Tensor:
        """Same as ``update``."""
        return self.update(index, prediction)

    def _push(self, codes: Tensor) -> None:
        """Adds the transitions of a batch to the ring and to the sum, and removes the oldest batch from both."""
        self._widen(codes.numel())
        row = torch.full((1, self.ring.shape[1]), NO_TRANSITION, dtype=self.ring.dtype, device=codes.device)
        row[0, : codes.numel()] = codes
        cursor = self.cursor.view(1)
        add_transitions(self.counts, self.ring.index_select(0, cursor).view(-1), sign=-1)
        add_transitions(self.counts, codes, sign=+1)
        self.ring.index_copy_(0, cursor, row)
        self.cursor.add_(1).remainder_(self.window)

    def _widen(self, batch_size: int) -> None:
        """Widens the ring to at least ``batch_size`` columns. The batch size is unknown before the first batch."""
        missing = batch_size - self.ring.shape[1]
        if missing > 0:
            shape = (self.window, missing)
            new_columns = torch.full(shape, NO_TRANSITION, dtype=self.ring.dtype, device=self.ring.device)
            self.ring = torch.cat([self.ring, new_columns], dim=1)

    def _check(self, index: Tensor, prediction: Tensor) -> None:
        if index.ndim != 1 or index.shape != prediction.shape or index.numel() == 0:
            raise ValueError(
                "index and prediction must be non-empty vectors of the same length, "
                f"got shapes {tuple(index.shape)} and {tuple(prediction.shape)}."
            )
        if index.device.type != "cpu":
            return  # reading values would make the host wait for the device
        _check_range("index", index, self.num_samples, "num_samples")
        _check_range("prediction", prediction, self.num_classes, "num_classes")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Accepts a ring of any width; the width is the batch size of the run that saved it."""
        saved = state_dict.get(prefix + "ring")
        if isinstance(saved, Tensor) and saved.ndim == 2 and saved.shape[0] == self.window:
            self.ring = self.ring.new_full(tuple(saved.shape), NO_TRANSITION)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _check_range(name: str, values: Tensor, size: int, size_name: str) -> None:
    smallest, largest = (int(bound) for bound in values.aminmax())
    if smallest < 0 or largest >= size:
        raise ValueError(f"{name} must be between 0 and {size - 1} ({size_name} = {size}), got {smallest}..{largest}.")
