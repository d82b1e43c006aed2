"""The image store on disk: decoding all images of a catalog, validation, and atomic creation."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import Catalog, ImageReader, SubsetReader
from semifine.data.decode import DIGEST_BYTES, MISSING, Decoded, FileReader, decode_array, digest_of, problem_in_words
from semifine.data.parallel import map_in_order
from semifine.errors import UserError
from semifine.files import lock_file, sync_to_disk

SIDE = 16

Hash = NDArray[np.uint16]
"""(16,), or (rows, 16): a row of cells is one number."""


def perceptual_hash(pixels: NDArray[np.uint8]) -> Hash:
    """Whether each of 16 x 16 cells of an (H, W, 3) image is brighter than its neighbor to the left."""
    gray = Image.fromarray(pixels).convert("L")
    cells = np.asarray(gray.resize((SIDE + 1, SIDE), Image.Resampling.BOX), np.int16)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1], axis=1)
    return bits.view(np.uint16)[:, 0]


@dataclass(eq=False)
class Columns:
    """What is known of each row besides its pixels."""

    offset: NDArray[np.int64]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    readable: NDArray[np.bool_]
    original_size: NDArray[np.int32]
    digest: NDArray[np.uint8]
    checksum: NDArray[np.uint32]
    phash: Hash
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> Columns:
        return cls(
            offset=np.zeros(rows, np.int64),
            height=np.zeros(rows, np.int32),
            width=np.zeros(rows, np.int32),
            readable=np.zeros(rows, np.bool_),
            original_size=np.zeros((rows, 2), np.int32),
            digest=np.zeros((rows, DIGEST_BYTES), np.uint8),
            checksum=np.zeros(rows, np.uint32),
            phash=np.zeros((rows, SIDE), np.uint16),
        )


def decode_all(
    catalog: Catalog,
    size: int,
    write: Callable[[NDArray[np.uint8]], object],
    progress: Callable[[int, int], None] | None,
    workers: int,
) -> Columns:
    """Decodes every row, hands the pixels to ``write`` in catalog order, and returns the columns."""
    Image.init()  # loads Pillow's formats once, before threads could meet over it
    columns = Columns.empty(len(catalog))
    offset = 0
    for row, result in enumerate(_decoded(catalog, size, workers)):
        columns.offset[row] = offset
        if isinstance(result, str):
            columns.reasons[row] = result
        else:
            image, columns.phash[row] = result
            _fill(columns, row, image)
            write(image.pixels)
            offset += image.pixels.size
        if progress is not None:
            progress(row + 1, len(catalog))
    return columns


def _fill(columns: Columns, row: int, image: Decoded) -> None:
    columns.height[row], columns.width[row] = image.pixels.shape[:2]
    columns.readable[row] = True
    columns.original_size[row] = image.original_height, image.original_width
    columns.digest[row] = np.frombuffer(image.digest, np.uint8)
    columns.checksum[row] = zlib.crc32(image.pixels.data)


def _decoded(catalog: Catalog, size: int, workers: int) -> Iterator[tuple[Decoded, Hash] | str]:
    """Each row's image and what it looks like, or the reason why there is none."""

    def decode(row: int) -> tuple[Decoded, Hash] | str:
        image = try_decode(catalog.reader, row, size)
        return image if isinstance(image, str) else (image, perceptual_hash(image.pixels))

    return map_in_order(decode, range(len(catalog)), workers)


def try_decode(reader: ImageReader, row: int, size: int) -> Decoded | str:
    """The image of a row, or the reason why it cannot be read."""
    if isinstance(reader, SubsetReader):
        return try_decode(reader.base, int(reader.rows[row]), size)
    try:
        if isinstance(reader, FileReader):
            return reader.decode(row, size)
        return decode_array(reader.read(row), size)
    except (OSError, ValueError) as error:
        return problem_in_words(error)


FORMAT = 3
"""Increase it whenever stores are written, or images are read, in another way: older stores are then built again."""
PIXELS, INDEX, ABOUT = "pixels.bin", "index.npz", "store.json"
PROBES = 64
"""Images whose checksum is compared at every start where the store is large; reading all would take long."""
CHECKED_WHOLE = 200_000_000
"""Bytes up to which every image's checksum is compared."""

Opened = tuple[Columns, torch.Tensor]


class StoreFiles:
    """The folder of one catalog's decoded images.

    Its name is a hash of the paths, the size and the format, so another dataset or size has another folder. A
    change of the files behind the paths is found by comparing their fingerprints.
    """

    def __init__(self, cache: Path, catalog: Catalog, size: int) -> None:
        self.cache, self.catalog, self.size = cache, catalog, size
        self.key = _key(catalog, size)
        self.folder = cache / f"images-{self.key}"

    def try_open(self) -> tuple[Opened | None, str]:
        """The store where it is whole and up to date, else None and why ("" where there is no store)."""
        if not self.folder.exists():
            return None, ""
        try:
            columns, fingerprints = self._read_index()
            pixels = self._map_pixels(columns)
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            return None, f"the stored images in {self.folder} are damaged ({error})"
        changes = self._changes(columns, fingerprints)
        return (None, changes) if changes else ((columns, pixels), "")

    def _read_index(self) -> tuple[Columns, NDArray[np.uint8]]:
        about = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
        expected = {"format": FORMAT, "size": self.size, "rows": len(self.catalog)}
        for name, value in expected.items():
            if about[name] != value:
                raise ValueError(f"{name} is {about[name]} instead of {value}")
        index = (self.folder / INDEX).read_bytes()
        if digest_of(index).hex() != about["index"]:
            raise ValueError(f"{INDEX} does not match its checksum")
        if (self.folder / PIXELS).stat().st_size != about["bytes"]:
            raise ValueError(f"{PIXELS} has the wrong length")
        with np.load(io.BytesIO(index), allow_pickle=False) as arrays:
            loaded: dict[str, Any] = {name: arrays[name] for name in arrays.files}
        fingerprints = loaded.pop("fingerprint")
        reasons = {int(row): str(reason) for row, reason in about["unreadable"].items()}
        return Columns(**loaded, reasons=reasons), fingerprints

    def _map_pixels(self, columns: Columns) -> torch.Tensor:
        file = self.folder / PIXELS
        if file.stat().st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        # A shared read-only map: a private writable one would count against the machine's memory.
        mapped = np.memmap(file, np.uint8, mode="r")
        lengths = columns.height.astype(np.int64) * columns.width * 3
        compared = len(lengths) if mapped.size <= CHECKED_WHOLE else min(PROBES, len(lengths))
        for row in np.linspace(0, len(lengths) - 1, compared).astype(int):
            start = columns.offset[row]
            if columns.readable[row] and zlib.crc32(mapped[start : start + lengths[row]].data) != columns.checksum[row]:
                raise ValueError(f"{PIXELS} does not match its checksums")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that the map must not be written to
            return torch.from_numpy(mapped)

    def _changes(self, columns: Columns, stored: NDArray[np.uint8]) -> str:
        """What is different from when the store was made, as a sentence; "" where nothing is."""
        now = _hashed(self.catalog.reader.fingerprint())
        missing = _hashed([MISSING])[0]
        differs = (now != stored).any(axis=1)
        is_gone, was_gone = (now == missing).all(axis=1), (stored == missing).all(axis=1)
        # A file may become readable without any change to it, say after a change of its permissions.
        retried = [
            row
            for row in np.flatnonzero(~columns.readable & ~differs & ~is_gone).tolist()
            if not isinstance(try_decode(self.catalog.reader, row, self.size), str)
        ]
        found = [
            ("changed", np.flatnonzero(differs & ~is_gone & ~was_gone)),
            ("vanished", np.flatnonzero(differs & is_gone)),
            ("new", np.flatnonzero(differs & was_gone)),
            ("readable now", np.array(retried, np.int64)),
        ]
        return ", ".join(self._describe(rows, what) for what, rows in found if len(rows))

    def _describe(self, rows: NDArray[np.int64], what: str) -> str:
        shown = ", ".join(self.catalog.paths[row] for row in rows[:3].tolist())
        more = ", …" if len(rows) > 3 else ""
        return f"{len(rows)} image{'s' if len(rows) > 1 else ''} {what} ({shown}{more})"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time builds this store; the others wait and then use it."""
        lock = self.cache / f"images-{self.key}.lock"
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            opened = open(lock, "ab")  # noqa: SIM115 (closed below, which lets go of the lock)
        except OSError as error:
            raise UserError(
                f"The cache folder {self.cache} cannot be written to ({error.strerror}): "
                "name another with SEMIFINE_CACHE or the setting cache."
            ) from error
        with opened:
            # Some network file systems have no locks; then two may build, and the first to finish wins.
            if lock_file(opened, tries=None):
                self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """Deletes what a killed build left; only the holder of the lock knows that nobody works on it."""
        for leftover in self.cache.glob(f"building-{self.key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def build(self, progress: Callable[[int, int], None] | None, workers: int, replace: bool) -> Opened:
        """Decodes all images into a folder of its own, which then takes its place in one step."""
        temporary = Path(tempfile.mkdtemp(prefix=f"building-{self.key}-", dir=self.cache))
        try:
            self._write(temporary, progress, workers)
            self._put_in_place(temporary, replace)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"There is no room left in {self.cache} for the decoded images: free some, "
                    "or name another folder with SEMIFINE_CACHE or the setting cache."
                ) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        columns, _ = self._read_index()
        return columns, self._map_pixels(columns)

    def _write(self, folder: Path, progress: Callable[[int, int], None] | None, workers: int) -> None:
        # Taken before decoding: a file that changes meanwhile is then seen as changed at the next start.
        fingerprints = _hashed(self.catalog.reader.fingerprint())
        with open(folder / PIXELS, "wb") as pixels:
            columns = decode_all(self.catalog, self.size, lambda image: pixels.write(image.data), progress, workers)
        arrays = {name: column for name, column in vars(columns).items() if name != "reasons"}
        index = io.BytesIO()
        np.savez(index, fingerprint=fingerprints, **arrays)
        about = {
            "format": FORMAT,
            "dataset": self.catalog.name,
            "size": self.size,
            "rows": len(self.catalog),
            "bytes": (folder / PIXELS).stat().st_size,
            "index": digest_of(index.getvalue()).hex(),
            "unreadable": columns.reasons,
        }
        for name, content in ((INDEX, index.getvalue()), (ABOUT, json.dumps(about, indent=1).encode())):
            (folder / name).write_bytes(content)
        for name in (PIXELS, INDEX, ABOUT):
            sync_to_disk(folder / name)

    def _put_in_place(self, temporary: Path, replace: bool) -> None:
        """Processes that have the old store mapped keep their data until they close it."""
        old = Path(tempfile.mkdtemp(prefix=f"building-{self.key}-", dir=self.cache))
        try:
            if replace:
                os.rename(self.folder, old / "old")
            os.rename(temporary, self.folder)
        except OSError:
            if not self.folder.exists():  # else another process was faster, and its store is as good
                raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def _key(catalog: Catalog, size: int) -> str:
    reader = catalog.reader.base if isinstance(catalog.reader, SubsetReader) else catalog.reader
    about = (FORMAT, size, catalog.name, str(catalog.root), getattr(reader, "folders", ()), len(catalog))
    digest = hashlib.blake2b(repr(about).encode(), digest_size=12)
    for path in catalog.paths:
        digest.update(path.encode() + b"\0")
    return digest.hexdigest()


def _hashed(fingerprints: list[str]) -> NDArray[np.uint8]:
    """(rows, 16) hashes, which take less room than the strings and have a fixed width."""
    joined = b"".join(digest_of(fingerprint.encode()) for fingerprint in fingerprints)
    return np.frombuffer(joined, np.uint8).reshape(-1, DIGEST_BYTES)
