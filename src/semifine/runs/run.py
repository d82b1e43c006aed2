"""Reader of a run folder: settings, results, metrics, statistics, data and network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from semifine.config import TrainSettings, read_train_settings
from semifine.config.loading import read_yaml
from semifine.data.catalog import Catalog
from semifine.data.label_check import LabelCheck, read_label_check
from semifine.data.left_out import KINDS, LeftOut
from semifine.data.sources import build_settings, load_catalog
from semifine.errors import UserError
from semifine.files import damage_as_user_error, read_json
from semifine.runs.analysis import Z_975, Interval
from semifine.runs.folder import RunFolder
from semifine.runs.schemas import DATA, check_types

if TYPE_CHECKING:
    from semifine.data.dataset import Dataset
    from semifine.models.classifier import Classifier

# The kind of record in metrics.jsonl that contains each series.
SERIES = {
    "test_top1": "evaluation",
    "val_top1": "evaluation",
    "cluster_changes": "evaluation",
    "pseudo_label_accuracy": "train",
    "candidates": "train",
    "candidate_hit_rate": "train",
    "accepted": "train",
    "accepted_accuracy": "train",
    "entropy_before": "train",
    "entropy_after": "train",
    "loss": "train",
    "images_per_second": "train",
    "step_seconds": "train",
    "data_wait": "train",
}


CHECKPOINT_OF = {"probe": "probe", "trained": "last", "interpolated": "interpolated"}
"""Checkpoint of the network that the run chose as its result."""


@dataclass(frozen=True, eq=False)
class Series:
    """A metric over training: steps ``(n,)`` and values ``(n,)``."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """Pseudo-labels of each class between consecutive evaluations: steps ``(n,)`` and counts ``(n, K)``."""

    steps: NDArray[np.int64]
    predicted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    """Pseudo-labels that contributed to the loss."""


class Run:
    """A run folder. Each file is read on first use and cached.

    Opening a run and reading its metadata does not import torch; only :attr:`dataset` and :meth:`load_network` do.
    A missing or damaged file raises ``UserError`` naming the file.

    Args:
        path: Folder of a run, finished or not.
        dataset: The data set of the run, if it is open already.

    Example:
        >>> run = Run("runs/soc")  # doctest: +SKIP
        >>> run.result["top1"], run.class_names[:2]  # doctest: +SKIP
        (61.2, ('Parus major', 'Parus minor'))
    """

    def __init__(self, path: str | Path, dataset: Dataset | None = None) -> None:
        self.path = Path(path)
        self.folder = RunFolder.open(self.path)
        if dataset is not None:
            self.dataset = dataset

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def check_finished(self) -> Run:
        """Reads all metadata and class statistics, and raises ``UserError`` if the run is unfinished or damaged."""
        _ = self.result, self.settings, self.class_names, self.environment, self.data_report
        _ = self.metrics, self._class_matrices
        return self

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of ``settings.yaml``."""
        settings = read_yaml(self.folder.settings)
        if not settings:
            raise UserError(f"The settings file {self.folder.settings} is damaged: it is empty; restore it.")
        return settings

    @cached_property
    def train_settings(self) -> TrainSettings:
        """The training settings, checked and typed."""
        return read_train_settings(self.folder.settings)

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``; ``UserError`` if the run is not finished."""
        return self.folder.read_result()

    @cached_property
    def method(self) -> str:
        """Name of the method."""
        return str(self.result["method"])

    @cached_property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.result["seed"])

    @cached_property
    def data(self) -> str:
        """Name of the data set, such as ``folder:/data/birds``."""
        return str(self.result["data"])

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Hardware and versions that the run was trained with."""
        found = read_json(self.folder.environment) if self.folder.environment.is_file() else {}
        return found or dict(self.result.get("environment", {}))

    @cached_property
    def data_report(self) -> dict[str, Any]:
        """Results of the data checks at the start of the run; empty if the run has none."""
        report = read_json(self.folder.data) if self.folder.data.is_file() else {}
        check_types(self.folder.data, report, DATA)
        return report

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the K classes, by class id."""
        return tuple(self.folder.read_class_names())

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """The images and classes that the run left out."""
        with damage_as_user_error(self.folder.data):
            items = [LeftOut(**item) for item in self.data_report.get("left_out") or ()]
            if not {item.kind for item in items} <= {*KINDS}:
                raise ValueError("left_out has an unknown kind")
        return items

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.class_names)

    @cached_property
    def class_groups(self) -> tuple[str, ...] | None:
        """Group of each class, such as its genus; None if the data set defines no groups."""
        groups = read_json(self.folder.classes).get("groups") or []
        if groups and len(groups) != self.num_classes:
            raise UserError(
                f"{self.folder.classes} is damaged: it has {len(groups)} groups for {self.num_classes} classes; "
                "restore the file."
            )
        return tuple(str(group) for group in groups) or None

    # Metrics over training

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of ``metrics.jsonl``, in order."""
        return list(self.folder.read_metrics())

    @cached_property
    def series(self) -> dict[str, Series]:
        """The numbers of :data:`SERIES` that the run recorded."""
        with damage_as_user_error(self.folder.metrics):
            return read_series(self.metrics)

    @cached_property
    def class_labels(self) -> ClassLabels | None:
        """Pseudo-labels of each class over training; None for a method without pseudo-labels."""
        with damage_as_user_error(self.folder.metrics):
            return _class_labels(self.metrics, self.num_classes)

    @property
    def supervised_steps(self) -> int:
        """Number of steps at the start of training that used labeled images only."""
        return self._share_of_steps("supervised_warmup")

    def _share_of_steps(self, name: str) -> int:
        with damage_as_user_error(self.folder.settings):
            return round(float(self.settings.get(name) or 0) * float(self.result.get("iterations") or 0))

    @property
    def _has_labeled_steps(self) -> bool:
        return self.supervised_steps > 0 or self._share_of_steps("supervised_cooldown") > 0

    def of_full_steps(self, name: str) -> NDArray[np.float64]:
        """Values of a series, restricted to records in which every step used unlabeled images, too."""
        if name not in self.series:
            return np.zeros(0)
        series = self.series[name]
        begun_after = np.concatenate([[0], series.steps[:-1]])
        full = begun_after >= self.supervised_steps
        if cooldown := self._share_of_steps("supervised_cooldown"):
            full &= series.steps <= int(self.result["iterations"]) - cooldown
        return series.values[full]

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step with unlabeled images: the median over the records of ``metrics.jsonl``.

        Without such records the mean over all steps, or None if that would mix two kinds of steps.
        """
        recorded = self.of_full_steps("step_seconds")
        if len(recorded):
            return float(np.median(recorded))
        seconds, steps = self.time.get("steps") or self.result.get("seconds"), self.result.get("iterations")
        return float(seconds) / float(steps) if seconds and steps and not self._has_labeled_steps else None

    # Statistics at the end of training

    @property
    def time(self) -> dict[str, float]:
        """Seconds by part of the run, such as ``steps`` and ``evaluation``."""
        return self.result.get("time") or {}

    @property
    def peak_gpu_bytes(self) -> float | None:
        """Peak GPU memory in bytes; None on a CPU."""
        return self.result.get("peak_gpu_bytes")

    @property
    def unlabeled(self) -> dict[str, Any]:
        """Means over the unlabeled images at the end of training; empty without unlabeled images."""
        return self.result.get("unlabeled") or {}

    @property
    def labeled_counts(self) -> NDArray[np.int64] | None:
        """(K,) labeled images of each class; None if the run did not record them."""
        classes = self.data_report.get("classes") or {}
        if not all(name in classes for name in self.class_names):
            return None
        return np.array([classes[name]["labeled"] for name in self.class_names], np.int64)

    @cached_property
    def label_check(self) -> LabelCheck | None:
        """The labels with the predictions of the cross-validated probe; None without a probe."""
        return read_label_check(self.folder.label_check, self.class_names)

    def sample_columns(self) -> list[str]:
        """Names of the columns of ``samples.parquet``; empty without unlabeled images."""
        import pyarrow.parquet as pq  # slow: 'import semifine.report' does not need it

        file = self.folder.samples
        with damage_as_user_error(file):
            return list(pq.read_schema(file).names) if file.is_file() else []

    def samples(self, *columns: str) -> dict[str, NDArray[Any]]:
        """Statistics of the unlabeled images, by column; all columns by default, none without unlabeled images."""
        import pyarrow.parquet as pq  # slow: 'import semifine.report' does not need it

        file = self.folder.samples
        if not file.is_file():
            return {}
        names = self.sample_columns()
        for column in columns:
            if column not in names:
                raise UserError(f"{file} has no column '{column}'. Valid ones: {', '.join(names)}.")
        with damage_as_user_error(file):
            table = pq.read_table(file, columns=list(columns) or None)
        return {name: table[name].to_numpy() for name in table.column_names}

    @cached_property
    def class_stats(self) -> dict[str, NDArray[Any]]:
        """The tensors of ``classes.safetensors``, by name; empty if the run has none."""
        file = self.folder.class_stats
        with damage_as_user_error(file):
            return dict(load_file(file)) if file.is_file() else {}

    @cached_property
    def transitions(self) -> NDArray[np.int64] | None:
        """(K, K) how often a prediction changed from the row's class to the column's; None without SoC."""
        return self._class_matrices.get("transitions")

    @cached_property
    def confusion(self) -> NDArray[np.int64] | None:
        """(K, K) counts of test images: row is the true class, column the predicted one; None without test images."""
        return self._class_matrices.get("confusion")

    @cached_property
    def _class_matrices(self) -> dict[str, NDArray[np.int64]]:
        return _square_matrices(self.folder.class_stats, self.class_stats, self.num_classes)

    @cached_property
    def entropy_by_k(self) -> dict[int, Interval] | None:
        """Mean entropy of all pseudo-labels if each was made with k clusters, by k; None without SoC."""
        return _entropy_by_k(self.class_stats.get("entropy_by_k"))

    # Data and network

    @cached_property
    def catalog(self) -> Catalog:
        """The images and labels that the run used, read again from their source.

        Raises ``UserError`` if the data set has other classes now.
        """
        catalog = self._full_catalog.without(self.left_out)
        self.folder.check_classes(catalog.class_names)
        return catalog

    @cached_property
    def _full_catalog(self) -> Catalog:
        """The catalog of the data set, with the images that the run left out."""
        data = self.settings.get("data")
        if not isinstance(data, Mapping) or "source" not in data:
            raise UserError(f"{self.folder.settings} is damaged: the key 'data' is missing; restore the file.")
        source = str(data["source"])
        values = {key: value for key, value in data.items() if key != "source"}
        try:
            settings = build_settings(source, values)
        except UserError as error:
            raise UserError(f"{self.folder.settings}: {error}") from error
        return load_catalog(source, settings)

    @cached_property
    def dataset(self) -> Dataset:
        """Catalog and decoded images that the run was trained on."""
        # Slow to import because of torch, which a report does not need.
        from semifine.data.dataset import Dataset
        from semifine.data.extra_labels import read_frozen_labels

        settings = self.train_settings
        _ = self.catalog  # raises for other classes, before images are decoded
        dataset = Dataset(lambda: self._full_catalog)
        dataset.open_store(
            settings.stored_side, cache_dir=settings.cache, labels=read_frozen_labels(self.folder.labels)
        )
        self.folder.check_classes(dataset.catalog.class_names)
        return dataset

    @property
    def is_dataset_open(self) -> bool:
        """Whether :attr:`dataset` is open, so that using it decodes nothing."""
        return "dataset" in vars(self)

    def find_checkpoint(self, name: str = "auto") -> str:
        """Returns the checkpoint with this name; ``"auto"`` is the result of the run.

        The result is the trained network, the linear probe, or a network between both. Until training is finished, it
        is the probe, if the run has one.
        """
        if name != "auto":
            return name
        if self.folder.result.is_file():
            return CHECKPOINT_OF[self.result.get("chosen") or "trained"]
        return "probe" if (self.folder.checkpoints / "probe").exists() else "last"

    def load_network(self, checkpoint: str = "auto", device: str = "cpu") -> Classifier:
        """Loads the evaluated network in eval mode, without the projection heads that only training needs.

        Args:
            checkpoint: ``"auto"``, ``"last"``, ``"best_val"`` or ``"probe"``.
            device: Device of the returned network.
        """
        # Slow to import because of torch and timm, which a report does not need.
        from semifine.models.classifier import create_classifier
        from semifine.runs.checkpoint import load_weights

        settings = self.train_settings
        checkpoint = self.find_checkpoint(checkpoint)
        weights = load_weights(self.folder.checkpoints / checkpoint)
        num_classes = self.num_classes if "head.weight" in weights else 0
        network = create_classifier(settings.backbone, num_classes, settings.image_size, **settings.network_options)
        try:
            network.load_state_dict({name: value for name, value in weights.items() if not name.startswith("heads.")})
        except RuntimeError as error:
            raise UserError(
                f"The weights in {self.folder.checkpoints / checkpoint} do not fit the network that "
                f"{self.folder.settings} and {self.folder.classes} describe ({settings.backbone}, {num_classes} "
                "classes): one of these files belongs to another run."
            ) from error
        return network.eval().to(device)


def read_series(records: Iterable[dict[str, Any]]) -> dict[str, Series]:
    """The series of :data:`SERIES` among the records of ``metrics.jsonl``; values that are not finite are dropped.

    >>> records = [{"kind": "train", "step": 10, "loss": 0.5}, {"kind": "train", "step": 20, "loss": float("nan")}]
    >>> read_series(records)["loss"].steps
    array([10])
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, kind in SERIES.items():
            value = record.get(name)
            if record.get("kind") == kind and value is not None and math.isfinite(value):
                points.setdefault(name, []).append((int(record["step"]), float(value)))
    return {name: _series(found) for name, found in points.items()}


def _series(points: list[tuple[int, float]]) -> Series:
    steps, values = zip(*points, strict=True)
    return Series(np.array(steps, np.int64), np.array(values, np.float64))


def _class_labels(records: Iterable[dict[str, Any]], num_classes: int) -> ClassLabels | None:
    found = [record for record in records if record.get("kind") == "classes"]
    if not found or any(len(record[name]) != num_classes for record in found for name in ("predicted", "accepted")):
        return None
    steps, predicted, accepted = (
        np.array([record[name] for record in found], np.int64) for name in ("step", "predicted", "accepted")
    )
    return ClassLabels(steps, predicted, accepted)


def _square_matrices(path: Path, tensors: dict[str, NDArray[Any]], num_classes: int) -> dict[str, NDArray[np.int64]]:
    """The (K, K) tensors by name."""
    found: dict[str, NDArray[np.int64]] = {}
    for name in ("transitions", "confusion"):
        if name not in tensors:
            continue
        if tensors[name].shape != (num_classes, num_classes):
            raise UserError(f"{path}: '{name}' is {tensors[name].shape}, but there are {num_classes} classes.")
        found[name] = tensors[name].astype(np.int64)
    return found


def _entropy_by_k(table: NDArray[Any] | None) -> dict[int, Interval] | None:
    """From rows of k, mean, standard deviation and number of images."""
    if table is None:
        return None
    halves = Z_975 * table[:, 2] / np.sqrt(table[:, 3])
    return {
        int(k): Interval(float(mean), float(mean - half), float(mean + half))
        for (k, mean, *_), half in zip(table, halves, strict=True)
    }
