"""Properties of self-training by distillation that its specification names."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semifine.errors import UserError
from semifine.losses import distillation_loss
from semifine.methods.base import Batch, Progress
from semifine.models.forward import Networks
from semifine.training.fit import fit
from semifine.training.progress import Display
from semifine.training.step import TrainStep
from tests.conftest import tiny_settings
from tests.methods.one_step import make_batch, make_method, make_network, make_networks

PROGRESS = Progress(0, 10)


class Listener(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


def test_a_student_like_its_teacher_has_no_loss_and_no_gradient() -> None:
    student = make_network("self_training").eval()
    networks = Networks(student, frozen=copy.deepcopy(student))
    method = make_method("self_training", weight=1.0)
    loss = method(networks, make_batch(method), PROGRESS).loss
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert all(g.abs().max() < 1e-6 for g in torch.autograd.grad(loss, list(student.parameters())))


def test_weight_zero_is_supervised_on_the_labeled_images() -> None:
    method, networks = make_method("self_training", weight=0), make_networks("self_training")
    batch = make_batch(method)
    supervised = make_method("supervised")(networks, batch, PROGRESS).loss
    torch.testing.assert_close(method(networks, batch, PROGRESS).loss, supervised)


def test_the_loss_runs_over_labeled_and_unlabeled_images() -> None:
    method, networks = make_method("self_training", weight=1.0), make_networks("self_training")
    batch = make_batch(method)
    images = torch.cat([batch.labeled["weak"], batch.unlabeled["weak"]])
    student, teacher = networks.student(images).logits.softmax(1), networks.frozen(images).logits.softmax(1)
    slow = sum((t * (t / s).log()).sum() for s, t in zip(student, teacher, strict=True)) / len(images)
    torch.testing.assert_close(method(networks, batch, PROGRESS).loss, slow)


def test_the_square_of_the_temperature_keeps_the_size_of_the_gradient() -> None:
    """At high temperatures the gradient tends to the difference of the centered logits over K, whatever T is."""
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    sizes = []
    for temperature in (20.0, 40.0):
        (gradient,) = torch.autograd.grad(distillation_loss(student, teacher, temperature), student)
        sizes.append(gradient.norm().item())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_the_teacher_stays_as_it_is() -> None:
    method, networks = make_method("self_training"), make_networks("self_training", train=True)
    before = copy.deepcopy(networks.frozen.state_dict())
    for seed in range(5):
        method(networks, make_batch(method, seed), PROGRESS).loss.backward()
    torch.testing.assert_close(networks.frozen.state_dict(), before, rtol=0, atol=0)
    assert not networks.frozen.training


def test_labels_of_minus_one_are_ignored() -> None:
    method, networks = make_method("self_training"), make_networks("self_training")
    batch = make_batch(method)
    half_known = replace(batch, label=torch.tensor([0, 1, -1, -1]))
    numbers = method(networks, half_known, PROGRESS).metrics
    shorter = replace(batch, labeled={"weak": batch.labeled["weak"][:2]}, label=batch.label[:2])
    expected = make_method("supervised")(networks, shorter, PROGRESS).loss
    torch.testing.assert_close(numbers["loss_labeled"], expected.detach())


def test_the_accuracy_of_the_teacher_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = Listener()
    take_step = TrainStep.__call__

    def noted_step(step: TrainStep, batch: Batch, progress: Progress) -> None:
        display.log("a step")
        take_step(step, batch, progress)

    monkeypatch.setattr(TrainStep, "__call__", noted_step)
    fit(tiny_settings("self_training", iterations=2), tmp_path / "run", display=display)
    (said,) = [i for i, text in enumerate(display.said) if "frozen network of the method: " in text]
    assert "test top1" in display.said[said]
    assert said < display.said.index("a step")


def test_a_run_folder_of_another_backbone_teaches(tmp_path: Path) -> None:
    teacher = tiny_settings("supervised", iterations=2, backbone="resnet18")
    fit(teacher, tmp_path / "teacher", display=Listener())
    fit(
        tiny_settings("self_training", iterations=2, backbone="resnet10t", method__teacher=str(tmp_path / "teacher")),
        tmp_path / "student",
        display=Listener(),
    )


def test_a_teacher_that_expects_other_colors_is_refused(tmp_path: Path) -> None:
    fit(tiny_settings("supervised", iterations=2, backbone="resnet10t"), tmp_path / "teacher", display=Listener())
    settings = tiny_settings("self_training", method__teacher=str(tmp_path / "teacher"))
    with pytest.raises(UserError, match="colors"):
        fit(settings, tmp_path / "student", display=Listener())


def test_the_teacher_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    fit(tiny_settings("self_training", iterations=2), tmp_path / "run", display=Listener())
    state = torch.load(tmp_path / "run" / "checkpoints" / "last" / "training.pt", weights_only=True)
    assert state["method"] == {}


def test_a_missing_teacher_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--method\.teacher"):
        fit(tiny_settings("self_training", method__teacher=None), tmp_path / "run", display=Listener())
    with pytest.raises(UserError, match="nowhere"):
        fit(tiny_settings("self_training", method__teacher="nowhere"), tmp_path / "run", display=Listener())
    assert not (tmp_path / "run" / "settings.yaml").exists()


def test_a_teacher_of_other_classes_is_refused(tmp_path: Path) -> None:
    fit(tiny_settings("supervised", iterations=2, data__species=1), tmp_path / "teacher", display=Listener())
    for path in ("", "checkpoints/last/model.safetensors"):
        settings = tiny_settings("self_training", method__teacher=str(tmp_path / "teacher" / path))
        with pytest.raises(UserError, match="classes"):
            fit(settings, tmp_path / "run", display=Listener())


def test_features_without_a_classifier_cannot_teach(tmp_path: Path) -> None:
    fit(tiny_settings("moco", iterations=2), tmp_path / "features", display=Listener())
    settings = tiny_settings("self_training", method__teacher=str(tmp_path / "features"))
    with pytest.raises(UserError, match="no classifier"):
        fit(settings, tmp_path / "run", display=Listener())
