"""A network on a GPU that gives logits to any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.inference.view_classifier import ViewClassifier

_ONE_AT_A_TIME = Lock()
"""Torch records all graphs of a process on one stream."""


class DeviceNetwork:
    """Answers in float16, which is nearer to float32 than bf16; in float32 from the first logits too large for it on.

    cuDNN looks for its kernels anew in every thread, and for every number of images, which takes a second or more. So
    one thread makes all calls, with few different numbers of images. What comes back is recorded as a CUDA graph, since
    hundreds of launches would keep Python busy that decoding and tables need.
    """

    def __init__(self, classifier: ViewClassifier, device: torch.device) -> None:
        self._classifier = classifier
        self._device = device
        self._in_half = True
        self._sizes: set[int] = set()
        self._recordings: dict[int, _Recording] = {}
        self._can_record = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        """N views, (S, S, 3) levels each -> (N, K)."""
        return self._thread.submit(self._logits, views).result()

    @torch.inference_mode()
    def _logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        count = len(views)
        size = self._steady_size(count)
        is_new = size not in self._sizes
        self._sizes.add(size)
        levels = torch.stack([*views, *[views[-1]] * (size - count)]).to(self._device)
        found = self._forward(levels) if is_new else self._again(levels)
        if self._in_half and not np.isfinite(found).all():
            self._in_half = False
            self._recordings.clear()
            found = self._forward(levels)
        return found[:count]

    def _forward(self, levels: Tensor) -> NDArray[np.float32]:
        return _on_host(self._launch(levels))

    def _launch(self, levels: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.float16, enabled=self._in_half):
            logits: Tensor = self._classifier(levels)[1]
        return logits

    def _again(self, levels: Tensor) -> NDArray[np.float32]:
        """The logits of as many images as it had before."""
        if self._can_record and len(levels) not in self._recordings:
            try:
                self._recordings[len(levels)] = _Recording(self._launch, levels)
            except RuntimeError:  # of a network that waits for the GPU on its way, or for want of memory
                self._can_record = False
        recording = self._recordings.get(len(levels))
        return _on_host(recording.replay(levels)) if recording else self._forward(levels)

    def _steady_size(self, count: int) -> int:
        """A number of images that it had before, or else the next power of two."""
        known = [size for size in self._sizes if size >= count]
        return min(known) if known else 1 << (count - 1).bit_length()


class _Recording:
    """The network's work on so many images, at fixed addresses."""

    def __init__(self, launch: Callable[[Tensor], Tensor], levels: Tensor) -> None:
        self._levels = levels.clone()
        self._graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile with what no recording may hold: they copy images and wait for them.
        with _ONE_AT_A_TIME, torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = launch(self._levels)

    def replay(self, levels: Tensor) -> Tensor:
        """Its result holds until the next one."""
        self._levels.copy_(levels)
        self._graph.replay()
        return self._logits


def _on_host(logits: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = logits.cpu().numpy()
    return found
