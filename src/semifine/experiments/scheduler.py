"""Executes many training runs, several at once, each in its own process, and resumes interrupted ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from semifine.config import open_and_resolve, read_run_settings
from semifine.config.loading import Difference, first_difference, read_run_values
from semifine.data.parallel import usable_cores
from semifine.data.sources import is_own_photos
from semifine.errors import Interrupted, OutOfMemory, UserError
from semifine.experiments.recipes import open_dataset
from semifine.experiments.stages import LABELS, Stage, stage_settings
from semifine.files import create_folder, open_regular, write_atomically
from semifine.processes import child_environment
from semifine.runs.folder import RunFolder
from semifine.training.fabric import catch_stop_signals

# Settings with paths to other stages or weights. Only file names are compared, because the folder of a grid may move.
PATH_SETTINGS = ("weights", "labels", "method.teacher", "method.voters")


def check_same_settings(stage: Stage, column: Path) -> None:
    """Raises ``UserError`` if the folder of a stage contains a run with other settings.

    Otherwise a table could show results of another budget, profile or seed.

    Args:
        stage: The stage.
        column: Parent folder of its run.
    """
    file = column / stage.name / "settings.yaml"
    difference = _difference(file, _settings_of(stage, column))
    if difference:
        key, before, now = difference
        raise UserError(
            f"{file.parent} contains a run with {key} = {before}, but this command needs {now}; "
            "choose another --out, or repeat the options of the first command."
        )


def _settings_of(stage: Stage, column: Path) -> dict[str, Any]:
    """Returns the settings of a stage without writing its labels."""
    settings = stage_settings(replace(stage, labels=None), column)
    return settings | {"labels": str(column / f"{stage.name}-{LABELS}")} if stage.labels else settings


def _difference(file: Path, wanted: Mapping[str, Any]) -> Difference | None:
    written = read_run_values(file)
    before, now = str(written["data.source"]), str(wanted["data.source"])
    if _data_identity(before) != _data_identity(now):
        return Difference("data.source", before, now)
    moved = {
        key: wanted[key] for key in PATH_SETTINGS if key in wanted and _name(written.get(key)) == _name(wanted[key])
    }
    settings, _ = open_and_resolve([wanted], open_dataset)
    return first_difference(read_run_settings(file, {"data.source": now, **moved}), settings)


def _data_identity(source: str) -> str:
    """Returns the identity of a data set: its name, or its path for the user's own photos."""
    name = source.partition(":")[0]
    return source if is_own_photos(name) else name


def _name(path: Any) -> Any:
    """Returns the last part of a path, or of each path of a list."""
    if isinstance(path, list | tuple):
        return [_name(part) for part in path]
    return Path(path).name if path else None


# The kernel sends SIGKILL if the machine is out of memory.
MEMORY_EXIT_CODES = (OutOfMemory.exit_code, -signal.SIGKILL)


def failure_reason(log: Path, exit_code: int) -> str:
    """Returns why a run failed: its message, otherwise its exception, otherwise the last line of its log."""
    lines = last_lines(log)
    messages = [line.removeprefix("semifine: ") for line in lines if line.startswith("semifine: ")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (messages or errors or lines or [f"ended with exit code {exit_code}"])[-1]


def last_lines(path: Path) -> list[str]:
    """Returns the last lines of a file without empty ones; an empty list if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()]


POLL_SECONDS = 0.2


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Job:
    """A stage with its folder and state.

    Args:
        stage: The stage.
        column: Parent folder of the runs with the same conditions.
    """

    stage: Stage
    column: Path
    state: State = State.WAITING
    reason: str = ""
    ran_with_others: bool = False
    """Whether other runs used memory while this one ran."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(self.column / self.stage.name)

    @property
    def log(self) -> Path:
        """Output of the process."""
        return self.column / f"{self.stage.name}.log"

    @property
    def needs(self) -> list[Path]:
        """Folders of the runs that must finish first."""
        return [self.column / name for name in self.stage.needs]

    def progress(self) -> float:
        """Returns the finished fraction of the run, by its last logged step."""
        if self.state is State.DONE:
            return 1.0
        lines = last_lines(self.folder.metrics)
        try:
            return float(json.loads(lines[-1])["step"]) / float(self.stage.settings["iterations"]) if lines else 0.0
        except (ValueError, LookupError, TypeError, RecursionError):
            return 0.0


def unique_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Removes repeated jobs, because recipes with the same conditions share stages."""
    return list({(job.column, job.stage.name): job for job in jobs}.values())


def mark_finished(jobs: Sequence[Job]) -> None:
    """Marks jobs with a result as done. Raises ``UserError`` if a folder contains a run with other settings."""
    for job in jobs:
        is_done = job.folder.result.is_file()
        if is_done or job.folder.settings.is_file():
            check_same_settings(job.stage, job.column)
        if is_done:
            job.state = State.DONE


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    options: Sequence[str],
    on_change: Callable[[], None],
    log: Callable[[str], None] = print,
) -> None:
    """Executes all jobs in an order that their dependencies allow.

    A failed job is marked with its reason, together with the jobs that need it; all others continue. A job that
    runs out of memory while others run continues later, with fewer jobs at once. An interruption stops the running
    jobs, which save their state, and waits for them.

    Args:
        jobs: The jobs. Finished ones are not executed again.
        at_once: Largest number of simultaneous jobs.
        options: Options of 'semifine train' that do not change the result, such as the device.
        on_change: Called after each check of the jobs.
        log: Receives a line if memory is exhausted.

    Raises:
        Interrupted: After SIGINT or SIGTERM.
    """
    mark_finished(jobs)
    threads = max(1, usable_cores() // at_once)
    with catch_stop_signals() as stop:
        try:
            while any(job.state in (State.WAITING, State.RUNNING) for job in jobs):
                if stop.signal_number:
                    raise Interrupted(stop.signal_number)
                running_before = len(_running(jobs))
                out_of_memory = _collect(jobs)
                if out_of_memory:
                    at_once = max(1, min(at_once, running_before) - len(out_of_memory))
                    names = ", ".join(str(job.folder.path) for job in out_of_memory)
                    limit = "one run" if at_once == 1 else f"{at_once} runs"
                    log(f"{names}: out of memory; continues later, with at most {limit} at once")
                for job in _ready(jobs)[: max(0, at_once - len(_running(jobs)))]:
                    _start(job, options, threads)
                _mark_simultaneous(jobs)
                on_change()
                time.sleep(POLL_SECONDS)
        finally:
            _stop(_running(jobs))
    on_change()


def _running(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.state is State.RUNNING]


def _mark_simultaneous(jobs: Sequence[Job]) -> None:
    running = _running(jobs)
    for job in running:
        job.ran_with_others |= len(running) > 1


def _ready(jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs that can start. Jobs that need a failed job are marked as failed."""
    by_folder = {job.folder.path: job for job in jobs}
    ready = []
    for job in jobs:
        if job.state is not State.WAITING:
            continue
        needed = [by_folder[path] for path in job.needs]
        failed = next((other for other in needed if other.state is State.FAILED), None)
        if failed is not None:
            job.state, job.reason = State.FAILED, f"needs {failed.stage.name}, which failed"
        elif all(other.state is State.DONE for other in needed):
            ready.append(job)
    return ready


def _start(job: Job, options: Sequence[str], threads: int) -> None:
    create_folder(job.column)
    config = job.column / f"{job.stage.name}.yaml"
    write_atomically(config, yaml.safe_dump(stage_settings(job.stage, job.column), sort_keys=True))
    command = [sys.executable, "-m", "semifine", "train", "--config", str(config), "--out", str(job.folder.path)]
    command += ["--resume", "--quiet", *options]
    job.log.unlink(missing_ok=True)
    with open_regular(job.log, "xb") as log:
        environment = {**child_environment(), "OMP_NUM_THREADS": str(threads)}
        # New session: otherwise Ctrl-C reaches the run twice, and a second signal stops it before it has saved.
        job.process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    job.state, job.ran_with_others = State.RUNNING, False


def _collect(jobs: Sequence[Job]) -> list[Job]:
    """Updates the states of ended jobs. Returns the waiting jobs that ran out of memory while others ran."""
    out_of_memory = []
    for job in _running(jobs):
        assert job.process is not None
        exit_code = job.process.poll()
        if exit_code is None:
            continue
        if exit_code == 0 and job.folder.result.is_file():
            job.state = State.DONE
        elif job.ran_with_others and exit_code in MEMORY_EXIT_CODES:
            job.state = State.WAITING
            out_of_memory.append(job)
        else:
            job.state, job.reason = State.FAILED, failure_reason(job.log, exit_code)
    return out_of_memory


def _stop(jobs: Sequence[Job]) -> None:
    for job in jobs:
        assert job.process is not None
        job.process.terminate()
    for job in jobs:
        assert job.process is not None
        job.process.wait()
        job.state = State.WAITING
