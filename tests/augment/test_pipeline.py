"""AugmentPipeline: what views depend on, and on nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from semifine.augment.image_batch import ImageTable, upload_images
from semifine.augment.pipeline import AugmentPipeline, augmentation_names
from semifine.augment.random_numbers import BatchRandom, create_generator
from semifine.augment.settings import IMAGENET_MEAN, IMAGENET_STD, AugmentSettings
from semifine.errors import UserError
from tests.augment.helpers import CPU, make_store, smooth_image

SIZE = 40
SETTINGS = AugmentSettings(size=SIZE)
ROWS = np.array([3, 0, 7, 7, 11, 5, 2, 9])
VIEWS = ("weak", "strong", "moco_v1", "moco_v2")


@pytest.fixture(scope="module")
def store() -> SimpleNamespace:
    return make_store([smooth_image(36 + 3 * i, 72 - 2 * i, seed=i) for i in range(12)])


@pytest.fixture(scope="module")
def maker(store: SimpleNamespace) -> AugmentPipeline:
    return AugmentPipeline(store, SETTINGS, seed=0)


def test_where_no_view_is_asked_for_no_image_is_read(maker: AugmentPipeline) -> None:
    assert maker.augment(np.array([10_000]), (), step=0, stream="labeled") == {}


def test_all_views_are_known() -> None:
    assert set(VIEWS) <= set(augmentation_names())


@pytest.mark.parametrize("view", VIEWS)
def test_shape_type_and_range(maker: AugmentPipeline, view: str) -> None:
    views = maker(view, ROWS, step=0, stream="labeled")
    assert views.shape == (8, 3, SIZE, SIZE)
    assert views.dtype == torch.float32
    assert views.is_contiguous(memory_format=torch.channels_last)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    pixels = (views * std + mean) * 255
    assert pixels.min() > -0.01
    assert pixels.max() < 255.01


def test_views_are_normalized_as_by_torchvision(store: SimpleNamespace, maker: AugmentPipeline) -> None:
    without = AugmentPipeline(store, AugmentSettings(size=SIZE, mean=(0, 0, 0), std=(1, 1, 1)), seed=0)
    expected = tv.normalize(without("weak", ROWS, step=5, stream="labeled"), list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(maker("weak", ROWS, step=5, stream="labeled"), expected)


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_a_pure_function(store: SimpleNamespace, maker: AugmentPipeline, view: str) -> None:
    first = maker(view, ROWS, step=3, stream="unlabeled")
    maker(view, ROWS, step=4, stream="unlabeled")
    assert torch.equal(first, AugmentPipeline(store, SETTINGS, seed=0)(view, ROWS, step=3, stream="unlabeled"))
    assert not torch.equal(first, maker(view, ROWS, step=4, stream="unlabeled"))
    assert not torch.equal(first, maker(view, ROWS, step=3, stream="labeled"))
    assert not torch.equal(first, maker(f"{view}:2", ROWS, step=3, stream="unlabeled"))
    assert not torch.equal(first, AugmentPipeline(store, SETTINGS, seed=1)(view, ROWS, step=3, stream="unlabeled"))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("view", VIEWS)
def test_ranks_together_make_the_batch_of_one(maker: AugmentPipeline, view: str, world_size: int) -> None:
    whole = maker(view, ROWS, step=3, stream="unlabeled")
    shards = np.split(ROWS, world_size)
    parts = [maker(view, shard, 3, "unlabeled", rank, world_size) for rank, shard in enumerate(shards)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("view", VIEWS)
def test_samples_of_a_batch_get_their_own_draws(maker: AugmentPipeline, view: str) -> None:
    views = maker(view, np.zeros(16, dtype=np.int64), step=0, stream="unlabeled")
    assert len({sample.numpy().tobytes() for sample in views}) == 16


def test_several_views_at_once_equal_single_ones(maker: AugmentPipeline) -> None:
    names = ("weak", "strong", "strong:2")
    together = maker.augment(ROWS, names, step=2, stream="unlabeled")
    assert tuple(together) == names
    for name, views in together.items():
        assert torch.equal(views, maker(name, ROWS, step=2, stream="unlabeled"))


def test_rows_may_be_a_tensor(maker: AugmentPipeline) -> None:
    from_tensor = maker("weak", torch.from_numpy(ROWS), step=0, stream="labeled")
    assert torch.equal(from_tensor, maker("weak", ROWS, step=0, stream="labeled"))


@pytest.mark.parametrize("view", VIEWS)
def test_channels_last_changes_the_layout_only(store: SimpleNamespace, maker: AugmentPipeline, view: str) -> None:
    views = AugmentPipeline(store, SETTINGS, seed=0, channels_last=True)(view, ROWS, step=0, stream="s")
    assert views.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(views, maker(view, ROWS, step=0, stream="s"))


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_batch_gives_no_views(maker: AugmentPipeline, view: str) -> None:
    assert maker(view, np.zeros(0, dtype=np.int64), step=0, stream="s").shape == (0, 3, SIZE, SIZE)


def test_unknown_view_names_the_known_ones(maker: AugmentPipeline) -> None:
    with pytest.raises(UserError, match=r"Unknown view 'stong'.*strong, weak"):  # codespell:ignore stong
        maker("stong", ROWS, step=0, stream="s")  # codespell:ignore stong


def test_row_outside_the_store_is_an_error(maker: AugmentPipeline) -> None:
    with pytest.raises(IndexError):
        maker("weak", np.array([12]), step=0, stream="s")


def test_row_without_an_image_is_an_error() -> None:
    store = make_store([smooth_image(37, 50), np.zeros((0, 0, 3), dtype=np.uint8)])
    maker = AugmentPipeline(store, SETTINGS, seed=0)
    maker("strong", np.array([0]), step=0, stream="s")
    with pytest.raises(ValueError, match="Row 1 of the store has no image"):
        maker("strong", np.array([0, 1]), step=0, stream="s")


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"crop_scale": (0.5, 0.2)},
        {"crop_scale": (0.0, 1.0)},
        {"std": (0.0, 1.0, 1.0)},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        AugmentSettings(**wrong)  # type: ignore[arg-type]


def test_upload_keeps_the_bytes_of_the_rows(store: SimpleNamespace) -> None:
    table = ImageTable.from_store(store).take(ROWS)
    pixels, packed = upload_images(store.pixels, table, CPU)
    lengths = table.height * table.width * 3
    assert len(pixels) == lengths.sum()
    for i, length in enumerate(lengths):
        there, here = table.offset[i], packed.offset[i]
        assert torch.equal(pixels[here : here + length], store.pixels[there : there + length])


def test_random_numbers_of_a_rank_are_its_part_of_the_whole() -> None:
    whole = BatchRandom(create_generator(1, 2, "x"), 12)
    part = BatchRandom(create_generator(1, 2, "x"), 4, rank=1, world_size=3)
    for _ in range(2):
        assert np.array_equal(whole.uniform(5)[4:8], part.uniform(5))
        assert np.array_equal(whole.integers(14, 3)[4:8], part.integers(14, 3))


def test_random_numbers_differ_between_seeds_steps_and_names() -> None:
    keys = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b"), (0, 2**40, "a")]
    assert len({create_generator(*key).random(4).tobytes() for key in keys}) == len(keys)


def test_large_images_are_oversampled() -> None:
    small = AugmentPipeline(make_store([smooth_image(37, 50)]), SETTINGS, seed=0)
    large = AugmentPipeline(make_store([smooth_image(90, 120)]), SETTINGS, seed=0)
    assert small._oversample == 1
    assert large._oversample == 2
    views = large.augment(np.array([0, 0]), ("weak", "strong"), step=0, stream="s")
    assert all(view.shape == (2, 3, SIZE, SIZE) for view in views.values())
