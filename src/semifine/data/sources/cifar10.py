"""CIFAR-10 and CIFAR-100: the published archives, unpacked or not, or a folder of PNG files.

Accepted are the Python version and the binary version, each as ``.tar.gz`` file or as folder, and a folder with
``train/<class>/*.png`` and ``test/<class>/*.png``. The pickles of the Python version are read without unpickling code:
everything in them except lists, dictionaries, text and arrays of bytes is an error.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, ImageReader, Split
from semifine.data.decode import FileReader
from semifine.data.image_files import find_images
from semifine.data.sources import Source
from semifine.errors import UserError
from semifine.fields import setting

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Settings:
    """Settings of CIFAR. 4, 25 and 400 labels per class are the usual 40, 250 and 4,000 labels of CIFAR-10."""

    labels_per_class: int = setting(
        4, "labeled training images of each class; the other training images are unlabeled", low=1
    )
    val_per_class: int = setting(0, "training images of each class that are held out for validation", low=0)
    seed: int = setting(0, "seed of the choice of labeled and held-out images", low=0)


@dataclass(frozen=True)
class Layout:
    """Names of the files of a data set, and of the entries of its pickles."""

    name: str
    num_classes: int
    train: tuple[str, ...]
    test: str
    meta: str
    names_key: str
    labels_key: str
    binary_train: tuple[str, ...]
    binary_test: str
    binary_names: str
    label_bytes: int
    """Bytes before the pixels of an image in the binary version; the last one is the class."""


CIFAR10 = Layout(
    name="cifar10",
    num_classes=10,
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    names_key="label_names",
    labels_key="labels",
    binary_train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    binary_test="test_batch.bin",
    binary_names="batches.meta.txt",
    label_bytes=1,
)


class Images(NamedTuple):
    """Images of the training or the test set."""

    pixels: NDArray[np.uint8]
    """`(images, 3072)` red, green and blue planes."""
    labels: NDArray[np.int64]
    """`(images,)`."""


class ArrayReader:
    """Reads images from one array.

    Example:
        >>> ArrayReader(np.zeros((2, 3072), np.uint8)).read(1).shape
        (32, 32, 3)
    """

    in_memory = True

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels = pixels

    def read(self, row: int) -> NDArray[np.uint8]:
        """Returns an image as `(32, 32, 3)` RGB."""
        return np.ascontiguousarray(self.pixels[row].reshape(3, SIDE, SIDE).transpose(1, 2, 0))

    def fingerprint(self) -> list[str]:
        """Returns the hash of each image."""
        return [blake2b(row.tobytes(), digest_size=16).hexdigest() for row in self.pixels]


# --- Files, in a folder or in an archive ---


def read_files(root: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """Returns the content of the wanted files that exist, by name.

    Args:
        root: A ``.tar.gz`` file, the folder of the files, or the parent of this folder.
        wanted: File names.
    """
    if root.is_dir():
        folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
        found = next((folder for folder in folders if any((folder / name).is_file() for name in wanted)), root)
        return {name: (found / name).read_bytes() for name in wanted if (found / name).is_file()}
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(root) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream is not None:
                    files[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{root} cannot be read: it is damaged or not a .tar.gz file; download it again.") from error
    return files


# --- Pickles without code ---


class _Array:
    """Takes the place of numpy.ndarray: keeps the bytes of an array of bytes and runs nothing."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _Dtype) or dtype.name != "u1" or is_fortran or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array is not of bytes")
        self.values = np.frombuffer(data, np.uint8).reshape(shape)


class _Dtype:
    """Takes the place of numpy.dtype: keeps its name."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else name

    def __setstate__(self, _: Any) -> None:
        pass


def _create_array(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Takes the place of _codecs.encode, with which Python 3 writes bytes into old pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("bytes are not latin1")
    return text.encode("latin1")


_STAND_INS: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _create_array,
    ("numpy._core.multiarray", "_reconstruct"): _create_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Reads dictionaries, lists, text, numbers and arrays of bytes; any other object is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it contains '{module}.{name}', but only arrays and lists can be read")
        return _STAND_INS[module, name]


def read_pickle(data: bytes, file: str) -> dict[str, Any]:
    """Returns the dictionary in a pickle without executing code; text is decoded.

    Raises:
        UserError: If the pickle is damaged or contains other objects.

    Example:
        >>> read_pickle(pickle.dumps({b"labels": [3, 1]}), "test_batch")
        {'labels': [3, 1]}
    """
    try:
        loaded = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        return {_text(key): value for key, value in loaded.items()}
    except Exception as error:  # damaged pickles raise almost any exception
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else "it is damaged"
        raise UserError(f"{file} cannot be read: {reason}; download it again.") from error


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


# --- The two versions ---


def read_images(root: Path, layout: Layout) -> tuple[tuple[str, ...], Images, Images] | None:
    """Returns class names, training and test images of the Python or binary version; None if there is neither."""
    python = (*layout.train, layout.test, layout.meta)
    binary = (*layout.binary_train, layout.binary_test, layout.binary_names)
    files = read_files(root, [*python, *binary])
    if not files:
        return None
    is_binary = layout.binary_test in files
    needed = binary if is_binary else python
    missing = [name for name in needed if name not in files]
    if missing:
        raise UserError(f"{root} does not contain {missing[0]} of {layout.name}: unpack or download it again.")
    *train, test, names_file = needed
    read = partial(_read_binary if is_binary else _read_batch, layout=layout)
    parts = [read(files[name], f"{root}/{name}") for name in train]
    merged = Images(np.concatenate([part.pixels for part in parts]), np.concatenate([part.labels for part in parts]))
    if is_binary:
        names = tuple(files[names_file].decode("utf-8").split())
    else:
        entries = read_pickle(files[names_file], f"{root}/{names_file}")
        names = tuple(_text(name) for name in entries.get(layout.names_key, ()))
    if len(set(names)) != layout.num_classes:
        raise UserError(f"{root}/{names_file} must name {layout.num_classes} classes: download it again.")
    return names, merged, read(files[test], f"{root}/{test}")


def _read_batch(data: bytes, file: str, layout: Layout) -> Images:
    entries = read_pickle(data, file)
    array, labels = entries.get("data"), entries.get(layout.labels_key)
    if not isinstance(array, _Array) or not hasattr(array, "values") or not isinstance(labels, list):
        raise UserError(f"{file} must contain 'data' and '{layout.labels_key}': download it again.")
    return _checked(array.values, labels, file, layout)


def _read_binary(data: bytes, file: str, layout: Layout) -> Images:
    record = layout.label_bytes + PIXELS
    if len(data) % record:
        raise UserError(f"{file} must consist of records of {record} bytes: download it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _checked(records[:, layout.label_bytes :], records[:, layout.label_bytes - 1].tolist(), file, layout)


def _checked(pixels: NDArray[np.uint8], labels: list[Any], file: str, layout: Layout) -> Images:
    valid = set(range(layout.num_classes))
    if pixels.ndim != 2 or pixels.shape != (len(labels), PIXELS) or not valid.issuperset(labels):
        raise UserError(
            f"{file} must contain images of {PIXELS} bytes with labels below {layout.num_classes}: download it again."
        )
    return Images(pixels, np.array(labels, np.int64))


# --- Catalog ---


def load(layout: Layout, root: Path, settings: Settings) -> Catalog:
    """Reads the catalog."""
    found = read_images(root, layout)
    if found is None:
        return _load_folder(layout, root, settings)
    names, train, test = found
    paths = [
        f"{part}/{row:05d}" for part, images in (("train", train), ("test", test)) for row in range(len(images.labels))
    ]
    reader = ArrayReader(np.concatenate([train.pixels, test.pixels]))
    return _create_catalog(layout, names, paths, (train.labels, test.labels), reader, root, settings)


def _load_folder(layout: Layout, root: Path, settings: Settings) -> Catalog:
    parts = [find_images(root, part) if (root / part).is_dir() else [] for part in ("train", "test")]
    class_of = [[path.split("/")[1] for path in part if path.count("/") == 2] for part in parts]
    names = tuple(sorted({name for part in class_of for name in part}))
    if len(names) != layout.num_classes or [len(part) for part in class_of] != [len(part) for part in parts]:
        raise UserError(
            f"{root} is not {layout.name}: give the published .tar.gz file (Python or binary version), its unpacked "
            f"folder, or a folder with train/CLASS/*.png and test/CLASS/*.png of {layout.num_classes} classes."
        )
    train, test = (np.array([names.index(name) for name in part], np.int64) for part in class_of)
    paths = [path for part in parts for path in part]
    return _create_catalog(layout, names, paths, (train, test), FileReader(paths, [root]), root, settings)


def _create_catalog(
    layout: Layout,
    names: tuple[str, ...],
    paths: list[str],
    truth: tuple[NDArray[np.int64], NDArray[np.int64]],
    reader: ImageReader,
    root: Path,
    settings: Settings,
) -> Catalog:
    train, test = truth
    split = np.concatenate([np.full(len(train), Split.UNLABELED), np.full(len(test), Split.TEST)]).astype(np.uint8)
    order = np.random.default_rng(settings.seed).permutation(len(train))
    for label, name in enumerate(names):
        rows = order[train[order] == label]
        labeled, others = np.split(rows, [settings.labels_per_class])
        if len(others) < settings.val_per_class or len(rows) < settings.labels_per_class:
            raise UserError(
                f"{layout.name} has {len(rows)} training images of '{name}', fewer than data.labels_per_class "
                f"{settings.labels_per_class} and data.val_per_class {settings.val_per_class} need."
            )
        split[labeled] = Split.LABELED
        split[others[: settings.val_per_class]] = Split.VAL
    classes = np.concatenate([train, test])
    return Catalog(
        name=layout.name,
        class_names=names,
        paths=paths,
        label=np.where(split == Split.UNLABELED, UNKNOWN, classes),
        split=split,
        truth=classes,
        reader=reader,
        root=root,
        official_splits=True,
    )


SOURCE = Source(
    name="cifar10",
    summary="CIFAR-10: 10 classes, 50,000 training and 10,000 test images of 32 pixels.",
    path_kind="folder or file",
    settings_class=Settings,
    load=partial(load, CIFAR10),
)
