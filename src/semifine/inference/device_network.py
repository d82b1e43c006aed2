"""A network on a GPU that gives logits to any thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.inference.view_classifier import ViewClassifier


class DeviceNetwork:
    """Answers in float16, which is nearer to float32 than bf16; in float32 from the first logits too large for it on.

    cuDNN looks for its kernels anew in every thread, and for every number of images, which takes a second or more. So
    one thread makes all calls, with few different numbers of images.
    """

    def __init__(self, classifier: ViewClassifier, device: torch.device) -> None:
        self._classifier = classifier
        self._device = device
        self._in_half = True
        self._sizes: set[int] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        """N views, (S, S, 3) levels each -> (N, K)."""
        return self._thread.submit(self._logits, views).result()

    @torch.inference_mode()
    def _logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        count = len(views)
        levels = torch.stack([*views, *[views[-1]] * (self._steady_size(count) - count)]).to(self._device)
        found = self._forward(levels)
        if self._in_half and not np.isfinite(found).all():
            self._in_half = False
            found = self._forward(levels)
        return found[:count]

    def _forward(self, levels: Tensor) -> NDArray[np.float32]:
        with torch.autocast(self._device.type, torch.float16, enabled=self._in_half):
            logits: NDArray[np.float32] = self._classifier(levels)[1].cpu().numpy()
        return logits

    def _steady_size(self, count: int) -> int:
        """A number of images that it had before, or else the next power of two."""
        known = [size for size in self._sizes if size >= count]
        size = min(known) if known else 1 << (count - 1).bit_length()
        self._sizes.add(size)
        return size
