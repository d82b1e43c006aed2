"""A finished run folder, read into what analyses and reports need."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.files import damage_as_user_error, read_json
from semifine.runs.analysis import Z_975, Interval
from semifine.runs.folder import RunFolder

# The kind of record of metrics.jsonl that holds each series.
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


@dataclass(frozen=True, eq=False)
class Series:
    """A number over training: (n,) steps and (n,) values."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """Pseudo-labels that each class got up to each of (n,) steps, from the one before: (n, K) counts."""

    steps: NDArray[np.int64]
    predicted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    """Those that trained the network."""


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What one run did and found. Matrices and groups are None where the run has none."""

    path: Path
    method: str
    seed: int
    data: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any]
    class_names: tuple[str, ...]
    class_groups: tuple[str, ...] | None = None
    series: dict[str, Series] = field(default_factory=dict)
    """Only the series that the run has, by the names of ``SERIES``."""
    transitions: NDArray[np.int64] | None = None
    """(K, K) counts of predictions that went from the row's class to the column's."""
    confusion: NDArray[np.int64] | None = None
    """(K, K) counts of test images: row is the true class, column the predicted one."""
    entropy_by_k: dict[int, Interval] | None = None
    """Mean entropy of the labels of all unlabeled images, were each made with so many clusters."""
    class_labels: ClassLabels | None = None
    """Pseudo-labels of each class over training."""
    data_report: dict[str, Any] = field(default_factory=dict)
    """What was found in the data when the run began."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def unlabeled(self) -> dict[str, Any]:
        """Means over the unlabeled set at the end of training; empty where there was none."""
        return self.result.get("unlabeled") or {}

    @property
    def time(self) -> dict[str, float]:
        """Seconds by what they went into; empty for a run that did not record it."""
        return self.result.get("time") or {}

    @property
    def supervised_steps(self) -> int:
        """Steps at the start that no unlabeled image had a part in."""
        return round(float(self.settings.get("supervised_warmup") or 0) * float(self.result.get("iterations") or 0))

    def of_full_steps(self, name: str) -> NDArray[np.float64]:
        """Values of a series over the lines of metrics.jsonl in which every step had unlabeled images, too.

        A method without unlabeled images has the same steps all along, and loses nothing but lines.
        """
        if name not in self.series:
            return np.zeros(0)
        series = self.series[name]
        begun_after = np.concatenate([[0], series.steps[:-1]])
        return series.values[begun_after >= self.supervised_steps]

    @property
    def step_seconds(self) -> float | None:
        """The median over lines of metrics.jsonl, each the mean of its steps with unlabeled images.

        A run of before these were noted gives the mean of all steps, evaluations included; None where steps without
        unlabeled images are among them.
        """
        noted = self.of_full_steps("step_seconds")
        if len(noted):
            return float(np.median(noted))
        seconds, steps = self.time.get("steps") or self.result.get("seconds"), self.result.get("iterations")
        return float(seconds) / float(steps) if seconds and steps and not self.supervised_steps else None

    @property
    def peak_gpu_bytes(self) -> float | None:
        """The most that the run held on its GPU; None on a CPU and for runs that did not record it."""
        return self.result.get("peak_gpu_bytes")

    @property
    def labeled_counts(self) -> NDArray[np.int64] | None:
        """(K,) labeled images of each class, where the run noted them."""
        classes = self.data_report.get("classes") or {}
        if not all(name in classes for name in self.class_names):
            return None
        return np.array([classes[name]["labeled"] for name in self.class_names], np.int64)

    def sample_columns(self) -> list[str]:
        """Names of the per-sample facts that the run has."""
        import pyarrow.parquet as pq

        file = RunFolder(self.path).samples
        with damage_as_user_error(file):
            return list(pq.read_schema(file).names) if file.is_file() else []

    def samples(self, *columns: str) -> dict[str, NDArray[Any]]:
        """Columns of the per-sample facts, read when asked for; an empty dictionary without unlabeled images."""
        import pyarrow.parquet as pq

        file = RunFolder(self.path).samples
        if not file.is_file():
            return {}
        names = self.sample_columns()
        for column in columns:
            if column not in names:
                raise ValueError(f"{file} has no column '{column}'. Valid ones: {', '.join(names)}.")
        with damage_as_user_error(file):
            table = pq.read_table(file, columns=list(columns) or None)
        return {name: table[name].to_numpy() for name in table.column_names}


def read_run(path: Path) -> RunFacts:
    """The facts of a finished run; a clear UserError where the folder is none, unfinished or damaged."""
    folder = RunFolder.open(path)
    result = folder.read_result()
    classes = read_json(folder.classes)
    names = tuple(folder.read_class_names())
    groups = classes.get("groups")
    tensors = _read_tensors(folder.class_stats)
    matrices = _square_matrices(folder.class_stats, tensors, len(names))
    environment = read_json(folder.environment) if folder.environment.is_file() else {}
    records = list(folder.read_metrics())
    return RunFacts(
        path=path,
        method=str(result["method"]),
        seed=int(result["seed"]),
        data=str(result["data"]),
        settings=_read_settings(folder.settings),
        environment=environment or result.get("environment", {}),
        result=result,
        class_names=names,
        class_groups=tuple(str(group) for group in groups) if groups else None,
        series=read_series(records),
        transitions=matrices.get("transitions"),
        confusion=matrices.get("confusion"),
        entropy_by_k=_entropy_by_k(tensors.get("entropy_by_k")),
        class_labels=_class_labels(records, len(names)),
        data_report=read_json(folder.data) if folder.data.is_file() else {},
    )


def read_series(records: Iterable[dict[str, Any]]) -> dict[str, Series]:
    """The known series among the records; numbers that are not finite are left out."""
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


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """What classes.safetensors holds; nothing where a run left none."""
    from safetensors.numpy import load_file

    with damage_as_user_error(path):
        return dict(load_file(path)) if path.is_file() else {}


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


def _read_settings(path: Path) -> dict[str, Any]:
    import yaml

    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not settings:
            raise ValueError("it is empty")
        return dict(settings)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise UserError(f"The settings file {path} is damaged: {' '.join(str(error).split())}.") from error
