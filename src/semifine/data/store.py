"""The image store: all images of a catalog, decoded once and cached on disk.

A cache folder holds the pixels of one catalog at one size. It is built in a temporary folder and then renamed, so a
store is complete or absent. A store is built again if its files are damaged or its images have changed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import Catalog, SubsetReader
from semifine.data.decode import DIGEST_BYTES, MISSING, DecodedImage, Pixels, compute_digest, try_decode_row
from semifine.data.parallel import map_in_order, usable_cores
from semifine.errors import UserError, short_reason
from semifine.files import lock_file, open_regular, read_text, sync_tree

Progress = Callable[[int, int], None]
"""Called with the number of decoded images and the number of all images."""
Hashes = NDArray[np.uint16]
"""`(rows, HASH_SIDE)` perceptual hashes; each number is one row of cells."""
HASH_SIDE = 16

FORMAT = 3
"""Increase it if the files of a store or the decoded pixels change, so that older stores are built again."""
PIXELS, INDEX, METADATA = "pixels.bin", "index.npz", "store.json"
CHECKSUM_SAMPLES = 64
"""Number of images whose checksums are verified when a large store is opened."""
MAX_METADATA_BYTES = 1 << 30
MAX_STORED_SIDE = 1 << 20
FULL_CHECK_BYTES = 200_000_000
"""Size up to which the checksums of all images are verified."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ImageStore:
    """Decoded images in one array of bytes. Image ``i`` starts at ``offset[i]`` and has ``height * width * 3`` bytes.

    Larger images were shrunk to a shorter side of ``size`` with antialiasing. The aspect ratio is kept up to
    ``decode.MAX_ASPECT``. ``pixels`` may be a read-only memory map, so never write to it.

    Example:
        >>> from semifine.data.sources import load_catalog
        >>> store = open_store(load_catalog("synthetic"), size=32)
        >>> store.image(0).shape
        torch.Size([32, 32, 3])
    """

    size: int
    pixels: torch.Tensor
    """`(bytes,)` uint8."""
    offset: torch.Tensor
    """`(rows,)` int64."""
    height: torch.Tensor
    """`(rows,)` int32; 0 for unreadable images."""
    width: torch.Tensor
    """`(rows,)` int32; 0 for unreadable images."""
    readable: NDArray[np.bool_]
    """`(rows,)`."""
    original_size: NDArray[np.int32]
    """`(rows, 2)` height and width before shrinking."""
    digest: NDArray[np.uint8]
    """`(rows, 16)` hash of the content, equal for exact copies."""
    phash: Hashes
    """`(rows, 16)` perceptual hash, similar for images that look alike."""
    reasons: dict[int, str]
    """Why images are unreadable, by row."""
    note: str = ""
    """Whether the images were decoded, and why, or read from the cache."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return self.pixels.numel()

    def image(self, row: int) -> torch.Tensor:
        """One image as a `(height, width, 3)` uint8 view."""
        start, height, width = int(self.offset[row]), int(self.height[row]), int(self.width[row])
        return self.pixels[start : start + height * width * 3].view(height, width, 3)

    def take(self, rows: NDArray[np.int64]) -> ImageStore:
        """Selects rows; the pixels are shared."""
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
        """Copies pixels and index to a device."""
        return replace(
            self,
            pixels=self.pixels.to(device),
            offset=self.offset.to(device),
            height=self.height.to(device),
            width=self.width.to(device),
        )


def default_cache_dir() -> Path:
    """``$SEMIFINE_CACHE``, by default ``~/.cache/semifine``."""
    return Path(os.environ.get("SEMIFINE_CACHE") or "~/.cache/semifine").expanduser()


def open_store(
    catalog: Catalog,
    size: int,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> ImageStore:
    """Opens the decoded images of a catalog, and decodes them first if the cache does not hold them.

    Args:
        catalog: The images. Images that are in memory (``reader.in_memory``) are not cached on disk.
        size: Larger images are shrunk to this shorter side.
        cache_dir: Folder of the cache; by default :func:`default_cache_dir`.
        progress: Called after each decoded image.
        workers: Number of decoding threads; by default the number of usable cores.

    Raises:
        UserError: If the cache is not writable or the disk is full.
    """
    if size < 1:
        raise UserError(f"Images cannot be stored with a shorter side of {size} pixels: give 1 or more.")
    workers = workers or usable_cores()
    if getattr(catalog.reader, "in_memory", False):
        return _decode_in_memory(catalog, size, progress, workers)
    cache = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    folder = StoreFolder(cache, catalog, size)
    opened, problem = folder.try_open()
    if opened is None:
        with folder.lock():
            opened, problem = folder.try_open()  # another process may have built it in the meantime
            if opened is None:
                opened = folder.build(progress, workers, replace=bool(problem))
                note = f"decoded {len(catalog)} images into {folder.path}"
                return _create_store(size, *opened, note=f"{problem}; {note}" if problem else note)
    return _create_store(size, *opened, note=f"decoded images taken from {folder.path}")


def unreadable_reasons(store: ImageStore) -> dict[int, str]:
    """Why images are unreadable, by row."""
    return {row: store.reasons.get(row, "unreadable") for row in np.flatnonzero(~store.readable).tolist()}


@dataclass(eq=False)
class ImageIndex:
    """The columns of a store without the pixels, see :class:`ImageStore`."""

    offset: NDArray[np.int64]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    readable: NDArray[np.bool_]
    original_size: NDArray[np.int32]
    digest: NDArray[np.uint8]
    checksum: NDArray[np.uint32]
    """`(rows,)` CRC-32 of the stored pixels."""
    phash: Hashes
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> ImageIndex:
        return cls(
            offset=np.zeros(rows, np.int64),
            height=np.zeros(rows, np.int32),
            width=np.zeros(rows, np.int32),
            readable=np.zeros(rows, np.bool_),
            original_size=np.zeros((rows, 2), np.int32),
            digest=np.zeros((rows, DIGEST_BYTES), np.uint8),
            checksum=np.zeros(rows, np.uint32),
            phash=np.zeros((rows, HASH_SIDE), np.uint16),
        )

    def fill(self, row: int, image: DecodedImage, phash: Hashes) -> None:
        self.height[row], self.width[row] = image.pixels.shape[:2]
        self.readable[row] = True
        self.original_size[row] = image.original_height, image.original_width
        self.digest[row] = np.frombuffer(image.digest, np.uint8)
        self.checksum[row] = zlib.crc32(image.pixels.data)
        self.phash[row] = phash


def perceptual_hash(pixels: Pixels) -> Hashes:
    """Computes the difference hash (dHash): whether each of 16 x 16 cells is brighter than its left neighbor.

    Args:
        pixels: `(height, width, 3)` image.

    Returns:
        `(HASH_SIDE,)` numbers; each holds the 16 bits of one row of cells.
    """
    gray = Image.fromarray(pixels).convert("L")
    cells = np.asarray(gray.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX), np.int16)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1], axis=1)
    return bits.view(np.uint16)[:, 0]


def decode_images(
    catalog: Catalog, size: int, write: Callable[[Pixels], object], progress: Progress | None, workers: int
) -> ImageIndex:
    """Decodes all images and passes their pixels to ``write`` in catalog order."""

    def decode(row: int) -> tuple[DecodedImage, Hashes] | str:
        image = try_decode_row(catalog.reader, row, size)
        return image if isinstance(image, str) else (image, perceptual_hash(image.pixels))

    Image.init()  # loads Pillow's formats before threads start, because loading is not thread-safe
    index = ImageIndex.empty(len(catalog))
    offset = 0
    for row, result in enumerate(map_in_order(decode, range(len(catalog)), workers)):
        index.offset[row] = offset
        if isinstance(result, str):
            index.reasons[row] = result
        else:
            image, phash = result
            index.fill(row, image, phash)
            write(image.pixels)
            offset += image.pixels.size
        if progress is not None:
            progress(row + 1, len(catalog))
    return index


def _decode_in_memory(catalog: Catalog, size: int, progress: Progress | None, workers: int) -> ImageStore:
    if hasattr(catalog.reader, "read_all"):
        catalog.reader.read_all()  # drawing all images at once is ten times faster than one by one
    pieces: list[NDArray[np.uint8]] = []
    index = decode_images(catalog, size, lambda image: pieces.append(image.reshape(-1)), progress, workers)
    pixels = torch.from_numpy(np.concatenate(pieces)) if pieces else torch.empty(0, dtype=torch.uint8)
    return _create_store(size, index, pixels, note=f"{len(catalog)} images in memory")


def _create_store(size: int, index: ImageIndex, pixels: torch.Tensor, note: str) -> ImageStore:
    _log.info(note)
    return ImageStore(
        size=size,
        pixels=pixels,
        offset=torch.from_numpy(index.offset),
        height=torch.from_numpy(index.height),
        width=torch.from_numpy(index.width),
        readable=index.readable,
        original_size=index.original_size,
        digest=index.digest,
        phash=index.phash,
        reasons=index.reasons,
        note=note,
    )


Opened = tuple[ImageIndex, torch.Tensor]


class StoreFolder:
    """The cache folder with the decoded images of one catalog at one size.

    The name of the folder is a hash of the paths, the boxes of crops, the size and the format. Changed image files are
    detected by their fingerprints.
    """

    def __init__(self, cache: Path, catalog: Catalog, size: int) -> None:
        self.cache, self.catalog, self.size = cache, catalog, size
        self.key = _store_key(catalog, size)
        self.path = cache / f"images-{self.key}"

    def try_open(self) -> tuple[Opened | None, str]:
        """Opens the store if it is complete and up to date.

        Returns:
            The store and "", or None and the reason. The reason is "" if there is no store yet.
        """
        if not self.path.exists():
            return None, ""
        try:
            index, fingerprints = self._read_index()
            pixels = self._map_pixels(index)
        except MemoryError:
            raise
        except Exception as error:  # NumPy, zip files and JSON have their own error classes
            return None, f"the stored images in {self.path} are damaged ({short_reason(error)})"
        changes = self._describe_changes(index, fingerprints)
        return (None, changes) if changes else ((index, pixels), "")

    def _read_index(self) -> tuple[ImageIndex, NDArray[np.uint8]]:
        for name in (METADATA, INDEX, PIXELS):
            if not (self.path / name).is_file():  # reading a pipe or a device may never end
                raise ValueError(f"{name} is no regular file")
        metadata = json.loads(read_text(self.path / METADATA, MAX_METADATA_BYTES))
        expected = {"format": FORMAT, "size": self.size, "rows": len(self.catalog)}
        for name, value in expected.items():
            if metadata[name] != value:
                raise ValueError(f"{name} is {metadata[name]} instead of {value}")
        data = (self.path / INDEX).read_bytes()
        if compute_digest(data).hex() != metadata["index"]:
            raise ValueError(f"{INDEX} does not match its checksum")
        if (self.path / PIXELS).stat().st_size != metadata["bytes"]:
            raise ValueError(f"{PIXELS} has the wrong length")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            columns: dict[str, Any] = {name: arrays[name] for name in arrays.files}
        fingerprints = columns.pop("fingerprint")
        reasons = {int(row): str(reason) for row, reason in metadata["unreadable"].items()}
        index = ImageIndex(**columns, reasons=reasons)
        _check_index(index, fingerprints, len(self.catalog), metadata["bytes"])
        return index, fingerprints

    def _map_pixels(self, index: ImageIndex) -> torch.Tensor:
        file = self.path / PIXELS
        if file.stat().st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        # A shared read-only map: a private writable one would count against the machine's memory.
        mapped = np.memmap(file, np.uint8, mode="r")
        lengths = index.height.astype(np.int64) * index.width * 3
        count = len(lengths) if mapped.size <= FULL_CHECK_BYTES else min(CHECKSUM_SAMPLES, len(lengths))
        for row in np.linspace(0, len(lengths) - 1, count).astype(int):
            start = index.offset[row]
            if index.readable[row] and zlib.crc32(mapped[start : start + lengths[row]].data) != index.checksum[row]:
                raise ValueError(f"{PIXELS} does not match its checksums")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch warns that the map is read-only
            return torch.from_numpy(mapped)

    def _describe_changes(self, index: ImageIndex, stored: NDArray[np.uint8]) -> str:
        """What has changed since the store was built; "" if nothing has."""
        current = _hash_fingerprints(self.catalog.reader.fingerprint())
        missing = _hash_fingerprints([MISSING])[0]
        differs = (current != stored).any(axis=1)
        is_missing, was_missing = (current == missing).all(axis=1), (stored == missing).all(axis=1)
        # A file can become readable without a change of its content, for example with new permissions.
        now_readable = [
            row
            for row in np.flatnonzero(~index.readable & ~differs & ~is_missing).tolist()
            if not isinstance(try_decode_row(self.catalog.reader, row, self.size), str)
        ]
        changes = {
            "changed": np.flatnonzero(differs & ~is_missing & ~was_missing),
            "missing": np.flatnonzero(differs & is_missing),
            "new": np.flatnonzero(differs & was_missing),
            "readable now": np.array(now_readable, np.int64),
        }
        return ", ".join(self._describe_rows(rows, change) for change, rows in changes.items() if len(rows))

    def _describe_rows(self, rows: NDArray[np.int64], change: str) -> str:
        shown = ", ".join(self.catalog.paths[row] for row in rows[:3].tolist())
        more = ", …" if len(rows) > 3 else ""
        return f"{len(rows)} image{'s' if len(rows) > 1 else ''} {change} ({shown}{more})"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lets one process build the store while the others wait."""
        lock = self.cache / f"images-{self.key}.lock"
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            opened = open_regular(lock, "ab")  # closed below, which releases the lock
        except OSError as error:
            raise UserError(
                f"The cache folder {self.cache} cannot be written to ({error.strerror}): "
                "choose another with SEMIFINE_CACHE or the setting cache."
            ) from error
        with opened:
            # Without locks, as on some network file systems, several processes may build; the first to finish wins.
            if lock_file(opened, tries=None):
                self._remove_partial_builds()
            yield

    def _remove_partial_builds(self) -> None:
        """Deletes the folders of killed builds. Requires the lock, so that no running build is deleted."""
        for folder in self.cache.glob(f"building-{self.key}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def build(self, progress: Progress | None, workers: int, replace: bool) -> Opened:
        """Decodes all images into a temporary folder and renames it; ``replace`` removes the existing store."""
        temporary = Path(tempfile.mkdtemp(prefix=f"building-{self.key}-", dir=self.cache))
        try:
            self._write(temporary, progress, workers)
            self._move_into_place(temporary, replace)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"The disk is full ({self.cache}): free some space for the decoded images, "
                    "or choose another cache folder with SEMIFINE_CACHE or the setting cache."
                ) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        index, _ = self._read_index()
        return index, self._map_pixels(index)

    def _write(self, folder: Path, progress: Progress | None, workers: int) -> None:
        # Taken before decoding, so that files that change during decoding are detected at the next start.
        fingerprints = _hash_fingerprints(self.catalog.reader.fingerprint())
        with open(folder / PIXELS, "wb") as pixels:
            index = decode_images(self.catalog, self.size, lambda image: pixels.write(image.data), progress, workers)
        columns = {name: column for name, column in vars(index).items() if name != "reasons"}
        data = io.BytesIO()
        np.savez(data, fingerprint=fingerprints, **columns)
        metadata = {
            "format": FORMAT,
            "dataset": self.catalog.name,
            "size": self.size,
            "rows": len(self.catalog),
            "bytes": (folder / PIXELS).stat().st_size,
            "index": compute_digest(data.getvalue()).hex(),
            "unreadable": index.reasons,
        }
        for name, content in ((INDEX, data.getvalue()), (METADATA, json.dumps(metadata, indent=1).encode())):
            (folder / name).write_bytes(content)
        sync_tree(folder)

    def _move_into_place(self, temporary: Path, replace: bool) -> None:
        """Renames folders; processes that map the old store keep its data until they close it."""
        old = Path(tempfile.mkdtemp(prefix=f"building-{self.key}-", dir=self.cache))
        try:
            if replace:
                os.rename(self.path, old / "old")
            os.rename(temporary, self.path)
        except OSError:
            if not self.path.exists():  # otherwise another process has built the same store
                raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def _check_index(index: ImageIndex, fingerprints: NDArray[np.uint8], rows: int, num_bytes: int) -> None:
    """Raises ``ValueError`` unless all columns have their type and length, and all images lie in the pixels.

    The checksum of the index cannot show this for a cache from someone else.
    """
    wanted = {name: column for name, column in vars(ImageIndex.empty(rows)).items() if name != "reasons"}
    wanted["fingerprint"] = np.zeros((rows, DIGEST_BYTES), np.uint8)
    for name, column in wanted.items():
        found = fingerprints if name == "fingerprint" else getattr(index, name)
        if (found.dtype, found.shape) != (column.dtype, column.shape):
            raise ValueError(f"{INDEX} has a wrong column '{name}'")
    height, width, start = (
        getattr(index, name)[index.readable].astype(np.int64) for name in ("height", "width", "offset")
    )
    is_size = (height > 0) & (width > 0) & (height < MAX_STORED_SIDE) & (width < MAX_STORED_SIDE)
    if not (is_size & (start >= 0) & (start <= num_bytes - height * width * 3)).all():
        raise ValueError(f"{INDEX} names pixels outside of {PIXELS}")


def _store_key(catalog: Catalog, size: int) -> str:
    reader = catalog.reader.base if isinstance(catalog.reader, SubsetReader) else catalog.reader
    header = (FORMAT, size, catalog.name, str(catalog.root), getattr(reader, "folders", ()), len(catalog))
    digest = hashlib.blake2b(repr(header).encode(), digest_size=12)
    for path in catalog.paths:
        digest.update(path.encode() + b"\0")
    if (boxes := getattr(reader, "boxes", None)) is not None:
        digest.update(boxes.tobytes())
    return digest.hexdigest()


def _hash_fingerprints(fingerprints: list[str]) -> NDArray[np.uint8]:
    """`(rows, 16)` hashes, which take less memory than strings and have a fixed width."""
    joined = b"".join(compute_digest(fingerprint.encode()) for fingerprint in fingerprints)
    return np.frombuffer(joined, np.uint8).reshape(-1, DIGEST_BYTES)
