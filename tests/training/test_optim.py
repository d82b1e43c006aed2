"""Optimizer, EMA and learning rate schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay

from semifine.config import TrainSettings
from semifine.config.autotune import ema_is_too_slow
from semifine.errors import UserError
from semifine.methods import method_class
from semifine.models.classifier import Classifier, create_classifier
from semifine.models.ema import create_ema, update_ema
from semifine.training.acceleration import choose_acceleration
from semifine.training.fit import fit
from semifine.training.optim import (
    create_optimizer,
    learning_rate_factor,
    optimizer_is_capturable,
    optimizer_names,
    set_learning_rate,
)
from semifine.training.progress import Display
from tests.conftest import tiny_settings


@pytest.mark.parametrize(("exempt", "words"), [("bn", ["bn"]), ("bn+bias", ["bn", "bias"]), ("none", [])])
def test_weight_decay_exempts_parameters_by_name(exempt: str, words: list[str]) -> None:
    network = create_classifier("resnet18", 4, 32)
    optimizer = create_optimizer(network, TrainSettings(decay_exempt=exempt), fused=False)  # type: ignore[arg-type]
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        assert decays[id(parameter)] == (0.0 if any(word in name for word in words) else 5e-4), name


def test_downsample_norms_and_head_bias_decay_as_in_the_published_code() -> None:
    network = create_classifier("resnet18", 4, 32)
    optimizer = create_optimizer(network, TrainSettings(), fused=False)
    decaying = {id(p) for p in optimizer.param_groups[0]["params"]}
    names = {name for name, p in network.named_parameters() if id(p) in decaying}
    assert "head.bias" in names
    assert "backbone.layer2.0.downsample.1.weight" in names
    assert "backbone.bn1.weight" not in names


def test_learning_rate_is_set_in_every_group() -> None:
    optimizer = create_optimizer(create_classifier("resnet18", 4, 32), TrainSettings(), fused=False)
    set_learning_rate(optimizer, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}


def test_ema_follows_its_formula_and_copies_buffers() -> None:
    torch.manual_seed(0)
    student = create_classifier("test_resnet", 4, 32)
    teacher = create_ema(student)
    start = {name: value.clone() for name, value in teacher.state_dict().items()}
    student.train()(torch.randn(4, 3, 32, 32))
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
    update_ema(teacher, student, 0.9)
    buffers = dict(student.named_buffers())
    for name, value in student.state_dict().items():
        expected = value if name in buffers else 0.9 * start[name] + 0.1 * value
        torch.testing.assert_close(teacher.state_dict()[name], expected)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize(
    ("decay", "steps", "expected"),
    [
        (0.999, 500, True),
        (0.98, 500, False),
        (0.999, 3000, True),
        (0.997, 3000, True),
        (0.9967, 3000, False),
        (0.999, 9000, True),
        (0.999, 10_000, False),
        (0.9999, 100_000, False),
        (0.9999, 50_000, True),
    ],
)
def test_ema_over_more_than_a_tenth_of_the_run_is_too_slow(decay: float, steps: int, expected: bool) -> None:
    assert ema_is_too_slow(decay, steps) == expected


@pytest.mark.parametrize(("ema", "times"), [(0.9, 1), (0.0, 0)])
def test_run_warns_of_a_slow_ema(tmp_path: Path, capsys: pytest.CaptureFixture[str], ema: float, times: int) -> None:
    fit(tiny_settings("supervised", iterations=4, ema=ema), tmp_path / "run", display=Display())
    messages = " ".join("".join(capsys.readouterr()).split())
    assert messages.count("--ema 0.9 averages about 10 steps, which is long for a run of 4") == times


def test_cos716_ends_at_the_published_factor() -> None:
    settings = TrainSettings(iterations=50_000)
    assert learning_rate_factor(0, settings) == 1
    assert math.isclose(learning_rate_factor(50_000, settings), 0.195, abs_tol=5e-4)


def test_cos716_with_the_published_horizon_hardly_decays() -> None:
    settings = TrainSettings(iterations=400_000, horizon=2**20)
    assert math.isclose(learning_rate_factor(400_000, settings), 0.8657, abs_tol=5e-5)
    assert math.isclose(learning_rate_factor(200_000, settings), 0.966, abs_tol=5e-4)


def test_warmup_is_linear_from_zero() -> None:
    settings = TrainSettings(iterations=1000, warmup=0.1)
    assert [learning_rate_factor(step, settings) for step in (0, 50, 100)] == [0, 0.5, 1]
    assert math.isclose(learning_rate_factor(1000, settings), 0.195, abs_tol=5e-4)


def test_half_cosine_reaches_zero_at_the_last_step() -> None:
    settings = TrainSettings(iterations=1000, schedule="half_cosine")
    assert math.isclose(learning_rate_factor(500, settings), 0.5)
    assert math.isclose(learning_rate_factor(1000, settings), 0, abs_tol=1e-12)


def test_half_cosine_floor_ends_at_a_thousandth() -> None:
    settings = TrainSettings(iterations=1000, schedule="half_cosine_floor")
    factors = [learning_rate_factor(step, settings) for step in (0, 500, 1000)]
    assert factors == pytest.approx([1, 0.5005, 0.001])


def test_steps_schedule_divides_by_ten_twice() -> None:
    settings = TrainSettings(iterations=1000, schedule="steps")
    factors = [learning_rate_factor(step, settings) for step in (0, 599, 600, 799, 800, 999)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("schedule", ["cos716", "half_cosine", "half_cosine_floor", "steps"])
def test_schedules_never_rise_after_the_warmup(schedule: str) -> None:
    settings = TrainSettings(iterations=300, warmup=0.1, schedule=schedule)  # type: ignore[arg-type]
    factors = [learning_rate_factor(step, settings) for step in range(30, 301)]
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_is_that_of_pytorch(nesterov: bool) -> None:
    optimizer = create_optimizer(
        create_classifier("test_resnet", 4, 32), TrainSettings(nesterov=nesterov, momentum=0.7), fused=False
    )
    assert type(optimizer) is torch.optim.SGD
    assert {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups} == {(0.7, nesterov)}


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion", "rmsprop", "sgdw", "momentum"])
def test_optimizers_of_timm_change_weights_with_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    network = create_classifier("test_resnet", 4, 32)
    before = [parameter.clone() for parameter in network.parameters()]
    optimizer = create_optimizer(network, TrainSettings(optimizer=name, momentum=0.0, lr=1e-3), fused=False)
    network(torch.rand(4, 3, 32, 32)).logits.square().sum().backward()
    optimizer.step()
    for old, new in zip(before, network.parameters(), strict=True):
        assert new.grad is None or not new.grad.any() or not torch.equal(old, new)
    assert torch.isfinite(network.head.weight).all()
    assert not torch.equal(before[0], next(network.parameters()))


def test_unknown_optimizer_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Unknown optimizer 'adamv'\. Did you mean"):
        fit(tiny_settings("supervised", optimizer="adamv"), tmp_path / "run", display=Display(quiet=True))


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet", "test_efficientnet"])
def test_layer_decay_equals_that_of_timm_with_its_own_classifier(backbone: str) -> None:
    whole = timm.create_model(backbone, num_classes=4)
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    groups = param_groups_layer_decay(whole, layer_decay=0.7)
    expected = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    network = create_classifier(backbone, 4, whole.pretrained_cfg["input_size"][-1])
    optimizer = create_optimizer(network, TrainSettings(layer_decay=0.7, backbone_lr=0.5), fused=False)
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.backbone.named_parameters():
        assert scales[id(parameter)] == pytest.approx(0.5 * expected[name]), name
    assert scales[id(network.head.weight)] == 1


def test_1d_exempts_norms_biases_and_position_embeddings() -> None:
    network = create_classifier("test_vit", 4, 160)
    optimizer = create_optimizer(network, TrainSettings(decay_exempt="1d"), fused=False)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        exempt = name.endswith(".bias") or "norm" in name or name in ("backbone.pos_embed", "backbone.cls_token")
        assert (decays[id(parameter)] == 0) == exempt, name


def test_optimizers_that_count_on_the_host_use_no_cuda_graph() -> None:
    acceleration = choose_acceleration(
        TrainSettings(optimizer="lamb"), method_class("soc"), torch.device("cuda"), "bf16", 1
    )
    assert not acceleration.cuda_graphs
    assert acceleration.notes == ["No CUDA graph: the optimizer 'lamb' counts its steps on the host."]


@pytest.mark.parametrize("name", [name for name in optimizer_names() if optimizer_is_capturable(name)])
def test_capturable_optimizers_keep_no_numbers_on_the_host(name: str) -> None:
    """A CUDA graph would repeat a number of the host, such as a count of steps, forever."""
    optimizer = create_optimizer(Classifier(torch.nn.Linear(3, 3), 3, 3), TrainSettings(optimizer=name), fused=False)
    weight = optimizer.param_groups[0]["params"][0]
    weight.grad = torch.ones_like(weight)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.step()
    changed = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    assert changed == groups
    memory = optimizer.state[weight].values()
    assert all(value is None or isinstance(value, torch.Tensor) for value in memory)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", {"fused": True}),
        ("adamw", {"fused": True, "capturable": True}),
        ("nadam", {"capturable": True}),
        ("adagrad", {"fused": None}),
    ],
)
def test_optimizers_on_a_gpu_are_fused_and_capturable_if_they_can(name: str, expected: dict[str, bool | None]) -> None:
    network = create_classifier("test_resnet", 4, 32)
    optimizer = create_optimizer(network, TrainSettings(optimizer=name), fused=True)
    assert {key: optimizer.defaults[key] for key in expected} == expected


def clipped_gradients(max_norm: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the norms of the gradient in the steps of a run."""
    norms = []
    step = torch.optim.SGD.step

    def record(optimizer: torch.optim.SGD, *arguments: Any) -> Any:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in gradients if g is not None]).norm()))
        return step(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", record)
    settings = tiny_settings("supervised", iterations=3, clip_grad=max_norm)
    fit(settings, tmp_path / str(max_norm), display=Display(quiet=True))
    return norms


def test_gradient_is_clipped_to_its_largest_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = clipped_gradients(None, tmp_path, monkeypatch)
    limit = free[0] / 2
    monkeypatch.undo()
    assert clipped_gradients(limit, tmp_path, monkeypatch)[0] == pytest.approx(limit, rel=1e-4)


def test_small_gradients_are_not_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = clipped_gradients(None, tmp_path, monkeypatch)
    monkeypatch.undo()
    assert clipped_gradients(1e6, tmp_path, monkeypatch) == pytest.approx(free)
