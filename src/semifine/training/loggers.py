"""Numbers of a run in the tools that people watch: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from semifine.config import RunSettings
from semifine.errors import UserError
from semifine.files import write_json
from semifine.runs.folder import RunFolder

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


class Logger(Protocol):
    """One tool; numbers that it has already, from before a resume, are not sent again."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def parse_logger_names(text: str) -> list[str]:
    """The names in ``--loggers``: ``auto`` is TensorBoard where it is installed, ``none`` nothing."""
    if text == "none":
        return []
    if text == "auto":
        return ["tensorboard"] if find_spec("tensorboard") else []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PACKAGES:
            raise UserError(f"loggers must be auto, none or some of {', '.join(PACKAGES)}, not '{name}'.")
        if not find_spec(PACKAGES[name]):
            raise UserError(f"The logger '{name}' is not installed: pip install 'semifine[{name}]'.")
    return list(dict.fromkeys(names))


class Loggers:
    """All loggers of a run. One that fails is left out, because a run is worth more than its curves elsewhere."""

    def __init__(
        self, names: list[str], settings: RunSettings, folder: RunFolder, step: int, log: Callable[[str], None]
    ) -> None:
        self._log = log
        self._open: dict[str, Logger] = {}
        for name in names:
            self._try(name, partial(self._begin, name, settings, folder, step))

    def _begin(self, name: str, settings: RunSettings, folder: RunFolder, step: int) -> None:
        self._open[name] = OPENERS[name](settings, folder, step)

    def log(self, record: Mapping[str, Any]) -> None:
        """Sends the numbers of a record of metrics.jsonl, named like ``train/loss``."""
        numbers = {
            f"{record['kind']}/{name}": float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and name not in ("step", "kind")
        }
        for name, logger in list(self._open.items()):
            self._try(name, partial(logger.log, record["step"], numbers))

    def close(self) -> None:
        for name, logger in list(self._open.items()):
            self._try(name, logger.close)
        self._open.clear()

    def _try(self, name: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except Exception as error:  # other people's programs, often with a network behind them
            self._open.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._log(f"The logger '{name}' failed and is left out from now on: {reason}")


class TensorBoardLogger:
    """Event files in RUN/tensorboard."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run wrote after its last checkpoint is purged when TensorBoard reads the files.
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE and the like say where."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        import wandb

        known = _read_ids(folder)
        known.setdefault("wandb", uuid.uuid4().hex[:8])
        write_json(folder.loggers, known)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "semifine"),
            name=folder.path.resolve().name,
            id=known["wandb"],
            resume="allow",
            dir=str(folder.path),
            config=settings.as_dict(),
        )
        self._next = int(self._run.step)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step >= self._next:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run of MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def __init__(self, settings: RunSettings, folder: RunFolder, step: int) -> None:  # noqa: ARG002
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        known = _read_ids(folder)
        if "mlflow" not in known:
            known["mlflow"] = self._begin(settings, folder)
            write_json(folder.loggers, known)
        self._id = known["mlflow"]
        self._sent: dict[str, int] = {}

    def _begin(self, settings: RunSettings, folder: RunFolder) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "semifine")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = str(self._client.create_run(number, run_name=folder.path.resolve().name).info.run_id)
        for key, value in settings.as_dict().items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            for part, number in inner:
                self._client.log_param(run_id, f"{key}.{part}" if part else key, number)
        return run_id

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            if name not in self._sent:
                history = self._client.get_metric_history(self._id, name)
                self._sent[name] = max((metric.step for metric in history), default=-1)
            if step > self._sent[name]:
                self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


OPENERS: dict[str, Callable[[RunSettings, RunFolder, int], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def _read_ids(folder: RunFolder) -> dict[str, str]:
    """By which names the tools know this run, so that a resumed one goes on there."""
    return dict(json.loads(folder.loggers.read_text(encoding="utf-8"))) if folder.loggers.is_file() else {}
