"""What --train selects is trained and nothing else; runs with parts, drop path and CutMix resume bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from semifine.errors import UserError
from semifine.inference.export import export
from semifine.inference.model import load
from semifine.inference.prediction import ModelMetadata
from semifine.models.classifier import create_classifier
from semifine.runs.checkpoint import save_weights
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings

QUIET = Display(quiet=True)
VIT = {"backbone": "test_vit", "optimizer": "adamw", "lr": 1e-2}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Weights from which runs start, by backbone."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(9)
    for name in ("test_vit", "test_resnet"):
        save_weights(create_classifier(name, 6, 32).state_dict(), folder / f"{name}.safetensors")
    return {path.stem: path for path in folder.iterdir()}


def train(
    start: dict[str, Path], out: Path, method: str = "soc", resume: bool = False, **more: Any
) -> dict[str, Tensor]:
    """Trains from the starting weights and returns the student's changes by name of the parameter."""
    backbone = more.get("backbone", "test_resnet")
    settings = tiny_settings(method, weights=str(start[backbone]), weights_head="keep", **more)
    fit(settings, out, resume=resume, display=QUIET)
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def changed(start: dict[str, Path], backbone: str, weights: dict[str, Tensor]) -> set[str]:
    before = load_file(start[backbone])
    assert set(before) == set(weights)
    parameters = {name for name, _ in create_classifier(backbone, 6, 32).named_parameters()}
    return {name for name in parameters if not torch.equal(before[name], weights[name])}


def test_head_alone(start: dict[str, Path], tmp_path: Path) -> None:
    weights = train(start, tmp_path / "run", train="head", iterations=4)
    assert changed(start, "test_resnet", weights) == {"head.weight", "head.bias"}
    before = load_file(start["test_resnet"])
    buffers = [name for name in before if name.startswith("backbone.")]
    assert all(torch.equal(before[name], weights[name]) for name in buffers), "running statistics stay as they are"


def test_norms_and_head(start: dict[str, Path], tmp_path: Path) -> None:
    found = changed(start, "test_vit", train(start, tmp_path / "run", train="norm", iterations=3, **VIT))
    parameters = {name for name, _ in create_classifier("test_vit", 6, 32).named_parameters()}
    assert found == {name for name in parameters if "norm" in name or name.startswith("head.")}


def test_norms_of_the_last_stages(start: dict[str, Path], tmp_path: Path) -> None:
    found = changed(
        start, "test_vit", train(start, tmp_path / "run", train="norm", train_stages=2, iterations=3, **VIT)
    )
    assert {name.split(".")[2] for name in found if ".blocks." in name} == {"4", "5"}
    assert all("norm" in name or name.startswith("head.") for name in found)


def test_low_rank_updates_are_saved_merged(start: dict[str, Path], tmp_path: Path) -> None:
    weights = train(start, tmp_path / "run", train="lora", lora_rank=2, iterations=4, **VIT)
    found = changed(start, "test_vit", weights)
    linear = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    blocks = {f"backbone.blocks.{block}.{layer}" for block in range(6) for layer in linear}
    assert found == blocks | {"head.weight", "head.bias"}
    before = load_file(start["test_vit"])
    assert all(torch.linalg.matrix_rank(weights[name] - before[name], tol=1e-5) <= 2 for name in blocks)


def test_low_rank_updates_of_the_last_stages(start: dict[str, Path], tmp_path: Path) -> None:
    found = changed(
        start, "test_vit", train(start, tmp_path / "run", train="lora", train_stages=1, iterations=3, **VIT)
    )
    assert {name.split(".")[2] for name in found if ".blocks." in name} == {"5"}


def test_evaluated_accuracy_is_that_of_the_merged_network(start: dict[str, Path], tmp_path: Path) -> None:
    train(start, tmp_path / "run", train="lora", **VIT)
    model = load(tmp_path / "run", device="cpu")
    assert model.evaluate("test")["top1"] == pytest.approx(model.run.result["top1"])


def remove_newest_checkpoint(run: Path) -> None:
    for path in (run / "result.json", run / "checkpoints" / "last"):
        path.unlink()
    shutil.rmtree(max((run / "checkpoints").glob("step-*"), key=lambda path: path.name))


@pytest.mark.parametrize(
    "more",
    [
        {"train": "lora", "drop_path": 0.3, **VIT},
        {"train": "lora", "ema": 0.0, **VIT},
        {"train": "head"},
        {"cutmix": 1.0, "mixup": 0.5, "optimizer": "lamb", "clip_grad": 0.1, "mean": "0.4,0.5,0.6"},
    ],
    ids=["lora and drop path", "lora without ema", "head", "cutmix and lamb"],
)
def test_resumed_run_is_bit_identical(start: dict[str, Path], tmp_path: Path, more: dict[str, Any]) -> None:
    options = {"iterations": 4, "save_every": 2, "evaluate_every": 4, **more}
    whole = train(start, tmp_path / "run", **options)
    remove_newest_checkpoint(tmp_path / "run")
    resumed = train(start, tmp_path / "run", resume=True, **options)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_convolutional_network_without_linear_layers_is_an_error(start: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no linear layers for LoRA"):
        train(start, tmp_path / "run", train="lora")


def test_head_and_stages_are_an_error() -> None:
    with pytest.raises(UserError, match="either train head or train_stages"):
        tiny_settings("soc", train="head", train_stages=2)


def test_standard_deviation_of_zero_is_an_error() -> None:
    with pytest.raises(UserError, match="std must be three numbers above 0"):
        tiny_settings("soc", std="0.2,0,0.2")


def test_given_normalization_and_arguments_belong_to_the_run(start: dict[str, Path], tmp_path: Path) -> None:
    """Evaluation and exported files use the values with which the network was trained."""
    train(start, tmp_path / "run", iterations=2, mean="0.1,0.2,0.3", backbone_args="output_stride=16")
    model = load(tmp_path / "run", device="cpu")
    assert model.metadata.mean == (0.1, 0.2, 0.3)
    assert model.metadata.backbone_args == "output_stride=16"
    assert export(model, tmp_path / "model.safetensors", "safetensors") < 1e-5
    assert ModelMetadata.from_dict(model.metadata.as_dict()).backbone_args == "output_stride=16"


def test_cutmix_of_activations_is_an_error(start: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="omit --cutmix"):
        train(start, tmp_path / "run", train="head", cutmix=1.0)
