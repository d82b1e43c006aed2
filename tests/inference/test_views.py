"""Predictions are averages over views, which are those of torchvision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import center_crop, five_crop, hflip, ten_crop

from semifine.cli.main import main
from semifine.errors import UserError
from semifine.inference.export import export
from semifine.inference.model import load
from semifine.inference.onnx_model import OnnxModel
from semifine.inference.views import AveragedViews
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("views") / "run"
    fit(tiny_settings("supervised", iterations=6), out, display=Display(quiet=True))
    return out


def squares(side: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(side)
    return list(torch.randint(0, 256, (3, side, side, 3), dtype=torch.uint8, generator=generator))


def expected_views(images: torch.Tensor, count: int, size: int) -> list[torch.Tensor]:
    """The views (N, S, S, 3) by torchvision, in any order."""
    channels_first = images.permute(0, 3, 1, 2)
    center = center_crop(channels_first, [size, size])
    views = {
        1: lambda: [center],
        2: lambda: [center, hflip(center)],
        5: lambda: five_crop(channels_first, [size, size]),
        10: lambda: ten_crop(channels_first, [size, size]),
    }[count]()
    return [view.permute(0, 2, 3, 1) for view in views]


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_views_are_those_of_torchvision(count: int) -> None:
    views = AveragedViews(count, image_size=28)
    images = torch.stack(squares(views.side))
    found = sorted(view.numpy().tobytes() for view in views.of(images))
    assert found == sorted(view.contiguous().numpy().tobytes() for view in expected_views(images, count, 28))
    arrays = sorted(np.ascontiguousarray(view).tobytes() for view in views.of(images.numpy()))
    assert arrays == found


@pytest.mark.parametrize("count", [2, 10])
def test_logits_are_the_mean_over_views(run: Path, count: int) -> None:
    model = load(run, device="cpu", views=count)
    images = squares(model.views.side)
    views = expected_views(torch.stack(images), count, 32)
    one_view = load(run, device="cpu")
    expected = np.mean([one_view.logits(list(view)) for view in views], axis=0)
    np.testing.assert_allclose(model.logits(images), expected, atol=1e-5)


def test_mirror_images_have_equal_predictions(run: Path) -> None:
    model = load(run, device="cpu", views=10)
    images = squares(model.views.side)
    mirrored = [image.flip(1) for image in images]
    np.testing.assert_allclose(model.logits(images), model.logits(mirrored), atol=1e-5)
    one_view = load(run, device="cpu")
    images = squares(32)
    assert not np.allclose(one_view.logits(images), one_view.logits([image.flip(1) for image in images]), atol=1e-5)


def test_exported_model_averages_the_same_views(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    export(load(run, device="cpu"), tmp_path / "model.onnx", "onnx")
    exported, model = OnnxModel(tmp_path / "model.onnx", "cpu", views=5), load(run, device="cpu", views=5)
    images = squares(model.views.side)
    np.testing.assert_allclose(exported.logits([i.numpy() for i in images]), model.logits(images), atol=1e-4)


def test_evaluation_averages_views(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--views", "10", "--device", "cpu", "--json"]) == 0
    assert '"split": "test"' in capsys.readouterr().out
    rows = np.arange(5)
    several, one = (next(load(run, device="cpu", views=count).outputs(rows)).logits for count in (10, 1))
    assert not torch.allclose(several, one)


def test_predictions_of_other_views_do_not_continue_a_table(run: Path) -> None:
    """A resumed table compares the identity of the model."""
    assert len({load(run, device="cpu", views=count).identity for count in (1, 2, 5, 10)}) == 4
    assert load(run, device="cpu").identity == load(run, device="cpu", views=2).weights_hash


def test_another_number_of_views_is_an_error(run: Path) -> None:
    with pytest.raises(UserError, match="views must be one of 1, 2, 5, 10, not 3"):
        load(run, device="cpu", views=3)
