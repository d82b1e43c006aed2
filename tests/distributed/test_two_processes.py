"""Several processes give the weights of one process for every method, and handle a process that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semifine.cli.main import main
from tests.conftest import trained_methods
from tests.distributed.process_runs import (
    ENVIRONMENT,
    OPTIONS,
    outcome,
    run_program,
    state,
    wait_for_metrics,
    weights,
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_program("scenarios.py", tmp_path_factory.mktemp("runs"), seconds=560)


@pytest.mark.parametrize(("where", "processes"), [("one", 1), ("two", 2)])
def test_all_methods_train_to_the_end(where: str, processes: int, runs: Path) -> None:
    ended = outcome(runs, where)
    assert ended["codes"] == [0] * processes, ended["said"]


@pytest.mark.parametrize("name", trained_methods())
def test_weights_after_50_steps_equal_one_process(name: str, runs: Path) -> None:
    assert state(runs / "two" / name)["step"] == 50
    torch.testing.assert_close(weights(runs / "two" / name), weights(runs / "one" / name), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", trained_methods())
def test_state_of_the_method_equals_one_process(name: str, runs: Path) -> None:
    two, one = (state(runs / folder / name)["method"] for folder in ("two", "one"))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-5)


def test_metrics_cover_all_processes_and_count_each_image_once(runs: Path) -> None:
    """30 test images are no multiple of the batches, nor can two processes share the last of them evenly."""
    two, one = (
        [json.loads(line) for line in (runs / folder / "soc" / "metrics.jsonl").read_text().splitlines()]
        for folder in ("two", "one")
    )
    assert sum("test_top1" in record for record in one) == 2
    for ours, theirs in zip(two, one, strict=True):
        for key in ("loss", "loss_unlabeled", "pseudo_label_accuracy", "test_top1", "test_top5", "val_top1"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-3)
    result = json.loads((runs / "two" / "soc" / "result.json").read_text())
    assert result["images"]["test"] == 30
    assert result["top1"] * 30 / 100 == pytest.approx(round(result["top1"] * 30 / 100))


def test_result_contains_the_number_of_processes(runs: Path) -> None:
    result = json.loads((runs / "two" / "soc" / "result.json").read_text())
    assert result["environment"]["processes"] == 2


@pytest.mark.parametrize("processes", [1, 4])
def test_run_of_two_processes_resumes_with_one_and_four(processes: int, runs: Path) -> None:
    assert outcome(runs, "stopped")["codes"] == [128 + signal.SIGTERM, 0], "only the first exit code names the signal"
    assert state(runs / "stopped")["step"] == 20
    resumed = runs / f"resumed-by-{processes}"
    assert outcome(runs, resumed.name)["codes"] == [0] * processes
    torch.testing.assert_close(weights(resumed), weights(runs / "one" / "soc"), rtol=0, atol=1e-6)


def test_failing_process_stops_the_other_with_its_reason(runs: Path) -> None:
    failed = outcome(runs, "failed")
    assert failed["codes"] == [2, 2]
    assert "0: Another process of the run has ended (process 1: The cable was cut), so this one ends" in failed["said"]


def test_killed_process_stops_the_other(runs: Path) -> None:
    killed = outcome(runs, "killed")
    assert killed["codes"] == [2, -signal.SIGKILL]
    assert "0: Another process of the run has ended (it left no reason" in killed["said"]


@pytest.mark.parametrize("end", ["failed", "killed"])
def test_run_of_a_dead_process_resumes_bit_for_bit(end: str, runs: Path) -> None:
    assert state(runs / end)["step"] == 20
    torch.testing.assert_close(weights(runs / f"{end}-and-resumed"), weights(runs / "two" / "soc"), rtol=0, atol=0)


def test_command_starts_processes_that_stop_together_after_saving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    numbers = ["--iterations", "100000", "--save-every", "100000", "--evaluate-every", "100000"]
    command = [sys.executable, "-m", "semifine", "train", *OPTIONS, "--devices", "2", "--out", str(out), *numbers]
    running = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for_metrics(out)
    assert main(["train", "--out", str(out), "--resume"]) == 2, "a second training in the same folder"
    assert "Another training is running" in capsys.readouterr().err
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, said[-2000:]
    assert state(out)["step"] > 0
    assert json.loads((out / "environment.json").read_text())["processes"] == 2


def test_torchrun_prints_one_result(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "semifine", "train", *OPTIONS, "--iterations", "4", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["environment"]["processes"] == 2
