"""Mixup and CutMix of labeled images: boxes and labels as in timm, and a pure function of the seed and the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from timm.data import mixup as timm_mixup
from torch.nn.functional import cross_entropy, one_hot

from semifine.errors import UserError
from semifine.methods.base import Batch, Mixing
from semifine.methods.fixmatch import FixMatch
from semifine.methods.soc import SoC
from semifine.training.loader import BatchLoader, check_mixup, cutmix_box
from tests.conftest import open_dataset, tiny_settings


@pytest.mark.parametrize(("side", "share", "row", "column"), [(32, 0.3, 2, 30), (33, 0.5, 16, 16), (31, 1.0, 0, 7)])
def test_box_is_that_of_timm(side: int, share: float, row: int, column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    centers = iter((row, column))
    monkeypatch.setattr(np.random, "randint", lambda *_, **__: next(centers))
    expected = timm_mixup.rand_bbox((3, side, side), lam=1 - share)
    assert cutmix_box(side, share, row, column).tolist() == [int(edge) for edge in expected]


def batches(**more: Any) -> list[Batch]:
    settings = tiny_settings("soc", **more)
    dataset = open_dataset(settings)
    loader = BatchLoader(dataset.catalog, NoViews(), SoC, settings.train, torch.device("cpu"))  # type: ignore[arg-type]
    return [loader.batch(step) for step in range(40)]


class NoViews:
    """Augments nothing."""

    def augment(self, *_: object, **__: object) -> dict[str, torch.Tensor]:
        return {}


def mixings(**more: Any) -> list[Mixing]:
    return [mixing for batch in batches(**more) if (mixing := batch.labeled_mixing) is not None]


def test_label_weight_is_the_share_of_pixels_of_the_first_image() -> None:
    shares = []
    for mixing in mixings(cutmix=1.0):
        first, second = torch.zeros(3, 32, 32), torch.ones(3, 32, 32)
        count = len(mixing.index)
        images = torch.stack([first if i != mixing.index[0] else second for i in range(count)])
        if mixing.index[0] == 0:
            continue
        mixed = mixing.images(images)[0]
        assert set(mixed.unique().tolist()) <= {0.0, 1.0}
        assert mixing.weight.item() == pytest.approx(1 - mixed.mean().item(), abs=1e-6)
        shares.append(mixing.weight.item())
    assert len(set(shares)) > 10


def test_loss_is_that_of_soft_labels() -> None:
    mixing = mixings(cutmix=1.0)[3]
    count = len(mixing.index)
    logits, label = torch.randn(count, 5), torch.randint(5, (count,))
    batch = Batch({}, label, labeled_mixing=mixing)
    soft = mixing.weight * one_hot(label, 5) + (1 - mixing.weight) * one_hot(label[mixing.index], 5)
    torch.testing.assert_close(batch.labeled_loss(logits), cross_entropy(logits, soft))


def test_half_of_the_steps_blend_if_both_are_enabled() -> None:
    both, blends = mixings(cutmix=1.0, mixup=0.4), mixings(mixup=0.4)
    boxes = [mixing.box for mixing in both if mixing.box is not None]
    assert len(boxes) == len(both), "every step has the same tensors, as a CUDA graph needs"
    empty = [not box.any() for box in boxes]
    assert 10 < sum(empty) < 30
    images = torch.rand(4, 3, 32, 32)
    for mixing, blend, is_empty in zip(both, blends, empty, strict=True):
        assert torch.equal(mixing.images(images), blend.images(images)) == is_empty


def test_mixing_is_a_function_of_seed_and_step() -> None:
    first, second, other = (mixings(cutmix=1.0, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.tensors(), b.tensors(), strict=True))
    assert any(not torch.equal(a.weight, b.weight) for a, b in zip(first, other, strict=True))


def test_unlabeled_images_are_not_cut() -> None:
    assert all(batch.unlabeled_mixing is None for batch in batches(cutmix=1.0))


def test_copy_of_a_mixing_shares_no_memory() -> None:
    mixing = mixings(cutmix=1.0)[0]
    for own, copied in zip(mixing.tensors(), mixing.clone().tensors(), strict=True):
        assert torch.equal(own, copied)
        assert own.data_ptr() != copied.data_ptr()


def test_method_that_mixes_nothing_is_an_error() -> None:
    class Unmixed(FixMatch):
        supports_mixup = False

    with pytest.raises(UserError, match="does not support cutmix; omit --cutmix"):
        check_mixup(tiny_settings("soc", cutmix=1.0).train, Unmixed)
