"""Properties of self-training by distillation."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from semifine.errors import UserError
from semifine.losses import distillation_loss
from semifine.methods.base import Batch, Progress
from semifine.models.forward import Networks
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.progress import Display
from semifine.training.step import TrainStep
from tests.conftest import tiny_settings
from tests.methods.one_step import make_batch, make_method, make_network, make_networks

PROGRESS = Progress(0, 10)


class RecordingDisplay(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.messages: list[str] = []

    def log(self, text: str) -> None:
        self.messages.append(text)


def test_loss_and_gradient_are_zero_if_student_equals_teacher() -> None:
    student = make_network("self_training").eval()
    networks = Networks(student, frozen=copy.deepcopy(student))
    method = make_method("self_training", weight=1.0)
    loss = method(networks, make_batch(method), PROGRESS).loss
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert all(g.abs().max() < 1e-6 for g in torch.autograd.grad(loss, list(student.parameters())))


def test_weight_zero_gives_the_supervised_loss() -> None:
    method, networks = make_method("self_training", weight=0), make_networks("self_training")
    batch = make_batch(method)
    supervised = make_method("supervised")(networks, batch, PROGRESS).loss
    torch.testing.assert_close(method(networks, batch, PROGRESS).loss, supervised)


def test_loss_averages_over_labeled_and_unlabeled_images() -> None:
    method, networks = make_method("self_training", weight=1.0), make_networks("self_training")
    batch = make_batch(method)
    images = torch.cat([batch.labeled["weak"], batch.unlabeled["weak"]])
    student, teacher = networks.student(images).logits.softmax(1), networks.frozen(images).logits.softmax(1)
    slow = sum((t * (t / s).log()).sum() for s, t in zip(student, teacher, strict=True)) / len(images)
    torch.testing.assert_close(method(networks, batch, PROGRESS).loss, slow)


def test_temperature_does_not_change_the_scale_of_the_gradient() -> None:
    """At high temperatures, the gradient approaches the difference of the centered logits divided by K for any T."""
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    sizes = []
    for temperature in (20.0, 40.0):
        (gradient,) = torch.autograd.grad(distillation_loss(student, teacher, temperature), student)
        sizes.append(gradient.norm().item())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_teacher_does_not_change() -> None:
    method, networks = make_method("self_training"), make_networks("self_training", train=True)
    before = copy.deepcopy(networks.frozen.state_dict())
    for seed in range(5):
        method(networks, make_batch(method, seed), PROGRESS).loss.backward()
    torch.testing.assert_close(networks.frozen.state_dict(), before, rtol=0, atol=0)
    assert not networks.frozen.training


def test_labels_of_minus_one_are_ignored() -> None:
    method, networks = make_method("self_training"), make_networks("self_training")
    batch = make_batch(method)
    half_labeled = replace(batch, label=torch.tensor([0, 1, -1, -1]))
    metrics = method(networks, half_labeled, PROGRESS).metrics
    labeled_half = replace(batch, labeled={"weak": batch.labeled["weak"][:2]}, label=batch.label[:2])
    expected = make_method("supervised")(networks, labeled_half, PROGRESS).loss
    torch.testing.assert_close(metrics["loss_labeled"], expected.detach())


def test_teacher_accuracy_is_logged_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = RecordingDisplay()
    take_step = TrainStep.__call__

    def record_step(step: TrainStep, batch: Batch, progress: Progress) -> None:
        display.log("a step")
        take_step(step, batch, progress)

    monkeypatch.setattr(TrainStep, "__call__", record_step)
    fit(tiny_settings("self_training", iterations=2), tmp_path / "run", display=display)
    (position,) = [i for i, text in enumerate(display.messages) if "frozen network of the method: " in text]
    assert "test top1" in display.messages[position]
    assert position < display.messages.index("a step")


def test_teacher_may_have_another_backbone(tmp_path: Path) -> None:
    teacher = tiny_settings("supervised", iterations=2, backbone="resnet18")
    fit(teacher, tmp_path / "teacher", display=RecordingDisplay())
    fit(
        tiny_settings(
            "self_training", iterations=2, log_every=1, backbone="resnet10t", method__teacher=str(tmp_path / "teacher")
        ),
        tmp_path / "student",
        display=RecordingDisplay(),
    )
    records = RunFolder(tmp_path / "student").read_metrics()
    losses = [record["loss_unlabeled"] for record in records if record["kind"] == "train"]
    assert losses
    assert all(loss > 0 for loss in losses), "the student learns from the teacher's predictions"
    weights = {
        name: load_file(tmp_path / name / "checkpoints/last/model.safetensors").keys()
        for name in ("teacher", "student")
    }
    assert weights["teacher"] != weights["student"]


def test_teacher_with_another_normalization_is_an_error(tmp_path: Path) -> None:
    fit(
        tiny_settings("supervised", iterations=2, backbone="resnet10t"),
        tmp_path / "teacher",
        display=RecordingDisplay(),
    )
    settings = tiny_settings("self_training", method__teacher=str(tmp_path / "teacher"))
    with pytest.raises(UserError, match="needs another normalization"):
        fit(settings, tmp_path / "student", display=RecordingDisplay())


def test_checkpoint_does_not_contain_the_teacher(tmp_path: Path) -> None:
    fit(tiny_settings("self_training", iterations=2), tmp_path / "run", display=RecordingDisplay())
    state = torch.load(tmp_path / "run" / "checkpoints" / "last" / "training.pt", weights_only=True)
    assert state["method"] == {}


def test_missing_teacher_is_an_error_before_files_are_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--method\.teacher"):
        fit(tiny_settings("self_training", method__teacher=None), tmp_path / "run", display=RecordingDisplay())
    with pytest.raises(UserError, match="nowhere"):
        fit(tiny_settings("self_training", method__teacher="nowhere"), tmp_path / "run", display=RecordingDisplay())
    assert not (tmp_path / "run" / "settings.yaml").exists()


def test_teacher_of_other_classes_is_an_error(tmp_path: Path) -> None:
    fit(tiny_settings("supervised", iterations=2, data__species=1), tmp_path / "teacher", display=RecordingDisplay())
    for path in ("", "checkpoints/last/model.safetensors"):
        settings = tiny_settings("self_training", method__teacher=str(tmp_path / "teacher" / path))
        with pytest.raises(UserError, match="classes"):
            fit(settings, tmp_path / "run", display=RecordingDisplay())


def test_teacher_without_classifier_is_an_error(tmp_path: Path) -> None:
    fit(tiny_settings("moco", iterations=2), tmp_path / "features", display=RecordingDisplay())
    settings = tiny_settings("self_training", method__teacher=str(tmp_path / "features"))
    with pytest.raises(UserError, match="no classifier"):
        fit(settings, tmp_path / "run", display=RecordingDisplay())
