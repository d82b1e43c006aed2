"""A method file runs only if the command line names it, whatever a settings file or a run folder contains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from semifine.cli.main import main
from semifine.errors import UserError
from semifine.methods import method_class
from semifine.studio.jobs import TrainingManager, TrainingOptions
from tests.faults.bad_files import finished_run
from tests.methods.test_method_files import COUNTING, OPTIONS, count_of

CODE = COUNTING + "\nopen('executed', 'w').close()\n"
PATHS = ("mine.py", "/proc/self/cwd/mine.py", "../{folder}/mine.py", "{absolute}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a method file that leaves a file behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def write_run(folder: Path, method: str) -> Path:
    """Writes a run folder, as an attacker could, whose settings name a method file."""
    run = Path(shutil.copytree(finished_run(), folder / "run", symlinks=True))
    settings = (run / "settings.yaml").read_text()
    before, _, after = settings.partition("method:\n")
    rest = after[after.index("\n", after.index("  name:")) :]
    kept = "\n".join(line for line in rest.splitlines() if not line.startswith("  "))
    (run / "settings.yaml").write_text(f"{before}{kept}\nmethod: {{name: {json.dumps(method)}}}\n")
    return run


def test_the_method_file_leaves_a_file_behind(folder: Path) -> None:
    """Verifies that the other tests can fail."""
    method_class("mine.py")
    assert (folder / "executed").exists()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "command",
    [
        "train --config theirs.yaml --out new --quiet",
        "prepare --config theirs.yaml",
        "train --out run --resume --quiet",
        "train --config run/settings.yaml --out new --quiet",
    ],
)
def test_settings_do_not_run_a_method_file(
    command: str, path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = path.format(folder=folder.name, absolute=folder / "mine.py")
    run = write_run(folder, method)
    (run / "result.json").unlink()
    Path("theirs.yaml").write_text(f"data: synthetic\nmethod: {method}\n")
    assert main(command.split()) == 2
    message = capsys.readouterr().err
    assert f"read the file, then add --method {method}." in message
    assert message.count("\n") == 1
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "command",
    [
        "evaluate run",
        "predict run photo.png",
        "report run --out report.html",
        "train --weights run --no-pretrained --out new --quiet " + " ".join(OPTIONS),
        "train --method self_training --method.teacher run --out new --quiet " + " ".join(OPTIONS),
    ],
)
def test_other_commands_never_run_it(command: str, folder: Path) -> None:
    write_run(folder, str(folder / "mine.py"))
    main(command.split())  # some of them fail for other reasons
    assert not Path("executed").exists()


def test_the_studio_does_not_train_with_it(folder: Path) -> None:
    run = write_run(folder, str(folder / "mine.py"))
    manager = TrainingManager(run, folder / "labels.db")
    with pytest.raises(UserError, match=r"mine\.py.*restart the studio with --method"):
        manager.start(run, TrainingOptions())
    assert manager.status()["state"] == "none"
    assert not Path("executed").exists()
    named = TrainingManager(run, folder / "labels.db", Path("reviewed.py"))
    assert named._method_options(run) == ["--method", str(folder / "reviewed.py")]
    assert named._method_options(finished_run()) == []


def test_a_named_file_runs_with_the_settings_of_another_folder(folder: Path) -> None:
    reviewed = folder / "reviewed"
    reviewed.mkdir()
    (reviewed / "mine.py").write_text(COUNTING)
    Path("theirs.yaml").write_text("method: {name: /nowhere/mine.py, start: 30}\n")
    command = ["train", "--config", "theirs.yaml", "--method", "reviewed/mine.py", "--out", "new", "--quiet", *OPTIONS]
    assert main(command) == 0
    assert count_of(folder / "new") == 34
    assert not Path("executed").exists(), "the file that was named runs, not the one beside the settings"


def test_a_resumed_run_needs_the_same_content_of_its_method(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--method", "mine.py", "--out", "run", "--quiet", *OPTIONS]) == 0
    environment = json.loads(Path("run/environment.json").read_text())
    assert len(environment["method_sha256"]) == 64
    Path("run/result.json").unlink()
    Path("moved").mkdir()
    shutil.move("mine.py", "moved/mine.py")
    resume = ["train", "--method", "moved/mine.py", "--out", "run", "--resume", "--quiet"]
    assert main(resume) == 0, "a moved file is the same method"
    Path("run/result.json").unlink()
    Path("moved/mine.py").write_text(CODE + "\n")
    assert main(resume) == 2
    assert f"another content of {folder}/moved/mine.py (SHA-256 " in capsys.readouterr().err
