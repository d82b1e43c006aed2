"""A training step as a CUDA graph: hundreds of kernels for the price of one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from semifine.engine.step import StepFunction
from semifine.methods.base import Batch, Progress

WARM_UP = 3
"""Steps before the recording: lazy set-ups, compilation and the choice of algorithms happen in them."""


class GraphedStep:
    """Runs a step as it is a few times, records it, and replays the recording from then on.

    A graph has its own copy of the batch, at fixed addresses. Where a step cannot be recorded, it goes on as it
    is, and says so once.
    """

    def __init__(self, step: StepFunction, say: Callable[[str], None]) -> None:
        self._step = step
        self._say = say
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        self._works = True

    def __call__(self, batch: Batch, progress: Progress) -> None:
        self._calls += 1
        if self._calls <= WARM_UP or not self._works:
            self._step(batch, progress)
            return
        if self._graph is None and not self._record(batch, progress):
            self._step(batch, progress)
            return
        assert self._graph is not None
        assert self._batch is not None
        torch._foreach_copy_(self._batch.tensors(), batch.tensors(), non_blocking=True)
        self._graph.replay()

    def _record(self, batch: Batch, progress: Progress) -> bool:
        self._batch = batch.clone()
        graph = torch.cuda.CUDAGraph()
        # On the stream that trains, so that gradients are added up on no other one.
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._step(self._batch, progress)
        except RuntimeError as error:
            self._works = False
            self._batch = None
            reason = str(error).strip().splitlines()[0]
            self._say(f"The step cannot be a CUDA graph ({reason}); training goes on without one.")
            return False
        self._graph = graph
        return True
