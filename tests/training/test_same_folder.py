"""Python, the command line, a resumed run and an experiment leave the same run folder, its calibration included."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import semifine
from semifine.cli.main import main
from semifine.config import loading
from semifine.data.catalog import Catalog
from semifine.experiments import scheduler
from tests.conftest import FEW_IMAGES

SETTINGS = {
    **FEW_IMAGES,
    "data.val_per_class": 6,
    "backbone": "test_resnet",
    "image_size": 32,
    "batch_size": 4,
    "mu": 1,
    "iterations": 2,
    "loggers": "none",
}
WITH_TIMES = ("log.jsonl", "metrics.jsonl", "result.json", "training.pt", "checksums.json", ".lock")
"""Files that contain run times, or their checksums."""
WRITTEN_AT_THE_END = ("calibration.json", "classes.safetensors", "result.json", "samples.parquet")


class ProcessInPlace:
    """Runs a command of the scheduler in this process."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self._code = main(command[3:])

    def poll(self) -> int:
        return self._code


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of runs with the same settings, named after what started them."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "source_defaults", lambda _: SETTINGS)
        patch.setattr(scheduler, "subprocess", SimpleNamespace(Popen=ProcessInPlace, STDOUT=subprocess.STDOUT))
        patch.setattr(scheduler, "POLL_SECONDS", 0.0)
        assert main(["experiment", "fixmatch", "--out", str(folder), "--budget", "1", "--device", "cpu"]) == 0
    (folder / "fixmatch").rename(folder / "experiment")
    settings = folder / "experiment" / "settings.yaml"
    assert main(["train", "--config", str(settings), "--quiet", "--out", str(folder / "command line")]) == 0
    semifine.fit(**yaml.safe_load(settings.read_text()), out=folder / "python", quiet=True)
    shutil.copytree(folder / "python", folder / "resume", symlinks=True)
    for name in WRITTEN_AT_THE_END:
        (folder / "resume" / name).unlink()
    assert main(["train", "--out", str(folder / "resume"), "--resume", "--quiet"]) == 0
    return folder


def content(run: Path) -> dict[str, bytes | None]:
    """Returns the content of each file; None for files that contain run times."""
    files = {file.relative_to(run): file for file in run.rglob("*") if file.is_file()}
    return {
        str(path): None if any(path.match(pattern) for pattern in WITH_TIMES) else file.read_bytes()
        for path, file in files.items()
    }


@pytest.mark.parametrize("started_by", ["command line", "resume", "experiment"])
def test_every_training_leaves_the_same_folder(started_by: str, runs: Path) -> None:
    expected = content(runs / "python")
    assert {"calibration.json", "result.json", "samples.parquet"} <= expected.keys()
    found = content(runs / started_by)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


def test_the_calibration_is_in_the_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "rows", lambda *_: pytest.fail("the calibration must be in the folder"))
    assert semifine.load(runs / "python", device="cpu").calibration.images == 36
