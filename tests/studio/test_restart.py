"""``semifine studio`` as a program that is killed and restarted while its training continues."""

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
    """Starts a studio, yields its URL, and kills it at the end."""
    command = [sys.executable, "-m", "semifine", "studio", str(run), "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def post(url: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    headers = {"Origin": origin, "Content-Type": "application/json"}
    return dict(json.load(urlopen(Request(f"{url}api/{action}", json.dumps(body).encode(), headers))))


def wait_for_steps(url: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        training = dict(json.load(urlopen(f"{url}api/changes"))["training"])
        if training.get("step"):
            return training
        assert time.monotonic() < deadline, training
        time.sleep(0.2)


def test_a_restarted_studio_continues_to_watch_its_training(
    studio_run: Path, snapshot: ModelSnapshot, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(studio_run, tmp_path / "birds", symlinks=True))
    log = LabelLog(tmp_path / "birds.studio.db")
    log.append([Event("Ada", str(snapshot.catalog.paths[int(snapshot.rows[0])]), "label", snapshot.class_names[1])])
    log.close()
    with studio(run) as url:
        assert post(url, "train", {"iterations": 5_000})["state"] == "running"
        first = wait_for_steps(url)
    assert is_locked(tmp_path / "birds-studio-1"), "the training survives its studio"
    with studio(run) as url:
        again = wait_for_steps(url)
        assert again["state"] == "running"
        assert again["run"] == first["run"] == "birds-studio-1"
        assert again["step"] >= first["step"]
        with pytest.raises(HTTPError) as refused:
            post(url, "train", {})
        assert "already running" in refused.value.read().decode()
        assert post(url, "stop", {})["state"] == "stopped"
    assert not is_locked(tmp_path / "birds-studio-1")
