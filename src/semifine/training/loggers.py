"""Loggers of metrics: TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from semifine.config import RunSettings
from semifine.errors import UserError
from semifine.files import read_json, write_json
from semifine.runs.folder import RunFolder

NAMES = ("tensorboard", "wandb", "mlflow")
"""Names of the loggers, which are also the names of their packages."""


class Logger(Protocol):
    """An experiment tracker. After a resume, it does not log the same step twice."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def parse_logger_names(text: str) -> list[str]:
    """Returns the names in ``--loggers``; ``auto`` means TensorBoard if it is installed.

    Example:
        >>> parse_logger_names("none")
        []
    """
    if text == "none":
        return []
    if text == "auto":
        return ["tensorboard"] if find_spec("tensorboard") else []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise UserError(f"loggers must be auto, none, or names from {', '.join(NAMES)}, not '{name}'.")
        if not find_spec(name):
            raise UserError(f"The logger '{name}' is not installed: pip install 'semifine[{name}]'.")
    return list(dict.fromkeys(names))


class Loggers:
    """All loggers of a run. A logger that fails is removed, and training continues.

    Args:
        names: Names of the loggers.
        settings: All settings of the run, which the loggers record.
        folder: The run folder.
        step: Number of finished steps.
        log: Receives a message if a logger fails.
    """

    def __init__(
        self, names: list[str], settings: RunSettings, folder: RunFolder, step: int, log: Callable[[str], None]
    ) -> None:
        self._log = log
        self._open: dict[str, Logger] = {}
        for name in names:
            self._try(name, partial(self._start, name, settings, folder, step))

    def _start(self, name: str, settings: RunSettings, folder: RunFolder, step: int) -> None:
        self._open[name] = LOGGERS[name](settings, folder, step)

    def log(self, record: Mapping[str, Any]) -> None:
        """Logs the numbers of a record of ``metrics.jsonl`` under names such as ``train/loss``."""
        metrics = {
            f"{record['kind']}/{name}": float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and name not in ("step", "kind")
        }
        for name, logger in list(self._open.items()):
            self._try(name, partial(logger.log, record["step"], metrics))

    def close(self) -> None:
        """Closes all loggers."""
        for name, logger in list(self._open.items()):
            self._try(name, logger.close)
        self._open.clear()

    def _try(self, name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # third-party code, often with a network connection
            self._open.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._log(f"The logger '{name}' failed and is not used any more: {reason}")


class TensorBoardLogger:
    """Writes event files to ``RUN/tensorboard``."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter  # optional dependency

        # TensorBoard ignores what an interrupted run wrote after its last checkpoint.
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """Logs to Weights & Biases; configured by environment variables such as WANDB_PROJECT and WANDB_MODE."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        import wandb  # optional dependency

        ids = _read_ids(folder)
        ids.setdefault("wandb", uuid.uuid4().hex[:8])
        write_json(folder.loggers, ids)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "semifine"),
            name=folder.path.resolve().name,
            id=ids["wandb"],
            resume="allow",
            dir=str(folder.path),
            config=settings.as_dict(),
        )
        self._next = int(self._run.step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self._next:
            self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """Logs to MLflow; configured by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        from mlflow.tracking import MlflowClient  # optional dependency

        self._client = MlflowClient()
        ids = _read_ids(folder)
        if "mlflow" not in ids:
            ids["mlflow"] = self._create_run(settings, folder)
            write_json(folder.loggers, ids)
        self._id = ids["mlflow"]
        self._last_step: dict[str, int] = {}

    def _create_run(self, settings: RunSettings, folder: RunFolder) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "semifine")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = str(self._client.create_run(experiment_id, run_name=folder.path.resolve().name).info.run_id)
        for key, value in settings.as_dict().items():
            nested = value.items() if isinstance(value, dict) else [("", value)]
            for name, setting in nested:
                self._client.log_param(run_id, f"{key}.{name}" if name else key, setting)
        return run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name not in self._last_step:
                history = self._client.get_metric_history(self._id, name)
                self._last_step[name] = max((metric.step for metric in history), default=-1)
            if step > self._last_step[name]:
                self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


LOGGERS: dict[str, Callable[[RunSettings, RunFolder, int], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def _read_ids(folder: RunFolder) -> dict[str, str]:
    """Returns the ids of this run in the trackers, so that a resumed run continues there."""
    return read_json(folder.loggers) if folder.loggers.is_file() else {}
