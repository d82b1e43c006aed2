"""A run beside photos is no class; a folder with photos always is."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.data.sources import scan
from semifine.data.sources.scan import holds_runs_alone
from semifine.runs import folder


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


BEGUN = ("settings.yaml", "checkpoints/last/model.safetensors", "log.jsonl")
ATTEMPT = (".lock", "log.jsonl")


@pytest.mark.parametrize("files", [BEGUN, ATTEMPT], ids=["begun", "attempt"])
@pytest.mark.parametrize("inside", [".", "one", "two"])
def test_a_run_or_a_folder_of_runs(tmp_path: Path, files: tuple[str, ...], inside: str) -> None:
    touch(tmp_path / inside, *files)
    touch(tmp_path, "notes.txt", "empty/table.csv")
    assert holds_runs_alone(tmp_path)


@pytest.mark.parametrize("photo", ["a.jpg", "site/a.jpg", "site/day/a.jpg"])
def test_a_folder_with_photos_is_none_even_with_a_run_in_it(tmp_path: Path, photo: str) -> None:
    touch(tmp_path / "run", *BEGUN)
    touch(tmp_path, photo)
    assert not holds_runs_alone(tmp_path)


@pytest.mark.parametrize("files", [("settings.yaml",), ("log.jsonl",), (".lock",), ("checkpoints/x",), ("notes.txt",)])
def test_one_of_the_files_alone_is_somebody_elses(tmp_path: Path, files: tuple[str, ...]) -> None:
    touch(tmp_path, *files)
    assert not holds_runs_alone(tmp_path)


def test_the_names_in_a_run_folder_are_those_of_the_runs_package(tmp_path: Path) -> None:
    run = folder.RunFolder(tmp_path)
    assert scan.RUN_LOCK == folder.LOCK
    assert (
        run.settings.name,
        run.checkpoints.name,
        run.log.name,
    ) == (scan.RUN_SETTINGS, scan.RUN_CHECKPOINTS, scan.RUN_LOG)
