"""Methods in files of this package and in files of users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import semifine
import semifine.methods
from semifine.cli.main import main
from semifine.errors import Interrupted, UserError
from semifine.methods import method_class, registry
from semifine.methods.registry import absolute_name
from semifine.training.trainer import Trainer
from tests.conftest import FEW_IMAGES
from tests.distributed.process_runs import ENVIRONMENT

COUNTING = '''
from __future__ import annotations

from dataclasses import dataclass

import torch

from semifine.fields import setting
from semifine.methods.base import Method
from semifine.methods.supervised import Supervised


@dataclass(frozen=True)
class CountingSettings:
    start: int = setting(0, "initial count", low=0)


class Counting(Supervised):
    """Supervised training that counts its steps."""

    name = "counting"
    summary = "counts"
    Settings = CountingSettings

    def __init__(self, settings, info):
        super().__init__(settings, info)
        self.register_buffer("count", torch.tensor(settings.start))

    def forward(self, networks, batch, progress):
        self.count += 1
        return super().forward(networks, batch, progress)
'''
STEPS = {"image_size": 32, "batch_size": 4, "iterations": 4, "save_every": 2, "supervised_warmup": 0, "device": "cpu"}
SMALL = {**FEW_IMAGES, **STEPS}
OPTIONS = [word for key, value in SMALL.items() for word in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a method file into the working directory."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_method.py"
    file.write_text(COUNTING)
    return file


def count_of(run: Path) -> int:
    state = torch.load(run / "checkpoints" / "last" / "training.pt", weights_only=True)
    return int(state["method"]["count"])


def test_resume_in_another_folder_loads_the_method_file(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = Trainer.save

    def stop_after_first_save(trainer: Trainer) -> None:
        save(trainer)
        raise Interrupted(15)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", stop_after_first_save)
        command = ["train", "--method", "my_method.py", "--method.start", "100", "--out", "run", "--quiet", *OPTIONS]
        assert main(command) == 128 + 15
    assert count_of(tmp_path / "run") == 102

    other_folder = tmp_path / "other_folder"
    other_folder.mkdir()
    monkeypatch.chdir(other_folder)
    run = str(tmp_path / "run")
    capsys.readouterr()
    assert main(["train", "--out", run, "--resume", "--quiet"]) == 2
    assert f"add --method {counting}." in capsys.readouterr().err
    resume = ["train", "--out", run, "--resume", "--method", str(counting), "--quiet"]
    assert main(resume) == 0
    assert count_of(tmp_path / "run") == 104
    assert main(["evaluate", run]) == 0
    assert main(["report", run, "--out", "report.html"]) == 0

    counting.unlink()
    assert main(["evaluate", run]) == 0, "evaluation must not need the method file"
    capsys.readouterr()
    assert main(resume) == 2
    message = capsys.readouterr().err
    assert f"The method file {counting} cannot be read: No such file" in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_several_processes_load_the_file(counting: Path, tmp_path: Path) -> None:  # noqa: ARG001
    command = [sys.executable, "-m", "semifine", "train", "--method", "my_method.py", "--out", "run", "--quiet"]
    process = subprocess.run(
        [*command, *OPTIONS, "--devices", "2"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert count_of(tmp_path / "run") == 4


def test_fit_with_a_method_file(counting: Path, tmp_path: Path) -> None:
    method = {"name": counting, "start": 3}
    data = {"source": "synthetic", **{key.removeprefix("data."): value for key, value in FEW_IMAGES.items()}}
    semifine.fit(data, method, out="run", quiet=True, **STEPS)
    assert count_of(tmp_path / "run") == 7
    semifine.fit(data, "my_method.py", out="again", quiet=True, **STEPS | {"iterations": 1})
    assert count_of(tmp_path / "again") == 1


def test_file_is_loaded_again_after_a_change(counting: Path) -> None:
    before = method_class("my_method.py")
    assert method_class(str(counting)) is before
    counting.write_text(COUNTING.replace('"counts"', '"edited"'))
    assert method_class("my_method.py").summary == "edited"


def test_absolute_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_name("soc") == "soc"
    assert absolute_name("a/../mine.py") == str(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "exactly one named subclass of semifine.methods.base.Method, but it contains none."),
        (COUNTING.replace('    name = "counting"', "").replace("(Supervised)", "(Method)"), "but it contains none."),
        (
            COUNTING + "\n\nclass Second(Counting):\n    name = 'second'\n",
            "exactly one named subclass of semifine.methods.base.Method, but it contains 2.",
        ),
        (COUNTING.replace('"counting"', '"soc"'), "'soc' is the name of another method; choose a different one."),
        (
            "\n\nimport no_such_thing",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing', line 3.",
        ),
        ("def f(:", "cannot be imported: SyntaxError: "),
        ("\0", "cannot be imported: "),
    ],
)
def test_invalid_file_raises_a_user_error(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        method_class(str(file))
    assert str(error.value).startswith(str(file))
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (dedent(COUNTING), "methods/unnamed.py has no class with the name 'unnamed'."),
        ("import no_such_thing", "methods/unnamed.py cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
@pytest.mark.parametrize("command", ["list methods", "train --method unnamed --out run"])
def test_packaged_file_without_its_method_is_an_error(
    command: str,
    text: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "unnamed.py").write_text(text)
    for package, attribute in ((semifine.methods, "__path__"), (registry, "METHOD_FOLDERS")):
        monkeypatch.setattr(package, attribute, [*getattr(package, attribute), str(tmp_path)])
    monkeypatch.delitem(sys.modules, "semifine.methods.unnamed", raising=False)
    assert main(command.split()) == 2
    assert problem in capsys.readouterr().err
