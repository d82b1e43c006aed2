"""Class transition tracking: how often does the model change its mind from class m to class n?

Each time an unlabeled sample comes by, its prediction is compared with the last one. A change m -> n counts once
in C[m, n]; only the last ``window`` batches count. The window is kept as a ring of encoded pairs beside a running
sum, so the memory is O(window * batch + K^2 + M) instead of a dense K x K x window tensor.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

NO_CLASS = -1  # in the bank: this sample was never seen
NO_TRANSITION = -1  # in the ring: this place of the batch counts nothing

# A transition m -> n is stored as m * K + n in 32 bits.
MAX_CLASSES = 46_340


def sequential_predictions(bank: Tensor, index: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    """What a loop over the batch would see and leave behind, without the loop.

    The same dataset index may occur several times in a batch; its second occurrence must see the prediction of the
    first. A (batch, batch) comparison finds each sample's latest earlier occurrence, which is exact and needs no
    host synchronization.

    Shapes: bank (M,), index and prediction (batch,).
    Returns (batch,) the class each sample had before its turn (-1: none), and (batch,) the class its dataset index
    has after the whole batch (equal for all occurrences, so that writing them in any order is safe).
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
    """Code m * K + n of each change m -> n; -1 for a first visit and for an unchanged class. Shapes: all (batch,)."""
    counts = (before != NO_CLASS) & (before != after)
    return torch.where(counts, before * num_classes + after, NO_TRANSITION)


def add_transitions(counts: Tensor, codes: Tensor, sign: int) -> None:
    """Add ``sign`` to C[m, n] for each code, in place. Shapes: counts (K, K), codes (any,) with -1 = nothing."""
    cell = codes.clamp(min=0).long()
    amount = (codes >= 0).to(counts.dtype)  # a place without transition adds 0 to cell 0
    counts.view(-1).index_add_(0, cell, amount, alpha=sign)


class TransitionTracker(nn.Module):
    """The class prediction bank, the window of transitions and their running sum C (K, K).

    All state is in persistent buffers. ``update`` equals processing the batch one sample after the other, needs no host
    synchronization, and can be captured in a CUDA graph once the ring has its width (after the first batch).

    ``window`` counts batches (N_b, 5120 in the paper). The official code clears the next slot before it sums and so
    counts one batch less: ``window = 5119`` reproduces it.
    """

    bank: Tensor
    ring: Tensor
    slot: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, num_samples: int, window: int = 5120) -> None:
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
        self.register_buffer("slot", torch.zeros((), dtype=torch.int64))
        self.register_buffer("counts", torch.zeros((num_classes, num_classes), dtype=torch.int32))

    @torch.no_grad()
    def update(self, index: Tensor, prediction: Tensor) -> Tensor:
        """Track one batch and close it.

        Shapes: index (batch,) places in the unlabeled set, prediction (batch,) classes.
        Returns (batch,) the encoded transitions m * K + n of this batch, -1 where there was none.
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
        """Put a batch's transitions into the ring and the running sum; the batch that falls out leaves both."""
        self._widen(codes.numel())
        row = torch.full((1, self.ring.shape[1]), NO_TRANSITION, dtype=self.ring.dtype, device=codes.device)
        row[0, : codes.numel()] = codes
        slot = self.slot.view(1)
        add_transitions(self.counts, self.ring.index_select(0, slot).view(-1), sign=-1)
        add_transitions(self.counts, codes, sign=+1)
        self.ring.index_copy_(0, slot, row)
        self.slot.add_(1).remainder_(self.window)

    def _widen(self, batch_size: int) -> None:
        """Give the ring at least ``batch_size`` columns; the batch size is only known when the first batch comes."""
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
            return  # looking at values would make the host wait for the device
        _check_range("index", index, self.num_samples, "num_samples")
        _check_range("prediction", prediction, self.num_classes, "num_classes")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Accept a ring of any width: its width is the batch size of the run that saved it."""
        saved = state_dict.get(prefix + "ring")
        if isinstance(saved, Tensor) and saved.ndim == 2 and saved.shape[0] == self.window:
            self.ring = self.ring.new_full(tuple(saved.shape), NO_TRANSITION)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _check_range(name: str, values: Tensor, size: int, size_name: str) -> None:
    smallest, largest = (int(bound) for bound in values.aminmax())
    if smallest < 0 or largest >= size:
        raise ValueError(f"{name} must lie in 0..{size - 1} ({size_name} = {size}), got {smallest}..{largest}.")
