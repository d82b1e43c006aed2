"""Features of images from a frozen network, cached on disk by the content of each image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from semifine.data.store import ImageStore, default_cache_dir
from semifine.files import write_atomically
from semifine.inference.evaluate import Evaluator
from semifine.models.classifier import Classifier
from semifine.models.forward import Output

Features = NDArray[np.float32]
Rows = NDArray[np.int64]
Progress = Callable[[int], object]
CHUNK = 256
"""Images between two reports of progress."""


@dataclass(frozen=True)
class FeatureCache:
    """A file with the features of one network, one row per image content.

    An image is identified by the digest of its file. So a second data set with the same photos, or the same data set
    with more photos or other labels, computes only what is new.
    """

    path: Path

    @classmethod
    def of(cls, network: Classifier, description: str, folder: Path | str | None = None) -> FeatureCache:
        """Returns the cache of a network. Its name contains a hash of the backbone's weights.

        Args:
            network: The network.
            description: Everything else on which the features depend, such as the image size.
            folder: Folder of the cache; by default the folder of decoded images.
        """
        digest = hashlib.blake2b(description.encode(), digest_size=12)
        for name, value in sorted(network.backbone.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        base = default_cache_dir() if folder is None else Path(folder).expanduser()
        return cls(base / f"features-{digest.hexdigest()}.safetensors")

    def read(self) -> tuple[NDArray[np.void], Features]:
        """Returns image digests ``(n,)`` and features ``(n, dim)``; nothing if the file is missing or damaged."""
        try:
            tensors = load_file(self.path)
            return _as_keys(tensors["digest"]), tensors["features"].astype(np.float32)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError):
            return np.zeros(0, "V1"), np.zeros((0, 0), np.float32)

    def write(self, keys: NDArray[np.void], features: Features) -> None:
        """Writes the cache. Without permission or space, the features are computed again at the next use."""
        digests = keys.view(np.uint8).reshape(len(keys), -1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, save({"digest": digests, "features": features.astype(np.float16)}))
        except OSError:
            return


class FeatureEvaluator(Evaluator):
    """Evaluates classification heads on the features of one frozen backbone, which are computed once per image.

    Args:
        evaluator: Runs the backbone over the store.
        network: A network with the frozen backbone.
        store: The decoded images.
        caches: Caches for the images and for their mirror images; None keeps features in memory only.
        progress: Called with the number of images whose features were computed.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        network: Classifier,
        store: ImageStore,
        caches: tuple[FeatureCache, FeatureCache] | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self._evaluator = evaluator
        self._network = network
        self._keys = _as_keys(store.digest)
        self._caches = caches
        self._progress = progress
        self._num_computed = 0
        self._known: dict[bool, tuple[NDArray[np.void], Features]] = {}

    def features(self, rows: Rows, *, flip: bool = False) -> Features:
        """Returns the pooled features ``(len(rows), dim)``, in the precision of the cache.

        Args:
            rows: Rows of the store.
            flip: Features of the mirrored images.
        """
        keys = self._keys[rows]
        known, features = self._read(flip)
        position = {key: index for index, key in enumerate(known.tolist())}
        missing = np.array([i for i, key in enumerate(keys.tolist()) if key not in position], np.int64)
        if len(missing):
            computed = self._compute(rows[missing], flip).astype(np.float16).astype(np.float32)
            features = np.concatenate([features, computed]) if len(known) else computed
            known = np.concatenate([known, keys[missing]]) if len(known) else keys[missing]
            self._known[flip] = known, features
            if self._caches:
                self._caches[flip].write(known, features)
            position = {key: index for index, key in enumerate(known.tolist())}
        return features[[position[key] for key in keys.tolist()]]

    def restart_progress(self) -> None:
        """Counts the images of ``progress`` from zero."""
        self._num_computed = 0

    def outputs(self, network: Classifier, rows: Rows, *, flip: bool = False) -> Iterator[Output]:
        """Yields the logits of the network's head, and the features, batch by batch."""
        device = next(network.head.parameters()).device
        for start in range(0, len(rows), CHUNK):
            features = torch.from_numpy(self.features(rows[start : start + CHUNK], flip=flip)).to(device)
            with torch.no_grad():
                yield Output(network.head(features), features)

    def _read(self, flip: bool) -> tuple[NDArray[np.void], Features]:
        if flip not in self._known:
            empty = self._keys[:0], np.zeros((0, 0), np.float32)
            self._known[flip] = self._caches[flip].read() if self._caches else empty
        return self._known[flip]

    def _compute(self, rows: Rows, flip: bool) -> Features:
        parts = []
        for output in self._evaluator.outputs(self._network, rows, flip=flip):
            parts.append(output.features.float().cpu().numpy())
            self._num_computed += len(parts[-1])
            self._progress(self._num_computed)
        return np.concatenate(parts)


def _as_keys(digests: NDArray[Any]) -> NDArray[np.void]:
    """Views digests ``(n, bytes)`` as one value per row."""
    contiguous = np.ascontiguousarray(digests)
    return contiguous.view(np.dtype((np.void, contiguous.shape[1]))).reshape(-1)
