"""Hints for mistyped commands and options, and the short help."""

from __future__ import annotations

import pytest

from semifine.cli.hints import COMMANDS, OPTIONS
from semifine.cli.main import VERBS, main
from semifine.cli.train import SHORT_HELP


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("trian", "Did you mean 'train'?"),  # codespell:ignore trian
        ("tset", "Did you mean 'evaluate'?"),  # codespell:ignore tset
        ("eval", "Did you mean 'evaluate'?"),
        ("train --epochs 10", "Training is measured in steps: use '--iterations' (labeled photos / batch size steps"),
        ("demo --epochs=10", "use '--iterations'"),
        ("train --time-limit 10m", "Did you mean '--time'?"),
        ("train --optim adamw", "Did you mean '--optimizer'?"),
        ("train --learning-rate 0.1 --out x", "Did you mean '--lr'?"),
        ("train --workers 4", "All CPU cores are used"),
        ("predict run photos --num-workers 4", "Did you mean '--workers'?"),
        ("reproduce table1 --workers 4", "Did you mean '--jobs'?"),
        ("train --gpu", "Use '--device cuda' for one GPU, or '--devices N' for N GPUs."),
        ("train --gpus 2", "'--devices N' for N GPUs."),
        ("predict run photos --gpu", "Use '--device cuda'."),
        ("train photos --image_size 128", "Did you mean '--image-size'?"),
        ("train --model resnet18", "Use '--backbone' for the network and '--method' for the training method."),
        ("predict --model run photos", "The model is the first argument"),
        ("evaluate run --data photos", "Paths of photos follow the run folder"),
        ("train --iteration 5", "Did you mean '--iterations'?"),
        ("train --alpha 3", "Did you mean '--method.alpha'?"),
        ("prepare --val-share 0.3", "Did you mean '--data.val_share'?"),
        ("train -o runs/x", "Did you mean '--out'?"),
        ("export run --fromat onnx", "Did you mean '--format'?"),  # codespell:ignore fromat
    ],
)
def test_hint(arguments: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert len(error.splitlines()) == 1


def test_nothing_similar_gives_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods", "--zzz"]) == 2
    assert capsys.readouterr().err == "semifine: Unknown option '--zzz'. 'semifine list --help' lists all options.\n"
    assert main(["zzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_values_are_not_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--seed", "-1", "--out", "x"]) == 2
    assert "seed must be at least 0" in capsys.readouterr().err
    assert main(["predict", "nowhere", "--", "--photos"]) == 2
    assert "--photos does not exist" in capsys.readouterr().err


def shown(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([command, option])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", SHORT_HELP)
def test_short_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, full = shown(command, "--help", capsys), shown(command, "--help-all", capsys)
    options = [name for names in SHORT_HELP[command].values() for name in names if name.startswith("--")]
    assert all(f"  {name}" in short and f"  {name}" in full for name in options)
    assert "--momentum" in full
    assert "--momentum" not in short
    assert len(short.splitlines()) < 45
    assert short.splitlines()[-1] == f"'semifine {command} --help-all' shows all settings."


def test_hints_name_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [shown(command, "--help-all" if command in SHORT_HELP else "--help", capsys) for command in VERBS]
    words = set(" ".join(texts).replace(",", " ").split())
    assert {entry.known for entry in OPTIONS} - {""} <= words
    assert set(COMMANDS.values()) <= {*VERBS, "--help", "--version"}
