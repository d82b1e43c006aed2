"""Every command refuses the weights of a diverged training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.inference.model import load
from semifine.inference.network import DivergedError
from semifine.runs.checkpoint import save_weights
from tests.faults.test_safe_loading import renew_checksums

SENTENCE = "The weights of {} give no finite numbers (the training diverged): train again with a lower --lr."


@pytest.fixture(params=["calibrated on validation images", "without them"])
def diverged(soc_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run whose weights are finite, but so large that its logits are not."""
    run = Path(shutil.copytree(soc_folder, tmp_path / "run", symlinks=True))
    checkpoint = (run / "checkpoints" / "last").resolve()
    weights = load_file(checkpoint / "model.safetensors")
    weights["head.weight"].fill_(3e38)
    save_weights(weights, checkpoint / "model.safetensors")
    renew_checksums(checkpoint)
    if request.param == "without them":
        settings = run / "settings.yaml"
        text = settings.read_text()
        assert "val_per_class: 6" in text
        settings.write_text(text.replace("val_per_class: 6", "val_per_class: 1"))
    return run


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_commands_refuse_diverged_weights(
    diverged: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = {
        "evaluate": ["--device", "cpu"],
        "predict": [str(photos), "--device", "cpu", "--out", str(tmp_path / "p.csv")],
        "export": ["--out", str(tmp_path / "model.safetensors")],
    }
    assert main([command, str(diverged), *arguments[command]]) == 2
    printed = capsys.readouterr()
    assert f"semifine: {SENTENCE.format(diverged)}" in printed.err
    assert not printed.out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_predictions_from_python_refuse_diverged_weights(diverged: Path, photos: Path) -> None:
    with pytest.raises(DivergedError):
        load(diverged, device="cpu").predict(sorted((photos / "wet day").glob("*.PNG")))


@pytest.mark.parametrize("way", ["stop", "skip"])
def test_a_diverged_training_ends_with_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str) -> None:
    small = "--backbone test_resnet --image-size 32 --batch-size 4 --mu 2 --data.genera 3 --data.val-per-class 6"
    steps = {"stop": "2", "skip": "12"}[way]
    out = tmp_path / "run"
    command = ["train", "synthetic", *small.split(), "--lr", "100", "--iterations", steps, "--on-nonfinite", way]
    assert main([*command, "--supervised-warmup", "0", "--device", "cpu", "--quiet", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "test top-1" in printed.out
    assert printed.err == f"note: {SENTENCE.format(out)}\n"
