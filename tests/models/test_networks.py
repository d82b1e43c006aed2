from __future__ import annotations

import pytest
import torch
from torch import nn

from semifine.models.classifier import create_classifier
from semifine.models.networks import Networks


@pytest.fixture
def views() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3, 32, 32), torch.randn(6, 3, 32, 32), torch.randn(6, 3, 32, 32)]


def network() -> nn.Module:
    torch.manual_seed(1)
    return create_classifier("test_resnet", 5, 32)


@pytest.mark.parametrize("mode", ["joint", "split", "dp2"])
def test_outputs_come_back_in_the_order_of_the_views(mode: str, views: list[torch.Tensor]) -> None:
    """In eval mode batch composition does not matter, so every mode must agree with one pass a view."""
    student = network().eval()
    outputs = Networks(student, mode=mode)(*views, without_gradient=(1,))  # type: ignore[arg-type]
    for output, view in zip(outputs, views, strict=True):
        torch.testing.assert_close(output.logits, student(view).logits, atol=1e-5, rtol=1e-4)


def test_joint_normalises_all_views_together(views: list[torch.Tensor]) -> None:
    joint = Networks(network().train())(*views)
    together = network().train()(torch.cat(views)).logits
    torch.testing.assert_close(torch.cat([output.logits for output in joint]), together)


def test_split_keeps_labelling_views_out_of_the_graph(views: list[torch.Tensor]) -> None:
    labelled, weak, strong = Networks(network().train(), mode="split")(*views, without_gradient=(1,))
    assert labelled.logits.requires_grad
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


def test_split_normalises_each_view_by_itself(views: list[torch.Tensor]) -> None:
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
