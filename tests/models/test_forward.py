from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from semifine.errors import UserError
from semifine.models.classifier import check_image_size, create_classifier
from semifine.models.ema import create_ema
from semifine.models.forward import Networks


@pytest.fixture
def views() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3, 32, 32), torch.randn(6, 3, 32, 32), torch.randn(6, 3, 32, 32)]


def network() -> nn.Module:
    torch.manual_seed(1)
    return create_classifier("test_resnet", 5, 32)


def with_head() -> nn.Module:
    torch.manual_seed(1)
    return create_classifier("test_resnet", 5, 32, lambda dim: nn.ModuleDict({"extra": nn.Linear(dim, 3)}))


@pytest.mark.parametrize("mode", ["joint", "split", "dp2"])
def test_outputs_come_back_in_the_order_of_the_views(mode: str, views: list[torch.Tensor]) -> None:
    """In eval mode batch composition does not matter, so every mode must agree with one pass a view."""
    student = network().eval()
    outputs = Networks(student, mode=mode)(*views, without_gradient=(1,))  # type: ignore[arg-type]
    for output, view in zip(outputs, views, strict=True):
        torch.testing.assert_close(output.logits, student(view).logits, atol=1e-5, rtol=1e-4)


def test_joint_normalizes_all_views_together(views: list[torch.Tensor]) -> None:
    joint = Networks(network().train())(*views)
    together = network().train()(torch.cat(views)).logits
    torch.testing.assert_close(torch.cat([output.logits for output in joint]), together)


def test_split_keeps_labeling_views_out_of_the_graph(views: list[torch.Tensor]) -> None:
    labeled, weak, strong = Networks(network().train(), mode="split")(*views, without_gradient=(1,))
    assert labeled.logits.requires_grad
    assert strong.logits.requires_grad
    assert not weak.logits.requires_grad


def test_split_updates_statistics_from_clean_views_only(views: list[torch.Tensor]) -> None:
    student, reference = network().train(), network().train()
    Networks(student, mode="split")(*views, without_gradient=(1,))
    reference(views[1])
    reference(views[0])
    for (name, own), other in zip(student.named_buffers(), reference.buffers(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(own, other)


def test_split_normalizes_each_view_by_itself(views: list[torch.Tensor]) -> None:
    outputs = Networks(network().train(), mode="split")(*views, without_gradient=(1,))
    for output, view in zip(outputs, views, strict=True):
        torch.testing.assert_close(output.logits, network().train()(view).logits)


def test_dp2_updates_statistics_from_the_first_half_only(views: list[torch.Tensor]) -> None:
    student, reference = network().train(), network().train()
    Networks(student, mode="dp2")(*views)
    reference(torch.cat(views)[:8])
    for (name, own), other in zip(student.named_buffers(), reference.buffers(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(own, other)


@pytest.mark.parametrize("mode", ["joint", "split", "dp2"])
def test_heads_are_divided_like_logits(mode: str, views: list[torch.Tensor]) -> None:
    student = with_head().eval()
    outputs = Networks(student, mode=mode)(*views, without_gradient=(1,))  # type: ignore[arg-type]
    for output, view in zip(outputs, views, strict=True):
        torch.testing.assert_close(output.heads["extra"], student(view).heads["extra"], atol=1e-5, rtol=1e-4)


def test_heads_leave_the_random_weights_of_the_rest_as_they_are() -> None:
    with_one, without = with_head().state_dict(), network().state_dict()
    torch.testing.assert_close({name: with_one[name] for name in without}, without)


def test_the_average_normalizes_by_the_batch_and_learns_nothing(views: list[torch.Tensor]) -> None:
    teacher = create_ema(with_head())
    before = copy.deepcopy(teacher.state_dict())
    first, second = Networks(network(), teacher).forward_ema(*views[:2])
    assert not teacher.training
    assert not any(module.training for module in teacher.modules())
    for name, value in teacher.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    together = with_head().train()(torch.cat(views[:2]))
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), together.logits.detach())
    torch.testing.assert_close(second.heads["extra"], together.heads["extra"][4:].detach())
    assert not first.logits.requires_grad


def test_the_frozen_network_is_asked_as_it_is(views: list[torch.Tensor]) -> None:
    frozen = create_ema(network())
    before = copy.deepcopy(frozen.state_dict())
    (answer,) = Networks(network(), frozen=frozen).forward_frozen(views[0])
    torch.testing.assert_close(answer.logits, frozen(views[0]).logits)
    torch.testing.assert_close(frozen.state_dict(), before, rtol=0, atol=0)


def test_other_networks_are_asked_at_the_precision_of_training(views: list[torch.Tensor]) -> None:
    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    frozen = create_ema(network())
    (exact,) = Networks(network(), frozen=frozen).forward_frozen(views[0])
    (rough,) = Networks(network(), frozen=frozen, autocast=autocast).forward_frozen(views[0])
    assert rough.logits.dtype == torch.float32
    assert not torch.equal(rough.logits, exact.logits)
    torch.testing.assert_close(rough.logits, exact.logits, atol=0.1, rtol=0.1)


def test_images_that_are_too_small_raise_a_user_error() -> None:
    with pytest.raises(UserError, match="'test_convnext' cannot process images of 8 x 8 pixels"):
        check_image_size(create_classifier("test_convnext", 3, 8), "test_convnext", 8)
    check_image_size(create_classifier("test_convnext", 3, 32), "test_convnext", 32)
