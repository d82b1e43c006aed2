"""Order, failures and resuming of many runs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semifine.errors import Interrupted
from semifine.experiments.progress import GridProgress
from semifine.experiments.scheduler import Job, State, run_jobs, unique_jobs
from semifine.experiments.stages import Stage
from tests.conftest import tiny_settings

ON_CPU = ("--device", "cpu")


def settings(method: str, **more: Any) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tiny_settings("supervised", iterations=4, **more).as_dict().items():
        if key == "method":
            continue  # settings of another method
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return {**flat, "method.name": method}


def test_student_waits_for_its_teacher_and_finished_runs_are_kept(tmp_path: Path) -> None:
    stages = [Stage("student", settings("self_training"), teacher="teacher"), Stage("teacher", settings("supervised"))]
    jobs = [Job(stage, tmp_path) for stage in stages]
    order: list[str] = []

    def watch() -> None:
        order.extend(job.stage.name for job in jobs if job.state is State.RUNNING and job.stage.name not in order)

    run_jobs(jobs, at_once=2, options=ON_CPU, on_change=watch)
    assert [job.state for job in jobs] == [State.DONE, State.DONE], [job.reason for job in jobs]
    assert order == ["teacher", "student"]
    times = {job.stage.name: job.folder.result.stat().st_mtime_ns for job in jobs}
    again = [Job(stage, tmp_path) for stage in stages]
    run_jobs(again, at_once=1, options=ON_CPU, on_change=lambda: None)
    assert {job.stage.name: job.folder.result.stat().st_mtime_ns for job in again} == times


def test_failure_has_a_reason_and_fails_only_dependent_jobs(tmp_path: Path) -> None:
    jobs = [
        Job(Stage("teacher", settings("supervised", backbone="no_such_net")), tmp_path),
        Job(Stage("student", settings("self_training"), teacher="teacher"), tmp_path),
        Job(Stage("other", settings("supervised")), tmp_path),
    ]
    console = Console(record=True, force_terminal=False, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    with GridProgress(jobs, {("Teacher", "scratch"): [jobs[:1]]}, console) as progress:
        run_jobs(jobs, at_once=2, options=ON_CPU, on_change=progress.update)
    teacher, student, other = jobs
    assert teacher.state is State.FAILED
    assert "Unknown backbone 'no_such_net'" in teacher.reason
    assert student.state is State.FAILED
    assert student.reason == "needs teacher, which failed"
    assert other.state is State.DONE
    message = console.export_text()
    assert "no_such_net" in message
    assert message.count("done") == 1


@pytest.mark.slow
def test_stopped_recipe_resumes_at_its_stage_and_step(tmp_path: Path) -> None:
    steps = 150
    long = {"iterations": steps, "save_every": steps, "evaluate_every": steps, "log_every": 1}
    stages = [
        Stage("teacher", settings("supervised")),
        Stage("student", settings("self_training") | long, teacher="teacher"),
    ]
    teacher, student = jobs = [Job(stage, tmp_path) for stage in stages]
    stopped = threading.Event()

    def stop_when_the_student_trains() -> None:
        if student.progress() > 0 and not stopped.is_set():
            stopped.set()
            assert student.process is not None
            assert os.getpgid(student.process.pid) != os.getpgid(0), "Ctrl-C in the terminal would reach it as well"
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run_jobs(jobs, at_once=1, options=ON_CPU, on_change=stop_when_the_student_trains)
    assert student.process is not None
    assert student.process.returncode == 128 + signal.SIGTERM
    assert [job.state for job in jobs] == [State.DONE, State.WAITING]
    reached = round(student.progress() * steps)
    assert 0 < reached < steps
    finished_at = teacher.folder.result.stat().st_mtime_ns

    jobs = [Job(stage, tmp_path) for stage in stages]
    run_jobs(jobs, at_once=1, options=ON_CPU, on_change=lambda: None)
    assert [job.state for job in jobs] == [State.DONE, State.DONE], [job.reason for job in jobs]
    assert teacher.folder.result.stat().st_mtime_ns == finished_at
    assert f"from step {reached} of {steps}" in student.folder.log.read_text()
    trained = [record["step"] for record in student.folder.read_metrics() if "loss" in record]
    assert trained == list(range(1, steps + 1)), "every step once"


def test_shared_stages_are_one_job(tmp_path: Path) -> None:
    stage = Stage("moco", {})
    jobs = [Job(stage, tmp_path / "a"), Job(stage, tmp_path / "a"), Job(stage, tmp_path / "b")]
    assert len(unique_jobs(jobs)) == 2
