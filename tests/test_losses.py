from __future__ import annotations

import math

import torch

from semifine.losses import soft_cross_entropy, supervised_cross_entropy


def slow_soft_cross_entropy(logits: list[list[float]], target: list[list[float]], weight: list[float]) -> float:
    total = 0.0
    for z, q, w in zip(logits, target, weight, strict=True):
        log_sum = math.log(sum(math.exp(value) for value in z))
        total += -w * sum(probability * (value - log_sum) for probability, value in zip(q, z, strict=True))
    return total / len(logits)


def test_soft_cross_entropy_equals_a_slow_version() -> None:
    torch.manual_seed(0)
    logits, target, weight = torch.randn(7, 5), torch.rand(7, 5).softmax(1), torch.rand(7)
    slow = slow_soft_cross_entropy(logits.tolist(), target.tolist(), weight.tolist())
    assert math.isclose(soft_cross_entropy(logits, target, weight).item(), slow, rel_tol=1e-5)


def test_one_hot_targets_equal_hard_labels() -> None:
    logits, label = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    hard = supervised_cross_entropy(logits, label)
    soft = soft_cross_entropy(logits, torch.nn.functional.one_hot(label, 4).float())
    torch.testing.assert_close(hard, soft)


def test_weights_do_not_change_the_divisor() -> None:
    logits, target = torch.randn(4, 3), torch.eye(3)[[0, 1, 2, 0]]
    full = soft_cross_entropy(logits[:2], target[:2])
    half = soft_cross_entropy(logits, target, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(half, full / 2)


def test_labels_of_minus_one_are_ignored() -> None:
    logits = torch.randn(3, 4)
    label = torch.tensor([1, -1, 2])
    torch.testing.assert_close(
        supervised_cross_entropy(logits, label), supervised_cross_entropy(logits[[0, 2]], label[[0, 2]])
    )


def test_gradient_descent_lowers_the_loss() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(8, 5, requires_grad=True), torch.rand(8, 5).softmax(1)
    losses = []
    for _ in range(20):
        loss = soft_cross_entropy(logits, target)
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - gradient).detach().requires_grad_()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_half_precision_logits_give_a_float32_loss() -> None:
    logits = torch.randn(4, 3).bfloat16()
    assert soft_cross_entropy(logits, torch.eye(3)[[0, 1, 2, 0]]).dtype == torch.float32
