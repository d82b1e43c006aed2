"""The folder of one training run: what is in it, and how it is written without ever losing anything.

::

    RUN/
      settings.yaml        every resolved setting; the file alone repeats the run
      environment.json     code version, hardware, libraries
      log.jsonl            what was said, warnings and endings, with their times; a resumed run adds to it
      metrics.jsonl        one JSON object a line: training numbers and evaluations
      result.json          the final numbers, honestly named
      classes.json         class names and, where known, their groups
      weights.json         which tensors the network started from, where it did not start fresh
      labels.csv           the further labels (--labels) as they were when the run began, where it uses some
      classes.safetensors  confusion matrix on test, what the method learnt about classes, entropy of labels by k
      calibration.json     temperature and thresholds, fitted on validation images, for each set of weights
      data.json            what is in the data and what was found to be wrong with it
      samples.parquet      per-sample facts of the unlabelled set at the end
      samples/STEP.parquet the same at every evaluation, where that costs little (--keep-facts)
      loggers.json         by which names Weights & Biases and MLflow know this run, where it is sent there
      tensorboard/         event files, where TensorBoard is installed
      checkpoints/last     the newest checkpoint: model.safetensors (evaluated weights), training.pt
      checkpoints/best_val weights of the best evaluation on validation images, where there are any; like every
                           checkpoint with its checksums
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semifine.errors import UserError


class RunFolder:
    """Paths and small files of a run; knows nothing of training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"
        self.environment = path / "environment.json"
        self.log = path / "log.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.classes = path / "classes.json"
        self.weights = path / "weights.json"
        self.labels = path / "labels.csv"
        self.class_facts = path / "classes.safetensors"
        self.calibration = path / "calibration.json"
        self.data = path / "data.json"
        self.samples = path / "samples.parquet"
        self.loggers = path / "loggers.json"
        self.checkpoints = path / "checkpoints"

    @staticmethod
    def open(path: Path) -> RunFolder:
        """A folder that a run has been started in."""
        folder = RunFolder(path)
        if not folder.settings.is_file():
            raise UserError(f"{path} is not a run folder: it has no settings.yaml.")
        return folder

    def samples_at(self, step: int) -> Path:
        """The facts at one evaluation."""
        return self.path / "samples" / f"{step:08d}.parquet"

    def append_metrics(self, record: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The records in order; a last line that a crash cut short is left out."""
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        while lines and not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):
                    return
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise UserError(
                    f"{self.metrics} is damaged: line {number} is no record of training ({line[:60]}). What the others "
                    "say is untouched; take this line out to go on without it."
                )
            yield record

    def keep_metrics_until(self, step: int) -> None:
        """Drops what was logged after a checkpoint, because the resumed run will log it again."""
        kept = [json.dumps(record) for record in self.read_metrics() if record["step"] <= step]
        write_atomically(self.metrics, "".join(line + "\n" for line in kept))

    def read_result(self) -> dict[str, Any]:
        if not self.result.is_file():
            raise UserError(f"{self.path} has no result.json yet: the run is not finished; continue it with --resume.")
        result = read_json(self.result)
        missing = {"method", "data", "seed", *(["top5"] if result.get("top1") is not None else [])} - result.keys()
        if missing:
            raise UserError(f"{self.result} is damaged: it does not say {min(missing)!r}.")
        return result

    def read_class_names(self) -> list[str]:
        """The classes that the run learnt, in the order of their ids."""
        names = read_json(self.classes).get("names")
        if not isinstance(names, list):
            raise UserError(f"{self.classes} is damaged: it has no list of names.")
        return [str(name) for name in names]

    def check_classes(self, names: Sequence[str]) -> None:
        """What the run calls class 3 must still be that in its data, where folders may have come or gone."""
        learnt = self.read_class_names()
        if learnt == list(names):
            return
        gone, new = sorted(set(learnt) - set(names))[:1], sorted(set(names) - set(learnt))[:1]
        changes = [f"gone: {name}" for name in gone] + [f"new: {name}" for name in new] or ["their order"]
        raise UserError(
            f"The data of the run in {self.path} has other classes than it learnt ({', '.join(changes)}): bring them "
            "back as they were, or train another run."
        )


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of ours holds; a clear UserError where it is damaged."""
    with damage_told(path):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no names with values")
    return value


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file of ours is read is told as one sentence about that file."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # JSON, safetensors and Parquet have kinds of their own
        raise UserError(f"{path} is damaged: {' '.join(str(error).split()).rstrip('.')}.") from error


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """The file holds either its old or its new content, whenever the machine stops."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # two programs may write the same file
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
