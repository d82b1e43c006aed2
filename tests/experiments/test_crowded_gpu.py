"""Runs that exhaust the memory together, with simulated processes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import IO, Any

import pytest

from semifine.errors import OutOfMemory, UserError
from semifine.experiments import scheduler
from semifine.experiments.scheduler import Job, State, run_jobs
from semifine.experiments.stages import Stage

CUDA_ERROR = """Traceback (most recent call last):
  File "training.py", line 1, in train
torch.AcceleratorError: CUDA error: out of memory
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


SENTENCE = f"semifine: {OutOfMemory('GPU', 'lower --batch-size')}\n"


class Machine:
    """Simulated memory that the runs share."""

    def __init__(self, memory: int, words: str = SENTENCE) -> None:
        self.memory = memory
        self.words = words
        self.exit_code = OutOfMemory.exit_code
        self.sizes: dict[str, int] = {}
        self.alive: list[Run] = []
        self.most_at_once = 0

    def start(self, command: list[str], stdout: IO[bytes], **_: Any) -> Run:
        folder = Path(command[command.index("--out") + 1])
        run = Run(self, folder, self.sizes.get(folder.name, 1), Path(stdout.name))
        self.alive.append(run)
        self.most_at_once = max(self.most_at_once, len(self.alive))
        return run


class Run:
    def __init__(self, machine: Machine, folder: Path, size: int, log: Path) -> None:
        self.machine, self.folder, self.size, self.log = machine, folder, size, log
        self.polls_left = 3

    def poll(self) -> int | None:
        if sum(run.size for run in self.machine.alive) > self.machine.memory and self.size > 1:
            self.log.write_text(self.machine.words)
            self.machine.alive.remove(self)
            return self.machine.exit_code
        self.polls_left -= 1
        if self.polls_left:
            return None
        self.machine.alive.remove(self)
        self.folder.mkdir()
        (self.folder / "result.json").write_text("{}")
        return 0


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.0)


def play(machine: Machine, names: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Job], list[str]]:
    monkeypatch.setattr(scheduler.subprocess, "Popen", machine.start)
    jobs = [Job(Stage(name, {"iterations": 1}), out) for name in names]
    logged: list[str] = []
    run_jobs(jobs, at_once=3, options=(), on_change=lambda: None, log=logged.append)
    return jobs, logged


@pytest.mark.parametrize("words", [SENTENCE, CUDA_ERROR])
def test_run_without_memory_waits_for_fewer_parallel_runs(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(memory=3, words=words)
    machine.sizes["large"] = 2
    jobs, logged = play(machine, ["a", "large", "b", "c", "d"], tmp_path, monkeypatch)
    assert [job.state for job in jobs] == [State.DONE] * 5, [job.reason for job in jobs]
    message = "out of memory; continues later, with at most 2 runs at once"
    assert logged == [f"{tmp_path / 'large'}: {message}"]
    assert machine.most_at_once == 3


def test_run_fails_if_it_lacks_memory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(memory=3, words=CUDA_ERROR)
    machine.sizes["huge"] = 4
    jobs, logged = play(machine, ["huge", "a", "b"], tmp_path, monkeypatch)
    huge, *others = jobs
    assert huge.state is State.FAILED
    assert huge.reason == "torch.AcceleratorError: CUDA error: out of memory"
    assert all(job.state is State.DONE for job in others)
    assert 1 <= len(logged) <= 2


def test_killed_run_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(memory=3, words="")
    machine.exit_code = -signal.SIGKILL
    machine.sizes["large"] = 3
    jobs, _ = play(machine, ["large", "a"], tmp_path, monkeypatch)
    assert [job.state for job in jobs] == [State.DONE, State.DONE]


def test_other_failures_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(memory=3, words="semifine: the loss is not finite\n")
    machine.exit_code = UserError.exit_code
    machine.sizes["bad"] = 3
    jobs, logged = play(machine, ["bad", "a"], tmp_path, monkeypatch)
    assert [job.state for job in jobs] == [State.FAILED, State.DONE]
    assert jobs[0].reason == "the loss is not finite"
    assert not logged
