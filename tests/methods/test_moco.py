"""Properties of MoCo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import semifine
from semifine.errors import UserError
from semifine.losses import info_nce_logits, info_nce_loss
from semifine.methods.base import DataInfo, Progress
from semifine.methods.components import RingBuffer
from semifine.methods.moco import MoCo, MoCoSettings
from semifine.models.classifier import PROJECTION, create_classifier, l2_normalize
from semifine.models.ema import create_ema, update_ema
from semifine.models.pretrained import load_weights_file
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.methods.one_step import (
    UNLABELED,
    make_batch,
    make_linear_networks,
    make_method,
    make_network,
    make_networks,
)

PROGRESS = Progress(0, 10)


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4], [3, 3, 3, 3, 3], [5, 1, 4, 5]])
def test_ring_buffer_keeps_the_last_rows_in_order(sizes: list[int]) -> None:
    """Includes batches that wrap around the end of the buffer."""
    buffer = RingBuffer(torch.zeros(8, 2))
    pushed = [torch.zeros(2)] * 8
    for size in sizes:
        keys = torch.randn(size, 2)
        buffer.push(keys)
        pushed += list(keys)
    from_oldest = buffer.rows.roll(-int(buffer.slot), dims=0)
    torch.testing.assert_close(from_oldest, torch.stack(pushed[-8:]))


def test_step_pushes_its_keys_into_the_queue() -> None:
    method, networks = make_method("moco"), make_linear_networks()
    batch = make_batch(method)
    method(networks, batch, PROGRESS)
    keys = l2_normalize(networks.ema(batch.unlabeled["moco_v2:2"]).heads[PROJECTION])
    torch.testing.assert_close(method.queue.rows[:8], keys)
    assert method.queue.slot == 8


def test_keys_have_no_gradient() -> None:
    method, networks = make_method("moco"), make_linear_networks()
    batch = make_batch(method)
    for view in batch.unlabeled.values():
        view.requires_grad_()
    method(networks, batch, PROGRESS).loss.backward()
    assert batch.unlabeled["moco_v2:1"].grad.any()
    assert batch.unlabeled["moco_v2:2"].grad is None
    assert not method.queue.rows.requires_grad


@pytest.mark.parametrize(("momentum", "source"), [(1.0, "key"), (0.0, "query")])
def test_momentum_one_keeps_the_key_encoder_and_zero_copies_the_query_encoder(momentum: float, source: str) -> None:
    query = create_classifier("test_resnet", 0, 32)
    key = create_ema(create_classifier("test_resnet", 0, 32))
    expected = [p.clone() for p in (key if source == "key" else query).parameters()]
    update_ema(key, query, momentum)
    torch.testing.assert_close(list(key.parameters()), expected)


def test_logits_have_the_positive_key_first() -> None:
    query, key, negatives = (l2_normalize(torch.randn(n, 5)) for n in (3, 3, 7))
    logits = info_nce_logits(query, key, negatives, temperature=0.2)
    assert logits.shape == (3, 1 + 7)
    torch.testing.assert_close(logits[:, 0], (query * key).sum(dim=1) / 0.2)
    torch.testing.assert_close(logits[1, 1:], torch.stack([query[1] @ negative for negative in negatives]) / 0.2)
    slow = -logits.log_softmax(dim=1)[:, 0].mean()
    torch.testing.assert_close(info_nce_loss(logits), slow)


def test_gradient_descent_lowers_the_loss() -> None:
    method, networks = make_method("moco"), make_networks("moco", train=True)
    networks.ema.load_state_dict(networks.student.state_dict())
    batch = make_batch(method)
    optimizer = torch.optim.SGD(networks.student.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        method.queue.slot.zero_()  # each step replaces the same keys
        loss = method(networks, batch, PROGRESS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[1]


@pytest.mark.parametrize(("batch", "length"), [(8, 48), (10, 50), (54, 54), (60, 60)])
def test_queue_length_is_a_multiple_of_the_batch(batch: int, length: int) -> None:
    method = MoCo(MoCoSettings(groups=1), DataInfo(6, 18, UNLABELED, unlabeled_batch=batch))
    assert len(method.queue.rows) == length
    torch.testing.assert_close(method.queue.rows.norm(dim=1), torch.ones(length))


def test_versions_differ_in_head_temperature_and_views() -> None:
    first, second = make_method("moco", version="v1"), make_method("moco", version="v2")
    assert (first.temperature, second.temperature) == (0.07, 0.2)
    assert first.unlabeled_views == ("moco_v1:1", "moco_v1:2")
    assert second.unlabeled_views == ("moco_v2:1", "moco_v2:2")
    heads = [str(MoCo.heads(method.settings, 64)[PROJECTION]) for method in (first, second)]
    assert "ReLU" not in heads[0]
    assert "ReLU" in heads[1]


def test_keys_and_queries_are_grouped_differently() -> None:
    """Otherwise, the network could match a key and its query by their batch statistics."""
    method = make_method("moco", groups=2)
    groups: list[list[int]] = []

    class Recorder:
        def __call__(self, images):
            groups.append(images[:, 0, 0, 0].int().tolist())
            return make_linear_networks()(images)

        def forward_ema(self, images):
            return self(images)

    batch = make_batch(method)
    for view in batch.unlabeled.values():
        view[:, 0, 0, 0] = torch.arange(8)
    recorder = Recorder()
    method(recorder, batch, PROGRESS)
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 2, 4, 6], [1, 3, 5, 7]]


def test_groups_must_divide_the_batch() -> None:
    with pytest.raises(UserError, match=r"method\.groups"):
        make_method("moco", groups=3)
    with pytest.raises(UserError, match=r"method\.queue"):
        make_method("moco", queue=7)


def test_groups_must_divide_the_batch_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semifine.methods.moco.world_size", lambda: 8)
    info = DataInfo(6, 18, 320, unlabeled_batch=160)
    with pytest.raises(UserError, match=r"method\.groups \(8\) in each of 8 processes"):
        MoCo(MoCoSettings(groups=8), info)
    MoCo(MoCoSettings(groups=5), info)


def test_other_methods_start_from_the_backbone_with_a_fresh_classifier(tmp_path: Path) -> None:
    fit(tiny_settings("moco", iterations=3), tmp_path / "moco", display=Display(quiet=True))
    file = tmp_path / "moco" / "checkpoints" / "last" / "model.safetensors"
    torch.manual_seed(3)
    fresh = create_classifier("test_resnet", 6, 32)
    head = fresh.head.weight.clone()
    report = load_weights_file(fresh, file, keep_head=False)
    assert (len(report.matched), report.head) == (report.total, False)
    torch.testing.assert_close(fresh.head.weight, head)
    result = fit(tiny_settings("soc", iterations=2, weights=str(file)), tmp_path / "soc", display=Display(quiet=True))
    assert result["top1"] is not None


def test_simmatch_loads_the_projection(tmp_path: Path) -> None:
    fit(tiny_settings("moco", iterations=3), tmp_path / "moco", display=Display(quiet=True))
    file = tmp_path / "moco" / "checkpoints" / "last" / "model.safetensors"
    network = make_network("simmatch", seed=9)
    load_weights_file(network, file, keep_head=False)
    source = make_network("moco")
    load_weights_file(source, file, keep_head=False)
    torch.testing.assert_close(network.heads.state_dict(), source.heads.state_dict())


def test_run_without_classifier_has_no_accuracy(tmp_path: Path) -> None:
    model = semifine.fit(out=tmp_path / "run", quiet=True, **tiny_settings("moco", iterations=3).as_dict())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "top1" not in result
    assert result["unlabeled"] == {}
    for call in (model.evaluate, lambda: model.predict([np.zeros((40, 40, 3), np.uint8)])):
        with pytest.raises(UserError, match=r"no classifier.*--weights"):
            call()
