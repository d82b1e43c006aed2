"""Metrics in TensorBoard and in fakes of Weights & Biases and MLflow; a resume logs nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from semifine import UserError
from semifine.errors import Interrupted
from semifine.runs.folder import RunFolder
from semifine.training import loggers as loggers_module
from semifine.training.fit import fit
from semifine.training.loggers import Loggers, parse_logger_names
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import tiny_settings


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def test_parse_logger_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_logger_names("none") == []
    monkeypatch.setattr(loggers_module, "find_spec", lambda name: name != "wandb")
    assert parse_logger_names("auto") == ["tensorboard"]
    assert parse_logger_names("mlflow, tensorboard,mlflow") == ["mlflow", "tensorboard"]
    with pytest.raises(UserError, match=r"'wandb' is not installed: pip install 'semifine\[wandb\]'"):
        parse_logger_names("wandb")
    with pytest.raises(UserError, match="names from tensorboard, wandb, mlflow, not 'excel'"):
        parse_logger_names("excel")
    monkeypatch.setattr(loggers_module, "find_spec", lambda name: None)  # noqa: ARG005
    assert parse_logger_names("auto") == []


def test_tensorboard_has_each_metric_once_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = tiny_settings(log_every=1, save_every=5, loggers="tensorboard")
    log = Trainer._log

    def stop_at_seven(trainer: Trainer) -> None:
        log(trainer)
        if trainer.step == 7:
            raise Interrupted(15)

    monkeypatch.setattr(Trainer, "_log", stop_at_seven)
    with pytest.raises(Interrupted):
        fit(settings, tmp_path / "run", display=Display(quiet=True))
    monkeypatch.undo()
    fit(settings, tmp_path / "run", resume=True, display=Display(quiet=True))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    records = [record for record in RunFolder(tmp_path / "run").read_metrics() if record["kind"] == "train"]
    scalars = events.Scalars("train/loss")
    assert [scalar.step for scalar in scalars] == [record["step"] for record in records] == list(range(1, 13))
    assert [scalar.value for scalar in scalars] == pytest.approx([record["loss"] for record in records], rel=1e-6)
    assert [scalar.step for scalar in events.Scalars("evaluation/test_top1")] == [6, 12]


def send(names: list[str], folder: RunFolder, first: int, last: int) -> list[str]:
    """Logs the metrics of some steps and returns the messages."""
    messages: list[str] = []
    opened = Loggers(names, tiny_settings(), folder, first - 1, messages.append)
    for step in range(first, last + 1):
        opened.log({"kind": "train", "step": step, "loss": 1 / step, "note": "no number", "list": [1]})
    opened.close()
    return messages


def test_wandb_resumes_the_same_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, list[tuple[int, dict[str, float]]]] = {}
    asked: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        asked.append(options)
        lines = sent.setdefault(options["id"], [])
        return SimpleNamespace(
            step=lines[-1][0] + 1 if lines else 0,
            log=lambda numbers, step: lines.append((step, numbers)),
            finish=lambda: None,
        )

    fake = ModuleType("wandb")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert send(["wandb"], folder, 1, 4) == send(["wandb"], folder, 3, 6) == []
    (lines,) = sent.values()
    assert [step for step, _ in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[1][1] == {"train/loss": 0.5}
    assert asked[0]["config"]["method"]["name"] == "soc"
    assert [options["resume"] for options in asked] == ["allow", "allow"]


class FakeMlflowClient:
    """The MLflow client as the logger uses it, with class attributes in place of a tracking server."""

    metrics: dict[str, list[SimpleNamespace]]
    params: dict[str, Any]
    ended: list[str]

    def get_experiment_by_name(self, name: str) -> None:  # noqa: ARG002
        return None

    def create_experiment(self, name: str) -> str:
        assert name == "semifine"
        return "1"

    def create_run(self, number: str, run_name: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{number}-{run_name}"))

    def log_param(self, run_id: str, name: str, value: Any) -> None:  # noqa: ARG002
        self.params[name] = value

    def get_metric_history(self, run_id: str, name: str) -> list[SimpleNamespace]:  # noqa: ARG002
        return self.metrics.get(name, [])

    def log_metric(self, run_id: str, name: str, value: float, step: int) -> None:
        assert run_id == "1-run"
        self.metrics.setdefault(name, []).append(SimpleNamespace(step=step, value=value))

    def set_terminated(self, run_id: str) -> None:
        self.ended.append(run_id)


def test_mlflow_resumes_the_same_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMlflowClient.metrics, FakeMlflowClient.params, FakeMlflowClient.ended = {}, {}, []
    package, tracking = ModuleType("mlflow"), ModuleType("mlflow.tracking")
    tracking.MlflowClient = FakeMlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    assert send(["mlflow"], folder, 1, 4) == send(["mlflow"], folder, 3, 6) == []
    assert [metric.step for metric in FakeMlflowClient.metrics["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert FakeMlflowClient.params["method.alpha"] == 5.0
    assert FakeMlflowClient.ended == ["1-run", "1-run"]


def test_failing_logger_is_removed_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def log(self, step: int, numbers: Any) -> None:
            raise ConnectionError(f"no server at step {step} for {len(numbers)} numbers")

        def close(self) -> None:
            raise AssertionError("it is left out already")

    monkeypatch.setitem(loggers_module.LOGGERS, "tensorboard", lambda *_: Broken())
    result = fit(tiny_settings(iterations=6, loggers="tensorboard"), tmp_path / "run")
    assert result["top1"] is not None
    messages = [line for line in capsys.readouterr().err.splitlines() if "logger" in line]
    assert len(messages) == 1
    assert messages[0].startswith("The logger 'tensorboard' failed and is not used any more: no server at step 3")
