"""Runs many training runs, several at once, each in its own process, and resumes where it stopped."""

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
from semifine.experiments.stages import LABELS, Stage, settings_in
from semifine.files import write_atomically
from semifine.runs.folder import RunFolder
from semifine.training.fabric import catch_stop_signals

# Settings that name other stages or a file of weights. A finished grid may be moved as a whole, so names count alone.
PLACES = ("weights", "labels", "method.teacher")


def check_is_run_of(stage: Stage, column: Path) -> None:
    """Another budget, profile or seed in the same folder would print the numbers of other runs as its own."""
    file = column / stage.name / "settings.yaml"
    difference = _difference(file, _settings_of(stage, column))
    if difference:
        key, before, now = difference
        raise UserError(
            f"{file.parent} holds a run with {key} = {before}, but now {now} is asked for; "
            "choose another --out, or give the options that the folder was begun with."
        )


def _settings_of(stage: Stage, column: Path) -> dict[str, Any]:
    """As the stage would be started, but nothing is written."""
    settings = settings_in(replace(stage, labels=None), column)
    return settings | {"labels": str(column / f"{stage.name}-{LABELS}")} if stage.labels else settings


def _difference(file: Path, wanted: Mapping[str, Any]) -> Difference | None:
    written = read_run_values(file)
    before, now = str(written["data.source"]), str(wanted["data.source"])
    if _which_data(before) != _which_data(now):
        return Difference("data.source", before, now)
    moved = {key: wanted[key] for key in PLACES if key in wanted and _name(written.get(key)) == _name(wanted[key])}
    return first_difference(read_run_settings(file, {"data.source": now, **moved}), open_and_resolve([wanted])[0])


def _which_data(source: str) -> str:
    """A published data set is the same wherever it lies; somebody's photos are those of their folder."""
    name = source.partition(":")[0]
    return source if is_own_photos(name) else name


def _name(path: Any) -> str | None:
    return Path(path).name if path else None


# The kernel kills a process with SIGKILL if the machine has no memory left.
MEMORY_EXIT_CODES = (OutOfMemory.exit_code, -signal.SIGKILL)


def reason(log: Path, exit_code: int) -> str:
    """The sentence that a run said about its mistake, else the error it ended with, else its last words."""
    lines = last_lines(log)
    said = [line.removeprefix("semifine: ") for line in lines if line.startswith("semifine: ")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (said or errors or lines or [f"ended with exit code {exit_code}"])[-1]


def last_lines(path: Path) -> list[str]:
    """The end of a file that may be long, without empty lines; nothing where there is none."""
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
    """A stage in the folder of its conditions."""

    stage: Stage
    column: Path
    state: State = State.WAITING
    reason: str = ""
    had_company: bool = False
    """Other runs took their share of the memory while this one ran."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.column / self.stage.name)

    @property
    def log(self) -> Path:
        return self.column / f"{self.stage.name}.log"

    @property
    def needs(self) -> list[Path]:
        return [self.column / name for name in self.stage.needs]

    def progress(self) -> float:
        """How much of the run is done, by its last logged step."""
        if self.state is State.DONE:
            return 1.0
        lines = last_lines(self.folder.metrics)
        try:
            return float(json.loads(lines[-1])["step"]) / float(self.stage.settings["iterations"]) if lines else 0.0
        except (json.JSONDecodeError, KeyError):
            return 0.0


def unique_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Recipes of one column share their stages: each is run once."""
    return list({(job.column, job.stage.name): job for job in jobs}.values())


def mark_finished(jobs: Sequence[Job]) -> None:
    """A run that has its result is done; what lies in a job's folder must be its run, finished or not."""
    for job in jobs:
        is_done = job.folder.result.is_file()
        if is_done or job.folder.settings.is_file():
            check_is_run_of(job.stage, job.column)
        if is_done:
            job.state = State.DONE


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    options: Sequence[str],
    on_change: Callable[[], None],
    log: Callable[[str], None] = print,
) -> None:
    """Runs all jobs in an order that their needs allow; ``on_change`` is called whenever something may be new.

    ``options`` are those of 'semifine train' that say how, not what, such as the device.

    A job that fails is marked with its reason, and so are those that need it; the rest goes on. Where memory did not
    suffice for several, fewer run at once from then on, and the job waits for its turn. When this is interrupted, the
    running ones are asked to stop, which saves them, and are waited for.
    """
    mark_finished(jobs)
    threads = max(1, usable_cores() // at_once)
    with catch_stop_signals() as stop:
        try:
            while any(job.state in (State.WAITING, State.RUNNING) for job in jobs):
                if stop.signal_number:
                    raise Interrupted(stop.signal_number)
                together = len(_running(jobs))
                crowded_out = _collect(jobs)
                if crowded_out:
                    at_once = max(1, min(at_once, together) - len(crowded_out))
                    names = ", ".join(str(job.folder.path) for job in crowded_out)
                    waiting = "it waits" if len(crowded_out) == 1 else "they wait"
                    log(
                        f"{names}: there was no memory left beside the other runs, so {waiting}; "
                        f"from now on at most {at_once} run at once"
                    )
                for job in _ready(jobs)[: max(0, at_once - len(_running(jobs)))]:
                    _start(job, options, threads)
                _note_company(jobs)
                on_change()
                time.sleep(POLL_SECONDS)
        finally:
            _stop(_running(jobs))
    on_change()


def _running(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.state is State.RUNNING]


def _note_company(jobs: Sequence[Job]) -> None:
    running = _running(jobs)
    for job in running:
        job.had_company |= len(running) > 1


def _ready(jobs: Sequence[Job]) -> list[Job]:
    """Jobs whose needs are met; those whose needs have failed fail with them."""
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
    job.column.mkdir(parents=True, exist_ok=True)
    config = job.column / f"{job.stage.name}.yaml"
    write_atomically(config, yaml.safe_dump(settings_in(job.stage, job.column), sort_keys=True))
    command = [sys.executable, "-m", "semifine", "train", "--config", str(config), "--out", str(job.folder.path)]
    command += ["--resume", "--quiet", *options]
    with job.log.open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        # In a session of its own: Ctrl-C reaches a whole terminal, and a run that is told twice stops without saving.
        job.process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    job.state, job.had_company = State.RUNNING, False


def _collect(jobs: Sequence[Job]) -> list[Job]:
    """Marks what has ended; those that found no memory beside others wait again, and are returned."""
    crowded_out = []
    for job in _running(jobs):
        assert job.process is not None
        exit_code = job.process.poll()
        if exit_code is None:
            continue
        if exit_code == 0 and job.folder.result.is_file():
            job.state = State.DONE
        elif job.had_company and exit_code in MEMORY_EXIT_CODES:
            job.state = State.WAITING
            crowded_out.append(job)
        else:
            job.state, job.reason = State.FAILED, reason(job.log, exit_code)
    return crowded_out


def _stop(jobs: Sequence[Job]) -> None:
    for job in jobs:
        assert job.process is not None
        job.process.terminate()
    for job in jobs:
        assert job.process is not None
        job.process.wait()
        job.state = State.WAITING
