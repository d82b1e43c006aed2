"""Devices, number formats and processes, from what is wanted and what is there."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import yaml

import semifine
from semifine.devices import inference_device
from semifine.errors import UserError
from semifine.models.classifier import create_classifier
from semifine.training.fabric import create_fabric
from semifine.training.fit import fit
from semifine.training.state import convert_sync_batchnorm
from tests.conftest import tiny_settings


def test_a_lone_task_of_slurm_is_not_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(UserError, match="devices is 2, but SLURM started one task; start 2 with"):
        create_fabric(tiny_settings(devices=2).train)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16", "fp32"])
def test_inference_computes_on_a_cpu_whatever_the_training_did(precision: str) -> None:
    device, autocast = inference_device("cpu", precision)
    assert device.type == "cpu"
    with autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


def test_a_run_of_a_larger_machine_can_be_used_on_a_small_one(tmp_path: Path) -> None:
    fit(tiny_settings("supervised", iterations=2), tmp_path / "run")
    before = semifine.load(tmp_path / "run", device="cpu").evaluate()
    file = tmp_path / "run" / "settings.yaml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**settings, "sync_bn": True, "precision": "fp16", "devices": 8}))
    assert semifine.load(tmp_path / "run", device="cpu").evaluate() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_shared_batch_statistics_leave_the_network_as_it_is() -> None:
    """timm's layers hold a normalization and an activation; torch's own conversion loses the second."""
    torch.manual_seed(0)
    network = create_classifier("tf_efficientnet_lite0", 5, 32).eval()
    images = torch.randn(2, 3, 32, 32)
    converted = convert_sync_batchnorm(copy.deepcopy(network))
    assert any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in converted.modules())
    assert list(converted.state_dict()) == list(network.state_dict()), "an average of it is taken tensor by tensor"
    torch.testing.assert_close(converted(images).logits, network(images).logits)
