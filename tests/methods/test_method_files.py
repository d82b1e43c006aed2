"""Methods in files: of this package, and of somebody's own that lie anywhere."""

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
    start: int = setting(0, "the first number", low=0)


class Counting(Supervised):
    """Supervised, and a count of the steps."""

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
    """A method's file in the working directory."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_method.py"
    file.write_text(COUNTING)
    return file


def count_of(run: Path) -> int:
    state = torch.load(run / "checkpoints" / "last" / "training.pt", weights_only=True)
    return int(state["method"]["count"])


def test_a_run_by_a_file_goes_on_from_another_folder(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = Trainer.save

    def stop_after_first_save(trainer: Trainer) -> None:
        save(trainer)
        raise Interrupted(15)

    with monkeypatch.context() as stopped:
        stopped.setattr(Trainer, "save", stop_after_first_save)
        command = ["train", "--method", "my_method.py", "--method.start", "100", "--out", "run", "--quiet", *OPTIONS]
        assert main(command) == 128 + 15
    assert count_of(tmp_path / "run") == 102

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = str(tmp_path / "run")
    assert main(["train", "--out", run, "--resume", "--quiet"]) == 0
    assert count_of(tmp_path / "run") == 104
    assert main(["evaluate", run]) == 0
    assert main(["report", run, "--out", "report.html"]) == 0

    counting.unlink()
    assert main(["evaluate", run]) == 0, "to use a run, its method is not needed, nor run"
    capsys.readouterr()
    assert main(["train", "--out", run, "--resume", "--quiet"]) == 2
    told = capsys.readouterr().err
    assert f"The method's file {counting} cannot be read: No such file" in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_each_of_several_processes_loads_the_file(counting: Path, tmp_path: Path) -> None:  # noqa: ARG001
    command = [sys.executable, "-m", "semifine", "train", "--method", "my_method.py", "--out", "run", "--quiet"]
    done = subprocess.run(
        [*command, *OPTIONS, "--devices", "2"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert count_of(tmp_path / "run") == 4


def test_fit_takes_a_file(counting: Path, tmp_path: Path) -> None:
    own = {"name": counting, "start": 3}
    data = {"source": "synthetic", **{key.removeprefix("data."): value for key, value in FEW_IMAGES.items()}}
    semifine.fit(data, own, out="run", quiet=True, **STEPS)
    assert count_of(tmp_path / "run") == 7
    semifine.fit(data, "my_method.py", out="again", quiet=True, **STEPS | {"iterations": 1})
    assert count_of(tmp_path / "again") == 1


def test_a_file_is_read_once_until_it_is_edited(counting: Path) -> None:
    before = method_class("my_method.py")
    assert method_class(str(counting)) is before
    counting.write_text(COUNTING.replace('"counts"', '"counts anew"'))
    assert method_class("my_method.py").summary == "counts anew"


def test_names_are_left_alone_and_files_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_name("soc") == "soc"
    assert absolute_name("a/../mine.py") == str(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "must have one class with a name, derived from semifine.methods.base.Method, and has none."),
        (COUNTING.replace('    name = "counting"', "").replace("(Supervised)", "(Method)"), "and has none."),
        (
            COUNTING + "\n\nclass Second(Counting):\n    name = 'second'\n",
            "must have one class with a name, derived from semifine.methods.base.Method, and has 2.",
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
def test_what_is_wrong_with_a_file_is_one_sentence(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        method_class(str(file))
    assert str(error.value).startswith(str(file))
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (dedent(COUNTING), "methods/named_otherwise.py has no class with the name 'named_otherwise'."),
        ("import no_such_thing", "methods/named_otherwise.py cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
@pytest.mark.parametrize("command", ["list methods", "train --method named_otherwise --out run"])
def test_a_file_of_the_package_without_its_method_is_named(
    command: str,
    text: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "named_otherwise.py").write_text(text)
    for package, attribute in ((semifine.methods, "__path__"), (registry, "METHOD_FOLDERS")):
        monkeypatch.setattr(package, attribute, [*getattr(package, attribute), str(tmp_path)])
    monkeypatch.delitem(sys.modules, "semifine.methods.named_otherwise", raising=False)
    assert main(command.split()) == 2
    assert problem in capsys.readouterr().err


def test_a_run_folder_brings_no_method_along(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else's settings could else name a file that lies in the same archive."""
    counting.write_text("open('executed', 'w')")
    Path("run").mkdir()
    Path("run/settings.yaml").write_text("data: synthetic\nmethod: my_method.py\niterations: 1\n")
    assert main(["train", "--out", "run", "--resume"]) == 2
    assert "run/settings.yaml: method.name must be the absolute path" in capsys.readouterr().err
    assert not Path("executed").exists()
