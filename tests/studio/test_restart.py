"""``semifine studio`` as a program that is killed during a training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from semifine.data.label_log import Event, LabelLog
from semifine.runs.folder import is_locked
from semifine.studio.snapshot import ModelSnapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_training_of_a_killed_studio_saves_a_checkpoint_and_ends(
    studio_run: Path, snapshot: ModelSnapshot, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(studio_run, tmp_path / "birds", symlinks=True))
    log = LabelLog(tmp_path / "birds.studio.db")
    log.append([Event("Ada", str(snapshot.catalog.paths[int(snapshot.rows[0])]), "label", snapshot.class_names[1])])
    log.close()
    with studio(run) as url:
        assert post(url, "train", {"iterations": 100_000})["state"] == "running"
        wait_until(lambda: json.load(urlopen(f"{url}api/changes"))["training"].get("step"))
        assert is_locked(tmp_path / "birds-studio-1")
    wait_until(lambda: not is_locked(tmp_path / "birds-studio-1"))
    last = (tmp_path / "birds-studio-1" / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["kind"] == "stopped", "it was not killed but saved its state"
    assert list((tmp_path / "birds-studio-1" / "checkpoints").glob("step-*"))
