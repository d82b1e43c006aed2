"""``semifine studio`` as a program that is killed and started again while its training goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from semifine.data.label_log import Event, LabelLog
from semifine.runs.folder import is_locked
from semifine.studio.snapshot import ModelSnapshot

pytestmark = pytest.mark.slow


@contextmanager
def studio(run: Path) -> Iterator[str]:
    """The address of a studio that is killed at the end."""
    command = [sys.executable, "-m", "semifine", "studio", str(run), "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def post(address: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(address))
    headers = {"Origin": origin, "Content-Type": "application/json"}
    return dict(json.load(urlopen(Request(f"{address}api/{action}", json.dumps(body).encode(), headers))))


def wait_for_steps(address: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        training = dict(json.load(urlopen(f"{address}api/changes"))["training"])
        if training.get("step"):
            return training
        assert time.monotonic() < deadline, training
        time.sleep(0.2)


def test_a_killed_studio_finds_its_training_again(studio_run: Path, snapshot: ModelSnapshot, tmp_path: Path) -> None:
    run = Path(shutil.copytree(studio_run, tmp_path / "birds", symlinks=True))
    log = LabelLog(tmp_path / "birds.studio.db")
    log.append([Event("Ada", str(snapshot.catalog.paths[int(snapshot.rows[0])]), "label", snapshot.class_names[1])])
    log.close()
    with studio(run) as address:
        assert post(address, "train", {"iterations": 5_000})["state"] == "running"
        first = wait_for_steps(address)
    assert is_locked(tmp_path / "birds-studio-1"), "the training outlives its studio"
    with studio(run) as address:
        again = wait_for_steps(address)
        assert again["state"] == "running"
        assert again["run"] == first["run"] == "birds-studio-1"
        assert again["step"] >= first["step"]
        with pytest.raises(HTTPError) as refused:
            post(address, "train", {})
        assert "already running" in refused.value.read().decode()
        assert post(address, "stop", {})["state"] == "stopped"
    assert not is_locked(tmp_path / "birds-studio-1")
