"""Devices, precision, and failures of other processes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import yaml

import semifine
from semifine.errors import UserError
from semifine.models.classifier import create_classifier
from semifine.training.fabric import create_fabric, explain_peer_failures
from semifine.training.fit import fit
from semifine.training.state import convert_sync_batchnorm
from tests.conftest import tiny_settings


def test_devices_with_a_single_slurm_task_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(UserError, match="devices is 2, but SLURM started one task; start 2 with"):
        create_fabric(tiny_settings(devices=2).train)


def test_multi_gpu_run_can_be_loaded_on_a_cpu(tmp_path: Path) -> None:
    fit(tiny_settings("supervised", iterations=2), tmp_path / "run")
    before = semifine.load(tmp_path / "run", device="cpu").evaluate()
    file = tmp_path / "run" / "settings.yaml"
    settings = yaml.safe_load(file.read_text())
    for precision in ("auto", "bf16", "fp16", "fp32"):
        file.write_text(yaml.safe_dump({**settings, "sync_bn": True, "precision": precision, "devices": 8}))
        assert semifine.load(tmp_path / "run", device="cpu").evaluate() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_sync_batchnorm_conversion_keeps_outputs() -> None:
    """timm's layers contain normalization and activation; torch's conversion would drop the activation."""
    torch.manual_seed(0)
    network = create_classifier("tf_efficientnet_lite0", 5, 32).eval()
    images = torch.randn(2, 3, 32, 32)
    converted = convert_sync_batchnorm(copy.deepcopy(network))
    assert any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in converted.modules())
    assert list(converted.state_dict()) == list(network.state_dict()), "the EMA is updated tensor by tensor"
    torch.testing.assert_close(converted(images).logits, network(images).logits)


@pytest.fixture
def _connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)


def fail(log: Path, text: str) -> None:
    with explain_peer_failures(log, rank=0):
        raise RuntimeError(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log of a run in which process 1 of 3 failed and process 2 noticed it, after earlier attempts."""
    echo = "Another process of the run has ended (process 1: No wheels), so this one ends, too."
    records = [(3, "error", "Old, too."), (1, "error", "Old."), (0, "start", ""), (1, "start", ""), (2, "start", "")]
    records += [(1, "error", "No wheels."), (2, "error", echo), (0, "message", "step 3")]
    lines = [json.dumps({"process": process, "kind": kind, "text": text}) for process, kind, text in records]
    path = tmp_path / "log.jsonl"
    path.write_text('{"process": 1, "ki\n[]\n' + "\n".join(lines))
    return path


@pytest.mark.usefixtures("_connected")
def test_peer_failure_names_the_first_cause(log: Path) -> None:
    with pytest.raises(UserError, match=r"has ended \(process 1: No wheels\), so this one ends, too"):
        fail(log, "[gloo/transport/tcp/pair.cc:545] Connection reset by peer")


def test_communication_error_without_peers_is_raised(log: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        fail(log, "Connection closed")


@pytest.mark.usefixtures("_connected")
def test_other_errors_are_raised(log: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ"):
        fail(log, "shapes differ")
