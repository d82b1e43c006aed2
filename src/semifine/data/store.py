"""Which images may be left out because they cannot be read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.data import store_files
from semifine.data.catalog import Catalog, readable_rows
from semifine.data.parallel import usable_cores
from semifine.data.store_files import Columns, Hash, decode_all
from semifine.errors import UserError

Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all images."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ImageStore:
    """Decoded images: row ``i`` is the first ``height[i] * width[i] * 3`` bytes of ``pixels[offset[i]:]``.

    The shorter side is at most ``size``: larger images were shrunk with antialiasing. The aspect ratio is
    that of the image, but no longer than 4:1 (see ``reading.MAX_ASPECT``). ``pixels`` may lie over a
    read-only memory map: never write to it.
    """

    size: int
    pixels: torch.Tensor
    """(bytes,) uint8, all images."""
    offset: torch.Tensor
    """(rows,) int64."""
    height: torch.Tensor
    """(rows,) int32; 0 where the image is unreadable."""
    width: torch.Tensor
    """(rows,) int32."""
    readable: NDArray[np.bool_]
    original_size: NDArray[np.int32]
    """(rows, 2) height and width before shrinking."""
    digest: NDArray[np.uint8]
    """(rows, 16) hash of each image's content."""
    phash: Hash
    """(rows, 16) perceptual hash: nearly equal where images look the same."""
    reasons: dict[int, str]
    """Why the unreadable rows are so."""
    note: str = ""
    """What was done to get this store: decoded, decoded again and why, or taken from an earlier run."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels: what a device must have room for."""
        return self.pixels.numel()

    def image(self, row: int) -> torch.Tensor:
        """(H, W, 3) uint8 view of one image."""
        start, height, width = int(self.offset[row]), int(self.height[row]), int(self.width[row])
        return self.pixels[start : start + height * width * 3].view(height, width, 3)

    def take(self, rows: NDArray[np.int64]) -> ImageStore:
        """The given rows over the same pixels."""
        index = torch.from_numpy(np.asarray(rows, np.int64))
        return replace(
            self,
            offset=self.offset[index],
            height=self.height[index],
            width=self.width[index],
            readable=self.readable[rows],
            original_size=self.original_size[rows],
            digest=self.digest[rows],
            phash=self.phash[rows],
            reasons={new: self.reasons[old] for new, old in enumerate(rows.tolist()) if old in self.reasons},
        )

    def to(self, device: torch.device | str) -> ImageStore:
        """Pixels and index on a device; images are then cut out there without a copy from the host."""
        return replace(
            self,
            pixels=self.pixels.to(device),
            offset=self.offset.to(device),
            height=self.height.to(device),
            width=self.width.to(device),
        )


def default_cache_dir() -> Path:
    """``$SEMIFINE_CACHE``, else ``~/.cache/semifine``."""
    return Path(os.environ.get("SEMIFINE_CACHE") or "~/.cache/semifine").expanduser()


def open_store(
    catalog: Catalog,
    size: int,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> ImageStore:
    """The decoded images of a catalog, from an earlier run where nothing has changed since.

    Images that are in memory already (``reader.in_memory``) stay there, and no cache folder is touched.
    """
    if size < 1:
        raise UserError(f"Images cannot be stored with a shorter side of {size} pixels: give 1 or more.")
    workers = workers or usable_cores()
    if getattr(catalog.reader, "in_memory", False):
        return _in_memory(catalog, size, progress, workers)
    cache = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    files = store_files.StoreFiles(cache, catalog, size)
    opened, problem = files.try_open()
    if opened is None:
        with files.locked():
            opened, problem = files.try_open()  # another process may have made it while this one waited
            if opened is None:
                opened = files.build(progress, workers, replace=bool(problem))
                note = f"decoded {len(catalog)} images into {files.folder}"
                return _from_columns(size, *opened, note=f"{problem}; {note}" if problem else note)
    return _from_columns(size, *opened, note=f"decoded images taken from {files.folder}")


def _in_memory(catalog: Catalog, size: int, progress: Progress | None, workers: int) -> ImageStore:
    if hasattr(catalog.reader, "read_all"):
        catalog.reader.read_all()  # drawn together and kept: ten times faster than one after the other
    pieces: list[NDArray[np.uint8]] = []
    columns = decode_all(catalog, size, lambda image: pieces.append(image.reshape(-1)), progress, workers)
    pixels = torch.from_numpy(np.concatenate(pieces)) if pieces else torch.empty(0, dtype=torch.uint8)
    return _from_columns(size, columns, pixels, note=f"{len(catalog)} images in memory")


def _from_columns(size: int, columns: Columns, pixels: torch.Tensor, note: str) -> ImageStore:
    _log.info(note)
    return ImageStore(
        size=size,
        pixels=pixels,
        offset=torch.from_numpy(columns.offset),
        height=torch.from_numpy(columns.height),
        width=torch.from_numpy(columns.width),
        readable=columns.readable,
        original_size=columns.original_size,
        digest=columns.digest,
        phash=columns.phash,
        reasons=columns.reasons,
        note=note,
    )


def unreadable_images(catalog: Catalog, store: ImageStore) -> list[tuple[str, str]]:
    """Path and reason of every image that could not be read."""
    return [
        (catalog.paths[row], store.reasons.get(row, "unreadable")) for row in np.flatnonzero(~store.readable).tolist()
    ]


def drop_unreadable(catalog: Catalog, store: ImageStore, skip_unreadable: bool = False) -> tuple[Catalog, ImageStore]:
    """Catalog and store without the unreadable images; see ``catalog.readable_rows`` for which may be left out."""
    if store.readable.all():
        return catalog, store
    reasons = {row: store.reasons.get(row, "unreadable") for row in np.flatnonzero(~store.readable).tolist()}
    kept = readable_rows(catalog, reasons, skip_unreadable)
    for path, reason in unreadable_images(catalog, store):
        _log.info("left out %s: %s", path, reason)
    return catalog.take(kept), store.take(kept)
