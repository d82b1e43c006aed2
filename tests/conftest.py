"""Fixtures and settings for all tests: tiny runs that train in a second, and the folder of real data."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from semifine.config import RunSettings, resolve
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.extra_labels import read_labels
from semifine.data.sources import build_settings, load_catalog
from semifine.features.probe import stratified_folds
from semifine.methods import method_class, method_names
from semifine.models.classifier import create_classifier
from semifine.runs.checkpoint import save_weights

ROOT = Path(__file__).parents[1]

_temporary = tempfile.TemporaryDirectory(prefix="semifine-tests-")
SHARED_FOLDER = Path(_temporary.name)
"""A folder for files that all tests of a process share, deleted at its end."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Uses one thread, because several test processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _skip_without_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module")
def quick_probe() -> Iterator[None]:
    """Fits probes with one regularization strength and two folds instead of three and five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semifine.training.probe.STRENGTHS", (30.0,))
        patch.setattr("semifine.training.probe.stratified_folds", partial(stratified_folds, max_folds=2))
        yield


@cache
def tiny_teacher() -> str:
    """Returns a weights file of a random network with the classes of ``tiny_settings``."""
    torch.manual_seed(5)
    path = SHARED_FOLDER / "teacher.safetensors"
    save_weights(create_classifier("test_resnet", 6, 32).state_dict(), path)
    return str(path)


@cache
def tiny_voters() -> tuple[str, str]:
    """Returns folders of runs with random predictions for the unlabeled images of ``tiny_settings``."""
    data = {key.removeprefix("data."): value for key, value in FEW_IMAGES.items()}
    paths: dict[str, None] = {}
    for more in ({}, {"unlabeled": "inout", "ood_genera": 1}):
        catalog = load_catalog("synthetic", build_settings("synthetic", {**data, **more}))
        paths |= dict.fromkeys(str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED))
    folders = [SHARED_FOLDER / f"voter-{number}-{os.getpid()}" for number in range(2)]  # forked processes share it
    for seed, folder in enumerate(folders):
        write_voter(folder, catalog.class_names, list(paths), np.random.default_rng(seed).integers(0, 6, len(paths)))
    return str(folders[0]), str(folders[1])


def write_voter(folder: Path, names: Sequence[str], paths: Sequence[str], predictions: Iterable[int]) -> None:
    """Writes the files of a run that votes are read from."""
    folder.mkdir()
    (folder / "settings.yaml").write_text("{}")
    (folder / "classes.json").write_text(json.dumps({"names": list(names)}))
    pq.write_table(
        pa.table({"path": list(paths), "prediction": list(map(int, predictions))}), folder / "samples.parquet"
    )


def needed_settings(method: str) -> dict[str, object]:
    """Returns the settings that a method requires, or requires for such small batches."""
    if method == "self_training":
        return {"method.teacher": tiny_teacher()}
    if method == "vote":
        return {"method.voters": tiny_voters()}
    return {"method.groups": 2} if method == "moco" else {}


FEW_IMAGES = {
    "data.genera": 3,
    "data.species": 2,
    "data.labeled_per_class": 3,
    "data.unlabeled_per_class": 9,
    "data.val_per_class": 2,
    "data.test_per_class": 4,
}


def tiny_settings(method: str = "soc", **more: object) -> RunSettings:
    """Returns settings for 12 steps on 6 classes of the synthetic data set. Keys contain ``__`` instead of dots."""
    tiny = {
        **needed_settings(method),
        "data.source": "synthetic",
        **FEW_IMAGES,
        "method.name": method,
        "image_size": 32,
        "store_size": 48,
        "iterations": 12,
        "batch_size": 4,
        "mu": 2,
        "evaluate_every": 6,
        "save_every": 4,
        "log_every": 3,
        "device": "cpu",
        "supervised_warmup": 0.0,
        "loggers": "none",
    }
    return resolve([tiny, {key.replace("__", "."): value for key, value in more.items()}])


def open_dataset(settings: RunSettings, log: Callable[[str], object] = lambda _: None) -> Dataset:
    """Opens the data set and the store as a training does."""
    labels = read_labels(Path(settings.train.labels)) if settings.train.labels else None
    dataset = Dataset.open(settings.data, settings.data_settings)
    dataset.open_store(settings.train.stored_side, cache_dir=settings.train.cache, labels=labels, log=log)
    return dataset


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: SEMIFINE_TEST_DATA, or shared/data beside the repository."""
    path = Path(os.environ.get("SEMIFINE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("real data not found: set SEMIFINE_TEST_DATA to its folder")
    return path


def trained_methods() -> list[str]:
    """Names of the methods that take training steps."""
    return [name for name in method_names() if method_class(name).takes_steps]
