"""CIFAR-10 and CIFAR-100 in the published layouts, which the tests write themselves."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from semifine.config import resolve
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.sources import build_settings, load_catalog
from semifine.data.sources.cifar10 import read_pickle
from semifine.errors import UserError

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE = [f"fine_{label}" for label in range(100)]
TRAIN, TEST = 60, 20


def images(number: int, classes: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[int]]:
    """Returns `(number, 3072)` planes of red, green and blue, and labels of each class in turn."""
    pixels = np.random.default_rng(seed).integers(0, 256, (number, 3072), dtype=np.uint8)
    return pixels, [row % classes for row in range(number)]


def write_python2_pickle(entries: dict[str, Any]) -> bytes:
    """Returns a pickle as Python 2 wrote it: text and pixels are byte strings, numpy has its old module names."""

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def write(value: Any) -> bytes:
        if isinstance(value, str):
            return text(value.encode())
        if isinstance(value, int):
            return b"J" + value.to_bytes(4, "little", signed=True)
        if isinstance(value, list):
            return b"](" + b"".join(map(write, value)) + b"e"
        shape = b"(" + b"".join(map(write, value.shape)) + b"t"
        dtype = b"cnumpy\ndtype\n(" + text(b"u1") + write(0) + write(1) + b"tR"
        dtype += b"(" + write(3) + text(b"|") + b"NNN" + write(-1) + write(-1) + write(0) + b"tb"
        array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + write(0) + b"t" + text(b"b") + b"tR"
        return array + b"(" + write(1) + shape + dtype + b"I00\n" + text(value.tobytes()) + b"tb"

    items = b"".join(write(key) + write(value) for key, value in entries.items())
    return b"\x80\x02}(" + items + b"u."


def python_version(name: str = "cifar10") -> tuple[str, dict[str, bytes]]:
    """Returns the folder in the archive and its files."""
    if name == "cifar100":
        files = {"meta": {"fine_label_names": FINE, "coarse_label_names": ["coarse"]}}
        for part, number, seed in (("train", 200, 0), ("test", 100, 1)):
            pixels, labels = images(number, 100, seed)
            files[part] = {"data": pixels, "fine_labels": labels, "coarse_labels": [0] * number}
        return "cifar-100-python", {file: write_python2_pickle(entries) for file, entries in files.items()}
    pixels, labels = images(TRAIN, 10)
    files = {"batches.meta": {"label_names": NAMES, "num_cases_per_batch": TRAIN // 5, "num_vis": 3072}}
    for batch in range(5):
        rows = slice(batch * TRAIN // 5, (batch + 1) * TRAIN // 5)
        files[f"data_batch_{batch + 1}"] = {
            "batch_label": "training batch", "labels": labels[rows], "data": pixels[rows], "filenames": ["x.png"],
        }  # fmt: skip
    test_pixels, test_labels = images(TEST, 10, seed=1)
    files["test_batch"] = {"data": test_pixels, "labels": test_labels}
    return "cifar-10-batches-py", {file: write_python2_pickle(entries) for file, entries in files.items()}


def binary_version(name: str = "cifar10") -> tuple[str, dict[str, bytes]]:
    if name == "cifar100":
        files = {"fine_label_names.txt": "\n".join(FINE).encode(), "coarse_label_names.txt": b"coarse\n"}
        for part, number, seed in (("train", 200, 0), ("test", 100, 1)):
            pixels, labels = images(number, 100, seed)
            files[f"{part}.bin"] = np.column_stack([np.zeros(number), labels, pixels]).astype(np.uint8).tobytes()
        return "cifar-100-binary", files
    pixels, labels = images(TRAIN, 10)
    records = np.column_stack([labels, pixels]).astype(np.uint8)
    files = {f"data_batch_{batch + 1}.bin": part.tobytes() for batch, part in enumerate(np.split(records, 5))}
    test_pixels, test_labels = images(TEST, 10, seed=1)
    files["test_batch.bin"] = np.column_stack([test_labels, test_pixels]).astype(np.uint8).tobytes()
    files["batches.meta.txt"] = ("\n".join(NAMES) + "\n\n").encode()
    return "cifar-10-batches-bin", files


def write_folder(parent: Path, folder: str, files: dict[str, bytes]) -> Path:
    (parent / folder).mkdir(parents=True)
    for name, content in files.items():
        (parent / folder / name).write_bytes(content)
    return parent / folder


def write_archive(parent: Path, folder: str, files: dict[str, bytes]) -> Path:
    parent.mkdir(exist_ok=True)
    with tarfile.open(parent / f"{folder}.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return parent / f"{folder}.tar.gz"


def write_png(parent: Path) -> Path:
    for part, number, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
        pixels, labels = images(number, 10, seed)
        for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            file = parent / part / NAMES[label] / f"{row:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.reshape(3, 32, 32).transpose(1, 2, 0)).save(file)
    return parent


def content(catalog: Catalog) -> list[tuple[bytes, str, bool]]:
    """Returns pixels, class and whether it is a test image, sorted."""
    return sorted(
        (catalog.reader.read(row).tobytes(), catalog.class_names[catalog.truth[row]], catalog.split[row] == Split.TEST)
        for row in range(len(catalog))
    )


WRITERS: dict[str, Callable[[Path], Path]] = {
    "python archive": lambda parent: write_archive(parent, *python_version()),
    "python folder": lambda parent: write_folder(parent, *python_version()),
    "parent of the python folder": lambda parent: write_folder(parent, *python_version()).parent,
    "binary archive": lambda parent: write_archive(parent, *binary_version()),
    "binary folder": lambda parent: write_folder(parent, *binary_version()),
    "png": write_png,
}


@pytest.mark.parametrize("version", WRITERS)
def test_all_versions_have_the_published_images(version: str, tmp_path: Path) -> None:
    root = WRITERS[version](tmp_path / "data")
    catalog = load_catalog(f"cifar10:{root}")
    assert catalog.class_names == tuple(NAMES)
    expected = [
        (image.reshape(3, 32, 32).transpose(1, 2, 0).tobytes(), NAMES[label], part == "test")
        for part, (pixels, labels) in (("train", images(TRAIN, 10)), ("test", images(TEST, 10, seed=1)))
        for image, label in zip(pixels, labels, strict=True)
    ]
    assert content(catalog) == sorted(expected)
    assert catalog.official_splits
    assert np.bincount(catalog.label[catalog.rows(Split.LABELED)]).tolist() == [4] * 10
    assert (catalog.label[catalog.rows(Split.UNLABELED)] == -1).all()
    assert len(set(catalog.reader.fingerprint())) == len(catalog)


@pytest.mark.parametrize("version", [python_version, binary_version])
def test_cifar100_has_its_fine_classes(version: Callable[[str], tuple[str, dict[str, bytes]]], tmp_path: Path) -> None:
    root = write_archive(tmp_path, *version("cifar100"))
    catalog = load_catalog(f"cifar100:{root}", build_settings(f"cifar100:{root}", {"labels_per_class": "1"}))
    assert catalog.class_names == tuple(FINE)
    assert len(catalog.rows(Split.TEST)) == 100
    assert np.bincount(catalog.truth).tolist() == [3] * 100


def test_seed_and_number_of_labels(tmp_path: Path) -> None:
    root = write_folder(tmp_path, *python_version())
    spec = f"cifar10:{root}"

    def labeled(**settings: int) -> list[int]:
        catalog = load_catalog(spec, build_settings(spec, settings))
        assert len(catalog.rows(Split.VAL)) == 10 * settings.get("val_per_class", 0)
        return catalog.rows(Split.LABELED).tolist()

    assert labeled() == labeled(seed=0, val_per_class=2)
    assert labeled() != labeled(seed=1)
    assert len(labeled(labels_per_class=5)) == 50
    assert set(labeled(labels_per_class=3)) < set(labeled(labels_per_class=4)), "more labels contain fewer ones"
    with pytest.raises(UserError, match="6 training images of 'airplane', fewer than"):
        labeled(labels_per_class=5, val_per_class=2)


def test_images_pass_the_store_unchanged(tmp_path: Path) -> None:
    spec = f"cifar10:{write_archive(tmp_path, *binary_version())}"
    dataset = Dataset.open(spec, build_settings(spec, {}))
    store = dataset.open_store(32, cache_dir=str(tmp_path / "cache"))
    assert len(store) == TRAIN + TEST
    assert (store.height == 32).all()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_default_network_is_for_32_pixels(name: str, tmp_path: Path) -> None:
    train = resolve([{"data.source": f"{name}:{tmp_path}"}]).train
    assert (train.backbone, train.image_size, train.stored_side, train.batch_size, train.mu) == (
        "wrn_28_2",
        32,
        32,
        64,
        7,
    )


class Attack:
    """Creates a file if it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_run_no_code(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({b"data": Attack(tmp_path / "executed"), b"labels": [1]}, protocol)
    with pytest.raises(UserError, match=r"test_batch cannot be read: it contains '.*', but only arrays"):
        read_pickle(data, "test_batch")
    assert not (tmp_path / "executed").exists()
    pickle.loads(data)
    assert (tmp_path / "executed").exists(), "the attack works"


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_of_python_3_are_read(protocol: int) -> None:
    pixels, labels = images(3, 3)
    entries = read_pickle(pickle.dumps({b"data": pixels, b"labels": labels}, protocol), "batch")
    assert entries["labels"] == labels
    assert np.array_equal(entries["data"].values, pixels)


def damaged(files: dict[str, bytes], name: str, new: bytes | None) -> dict[str, bytes]:
    return {key: value for key, value in {**files, name: new}.items() if value is not None}


@pytest.mark.parametrize(
    ("version", "file", "new", "message"),
    [
        (python_version, "data_batch_3", None, "does not contain data_batch_3 of cifar10"),
        (python_version, "data_batch_3", b"\x80\x02}(", "data_batch_3 cannot be read: "),
        (python_version, "test_batch", pickle.dumps([1], 2), "test_batch cannot be read: it is damaged"),
        (python_version, "test_batch", pickle.dumps({b"labels": [1]}, 2), "must contain 'data' and 'labels'"),
        (
            python_version,
            "test_batch",
            pickle.dumps({b"labels": [11], b"data": np.zeros((1, 3072), np.uint8)}, 2),
            "labels below 10",
        ),
        (
            python_version,
            "test_batch",
            pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3072), np.float32)}, 2),
            "an array is not of bytes",
        ),
        (python_version, "batches.meta", pickle.dumps({b"label_names": [b"cat"]}, 2), "must name 10 classes"),
        (binary_version, "test_batch.bin", b"\x01" * 3074, "must consist of records of 3073 bytes"),
        (binary_version, "test_batch.bin", b"\x0b" * 3073, "labels below 10"),
        (binary_version, "batches.meta.txt", None, r"does not contain batches\.meta\.txt"),
    ],
)
def test_damaged_files_are_errors(
    version: Callable[[], tuple[str, dict[str, bytes]]], file: str, new: bytes | None, message: str, tmp_path: Path
) -> None:
    folder, files = version()
    root = write_folder(tmp_path, folder, damaged(files, file, new))
    with pytest.raises(UserError, match=message):
        load_catalog(f"cifar10:{root}")


def test_other_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "cifar.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"cifar\.tar\.gz cannot be read"):
        load_catalog(f"cifar10:{tmp_path / 'cifar.tar.gz'}")
    (tmp_path / "photos" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="photos is not cifar10: give the published"):
        load_catalog(f"cifar10:{tmp_path / 'photos'}")
    with pytest.raises(UserError, match="not an existing folder or file"):
        load_catalog(f"cifar10:{tmp_path / 'missing'}")
