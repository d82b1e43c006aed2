"""Activations of a frozen trunk for augmented views, computed once and drawn again in every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.random_numbers import create_generator
from semifine.devices import cpu_has_bfloat16
from semifine.models.folding import fold_batch_norms
from semifine.models.forward import micro_batch_size

Progress = Callable[[int], object]
CHUNK = 64
"""Views that the trunk processes at a time."""


class Views(Protocol):
    """Makes the views of a batch; ``AugmentPipeline`` and ``CachedActivations`` do."""

    def augment(
        self,
        rows: NDArray[np.int64],
        views: Sequence[str],
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> dict[str, Tensor]:
        """Returns several views of the same rows by name."""
        ...


class CachedActivations:
    """Replaces images by activations of a frozen trunk, with the interface of ``AugmentPipeline``.

    Of each image, a few random versions of each view go through the trunk once. A step draws one version per image as a
    pure function of the seed and the step, so a resumed run sees the same batches.

    Args:
        pipeline: Makes the augmented images.
        trunk: The frozen part of the network.
        versions: For each stream and view, the number of versions per image.
        rows: For each stream, the rows of its images.
        seed: Seed of the drawn versions.
        progress: Called with the number of views that are done.
    """

    def __init__(
        self,
        pipeline: AugmentPipeline,
        trunk: nn.Module,
        versions: Mapping[str, Mapping[str, int]],
        rows: Mapping[str, NDArray[np.int64]],
        seed: int,
        progress: Progress = lambda _: None,
    ) -> None:
        self._seed = seed
        self._device = pipeline.device
        self._trunk: nn.Module | None = None
        self._position = {stream: _positions(rows[stream]) for stream in versions}
        self._activations: dict[tuple[str, str], Tensor] = {}
        done = 0
        for stream, views in versions.items():
            for view, count in views.items():
                for version in range(count):
                    for start in range(0, len(rows[stream]), CHUNK):
                        part = rows[stream][start : start + CHUNK]
                        images = pipeline.augment(part, (view,), _step_of(start, version), f"{stream} versions")[view]
                        activations = self._run(trunk, images)
                        self._keep(stream, view, count, len(rows[stream]), version, start, activations)
                        done += len(part)
                        progress(done)

    @property
    def nbytes(self) -> int:
        """Memory that the activations take."""
        return sum(values.nbytes for values in self._activations.values())

    def augment(
        self,
        rows: NDArray[np.int64],
        views: Sequence[str],
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> dict[str, Tensor]:
        """Returns float32 activations of one version of each view by name; see ``AugmentPipeline.augment``."""
        assert (rank, world_size) == (0, 1), "cached activations belong to one process"
        position = self._position[stream][rows]
        drawn = {}
        for view in views:
            stored = self._activations[stream, view]
            version = create_generator(self._seed, step, f"{stream}/{view}/version").integers(
                len(stored), size=len(rows)
            )
            values = stored[torch.from_numpy(version), torch.from_numpy(position)]
            drawn[view] = values.to(self._device).float().contiguous(memory_format=memory_format_of(values))
        return drawn

    def _run(self, trunk: nn.Module, images: Tensor) -> Tensor:
        """Runs the trunk, on a CPU with folded batch norms and in bfloat16 if the CPU has instructions for it."""
        if images.device.type != "cpu":
            activations: Tensor = trunk(images)
            return activations
        if self._trunk is None:
            self._trunk = fold_batch_norms(trunk, images[:1])
        parts = images.split(micro_batch_size(len(images), images.shape[-1], images.device))
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=cpu_has_bfloat16()):
            return torch.cat([self._trunk(part).float() for part in parts])

    def _keep(
        self, stream: str, view: str, versions: int, images: int, version: int, start: int, activations: Tensor
    ) -> None:
        if (stream, view) not in self._activations:
            shape = (versions, images, *activations.shape[1:])
            self._activations[stream, view] = torch.empty(shape, dtype=torch.float16)
        self._activations[stream, view][version, start : start + len(activations)] = activations.cpu()


def _positions(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns an array that maps each row of the catalog to its position among the images of a stream."""
    positions = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)
    positions[rows] = np.arange(len(rows))
    return positions


def _step_of(start: int, version: int) -> int:
    """A different number for each chunk and version, which takes the place of the step in the seed."""
    return version * 2**32 + start


def memory_format_of(values: Tensor) -> torch.memory_format:
    """Returns the memory format in which the tail trains fastest: channels last for images."""
    return torch.channels_last if values.ndim == 4 else torch.contiguous_format
