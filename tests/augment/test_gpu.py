"""The same views on the CPU and the GPU, without a wait for the device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from tests.augment.helpers import make_store, smooth_image

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = np.arange(96) % 12
VIEWS = ("weak", "strong", "moco_v1", "moco_v2")


@pytest.fixture(scope="module")
def store() -> SimpleNamespace:
    return make_store([smooth_image(70 + 3 * i, 110 - 2 * i, seed=i) for i in range(12)])


@pytest.fixture(params=["store on the host", "store on the GPU"])
def gpu_store(request: pytest.FixtureRequest, store: SimpleNamespace) -> SimpleNamespace:
    if request.param == "store on the host":
        return store
    return SimpleNamespace(**{name: column.cuda() for name, column in vars(store).items()})


def test_gpu_equals_cpu(store: SimpleNamespace, gpu_store: SimpleNamespace) -> None:
    # Levels instead of normalized values: mean 0 and a deviation of 1/255.
    settings = AugmentSettings(size=64, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    on_cpu = AugmentPipeline(store, settings, seed=0).augment(ROWS, VIEWS, step=1, stream="s")
    on_gpu = AugmentPipeline(gpu_store, settings, seed=0, device="cuda").augment(ROWS, VIEWS, step=1, stream="s")
    assert (on_cpu["weak"] - on_gpu["weak"].cpu()).abs().max() < 0.05
    for name in ("moco_v1", "moco_v2"):
        assert (on_cpu[name] - on_gpu[name].cpu()).abs().max() < 1, "a matrix product may be in TF32"
    # A last-bit difference can cross a threshold of an operation: rare pixels, not the image.
    difference = (on_cpu["strong"] - on_gpu["strong"].cpu()).abs()
    assert difference.mean() < 0.05
    assert (difference > 1).float().mean() < 2e-3


def test_no_call_waits_for_the_device(gpu_store: SimpleNamespace) -> None:
    maker = AugmentPipeline(gpu_store, AugmentSettings(size=64), seed=0, device="cuda", channels_last=True)
    maker.augment(ROWS, VIEWS, step=0, stream="s")
    torch.cuda.set_sync_debug_mode("error")
    try:
        views = maker.augment(ROWS, VIEWS, step=1, stream="s")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(view).all() for view in views.values())


def test_views_repeat_exactly(gpu_store: SimpleNamespace) -> None:
    maker = AugmentPipeline(gpu_store, AugmentSettings(size=64), seed=0, device="cuda")
    first, again = (maker("strong", ROWS, step=1, stream="s") for _ in range(2))
    assert torch.equal(first, again)


def test_views_work_in_torchs_deterministic_mode(gpu_store: SimpleNamespace) -> None:
    maker = AugmentPipeline(gpu_store, AugmentSettings(size=64), seed=0, device="cuda")
    expected = maker.augment(ROWS, VIEWS, step=1, stream="s")
    torch.use_deterministic_algorithms(True)
    try:
        views = maker.augment(ROWS, VIEWS, step=1, stream="s")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(views[name], expected[name]) for name in VIEWS)


@pytest.mark.parametrize("comparison", ["sampling", "single operations", "random operations", "contrastive"])
def test_compiled_kernels_agree_with_torch_on_the_cpu(comparison: str) -> None:
    pytest.importorskip("triton")
    from tests.augment.kernel_comparison import COMPARISONS

    COMPARISONS[comparison](torch.device("cuda", 0))


@pytest.mark.parametrize(("view", "most"), [("weak", 4), ("strong", 14), ("moco_v1", 7), ("moco_v2", 10)])
def test_a_view_costs_few_launches(store: SimpleNamespace, view: str, most: int) -> None:
    """Copies to the device among them: the host's time for a small network's step is the time of its launches."""
    pytest.importorskip("triton")
    on_gpu = SimpleNamespace(**{name: column.cuda() for name, column in vars(store).items()})
    maker = AugmentPipeline(on_gpu, AugmentSettings(size=64), seed=0, device="cuda")
    maker(view, ROWS, step=0, stream="s")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        maker(view, ROWS, step=1, stream="s")
        torch.cuda.synchronize()
    launched = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
    assert 0 < len(launched) <= most, launched
