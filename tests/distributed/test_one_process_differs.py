"""Runs of two processes of which one sees a bad batch, is slow or is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.process_runs import (
    ENVIRONMENT,
    OPTIONS,
    outcome,
    run_program,
    state,
    wait_for_metrics,
    weights,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_program("fault_scenarios.py", tmp_path_factory.mktemp("runs"), seconds=280)


def test_nonfinite_loss_in_one_process_is_skipped_in_both(runs: Path) -> None:
    assert outcome(runs, "skipped")["codes"] == [0, 0]
    assert state(runs / "skipped")["nonfinite"]["count"] == 1
    torch.testing.assert_close(weights(runs / "skipped"), weights(runs / "skipped-by-one"), rtol=0, atol=1e-6)
    assert "1 step so far had a loss that is not finite" in (runs / "skipped" / "log.jsonl").read_text()


def test_nonfinite_loss_in_one_process_stops_both_before_saving(runs: Path) -> None:
    stopped = outcome(runs, "stopped")
    assert stopped["codes"] == [2, 2]
    assert "0: The loss of step 6 is not a finite number; its batch of 12 images" in stopped["said"]
    assert state(runs / "stopped")["step"] == 5
    assert all(value.isfinite().all() for value in weights(runs / "stopped").values())


def test_processes_wait_for_long_work_of_the_first(runs: Path) -> None:
    assert outcome(runs, "long") == {"codes": [0, 0], "said": ""}
    assert (runs / "long" / "result.json").exists()


SLOW_SAVE = """
import sys, time
from semifine.cli.main import main
from semifine.training import state
save = state.save_checkpoint
def slowly(*arguments):
    time.sleep(14)  # longer than Fabric needs to notice that a child process has ended
    save(*arguments)
state.save_checkpoint = slowly
if __name__ == "__main__":
    sys.exit(main())
"""


def test_slow_save_after_a_signal_completes(tmp_path: Path) -> None:
    program, out = tmp_path / "slow.py", tmp_path / "run"
    program.write_text(SLOW_SAVE)
    numbers = ["--iterations", "100000", "--save-every", "100000", "--evaluate-every", "100000"]
    command = [sys.executable, str(program), "train", *OPTIONS, "--devices", "2", "--out", str(out), *numbers]
    running = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for_metrics(out)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, said[-2000:]
    assert state(out)["step"] > 0
