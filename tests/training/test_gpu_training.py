"""Acceleration on a GPU does not change the results."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.compile_fx
from safetensors.torch import load_file

from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from semifine.methods import method_class
from semifine.methods.base import Batch, Progress
from semifine.models.classifier import create_classifier
from semifine.runs.folder import RunFolder
from semifine.training.acceleration import EAGER_STEPS, GraphedStep
from semifine.training.fabric import create_fabric
from semifine.training.fit import fit
from semifine.training.init_weights import load_frozen
from semifine.training.loader import Prefetcher, place_store
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import open_dataset, tiny_settings, trained_methods

pytestmark = pytest.mark.gpu
CAPTURABLE = [name for name in trained_methods() if method_class(name).cuda_graph_safe]


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """Records the graph of each replay, since a step whose capture fails would still give equal weights."""
    replayed: list[torch.cuda.CUDAGraph] = []
    replay = torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    return replayed


def gpu_settings(method: str = "soc", **more: object) -> Any:
    return tiny_settings(method, device="cuda", **{"precision": "fp32", "cuda_graphs": "on", **more})


def run(out: Path, *, resume: bool = False, **more: Any) -> dict[str, Any]:
    return fit(gpu_settings(**more), out, resume=resume, display=Display(quiet=True))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def trainer_for(folder: Path, name: str = "soc", **more: Any) -> Trainer:
    settings, method = gpu_settings(name, **more), method_class(name)
    torch.manual_seed(0)
    dataset = open_dataset(settings)
    classes = dataset.catalog.class_names
    classifier = create_classifier(
        settings.train.backbone,
        len(classes) if method.trains_classifier else 0,
        settings.train.image_size,
        partial(method.heads, settings.method_settings),
        drop_path=settings.train.drop_path,
    )
    teacher = method.frozen_network(settings.method_settings)
    frozen = load_frozen(Path(teacher), classifier, classes, settings.train) if teacher else None
    folder.mkdir(exist_ok=True)
    fabric = create_fabric(settings.train)
    return Trainer(settings, RunFolder(folder), fabric, dataset, classifier, Display(quiet=True), frozen)


def trained(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Returns everything that steps change: student, EMA and the state of the method."""
    parts = {
        "network": trainer.train_state.student,
        "average": trainer.train_state.ema,
        "method": trainer.method,
    }
    return {
        f"{part} {name}": value
        for part, module in parts.items()
        if module is not None
        for name, value in module.state_dict().items()
    }


@pytest.mark.parametrize("place", ["gpu", "host", "disk"])
def test_storage_device_does_not_change_views(place: str) -> None:
    store = open_dataset(gpu_settings()).store
    rows = np.arange(40)
    device = torch.device("cuda", 0)
    expected = AugmentPipeline(store.to(device), AugmentSettings(size=32), seed=0, device=device).augment(
        rows, ("weak", "strong"), 3, "s"
    )
    placed, sentence = place_store(store, place, device)  # type: ignore[arg-type]
    assert sentence
    assert placed.pixels.is_cuda == (place == "gpu")
    assert not placed.pixels.is_pinned()
    assert placed.pixels is not store.pixels or place == "disk"
    views = AugmentPipeline(placed, AugmentSettings(size=32), seed=0, device=device).augment(
        rows, ("weak", "strong"), 3, "s"
    )
    for name, view in expected.items():
        assert torch.equal(views[name], view), name


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "adamw", "clip_grad": 0.1, "layer_decay": 0.7, "decay_exempt": "1d"},
        {"optimizer": "nadam"},
        {"optimizer": "rmsprop", "clip_grad": 0.1},
        {"backbone": "test_vit", "drop_path": 0.3},
        {"backbone": "test_vit", "train": "lora", "optimizer": "adamw"},
        {"train": "norm"},
        {"mixup": 0.5, "cutmix": 1.0},
    ],
    ids=lambda more: " ".join(more),
)
def test_cuda_graphs_do_not_change_modern_training(
    more: dict[str, Any], tmp_path: Path, replays: list[torch.cuda.CUDAGraph]
) -> None:
    recorded = trainer_for(tmp_path / "graphs", iterations=9, **more)
    recorded.run()
    assert len(replays) == 9 - EAGER_STEPS
    eager = trainer_for(tmp_path / "eager", iterations=9, cuda_graphs="off", **more)
    eager.run()
    found, expected = trained(recorded), trained(eager)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", CAPTURABLE)
def test_cuda_graphs_do_not_change_weights(method: str, tmp_path: Path, replays: list[torch.cuda.CUDAGraph]) -> None:
    recorded = trainer_for(tmp_path / "graphs", method, iterations=9)
    recorded.run()
    assert len(replays) == 9 - EAGER_STEPS
    eager = trainer_for(tmp_path / "eager", method, iterations=9, cuda_graphs="off")
    eager.run()
    assert len(replays) == 9 - EAGER_STEPS
    torch.testing.assert_close(trained(recorded), trained(eager), rtol=0, atol=0)


@pytest.mark.parametrize("stage", ["supervised_warmup", "supervised_cooldown"])
def test_supervised_steps_have_their_own_graph(stage: str, tmp_path: Path, replays: list[torch.cuda.CUDAGraph]) -> None:
    result = run(tmp_path / "graphs", iterations=16, **{stage: 0.5})
    assert len(replays) == 16 - 2 * EAGER_STEPS
    assert len(set(replays)) == 2
    run(tmp_path / "eager", iterations=16, cuda_graphs="off", **{stage: 0.5})
    assert result["iterations"] == 16
    torch.testing.assert_close(weights(tmp_path / "graphs"), weights(tmp_path / "eager"), rtol=0, atol=0)


def test_cuda_graph_uses_current_learning_rate(tmp_path: Path) -> None:
    """If the learning rate becomes 0, the student must not change any more."""
    trainer = trainer_for(tmp_path, iterations=20, schedule="half_cosine", horizon=10, ema=0)
    trainer.run()
    before = {name: value.clone() for name, value in trainer.train_state.student.named_parameters()}
    trainer.settings = dataclasses.replace(trainer.settings, iterations=30)
    trainer.run()
    torch.testing.assert_close(dict(trainer.train_state.student.named_parameters()), before)


def test_resumed_run_uses_cuda_graphs(tmp_path: Path, replays: list[torch.cuda.CUDAGraph]) -> None:
    class PowerCutError(Exception):
        pass

    whole, begun, later = (trainer_for(tmp_path / name, iterations=16, save_every=8) for name in ("w", "p", "p"))
    whole.run()

    def end_after_nine_steps() -> None:
        if begun.step == 9:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        begun.run(after_step=end_after_nine_steps)
    later.resume()
    assert later.step == 8
    replays.clear()
    later.run()
    assert len(replays) == 8 - EAGER_STEPS
    torch.testing.assert_close(trained(later), trained(whole), rtol=0, atol=0)


@pytest.mark.parametrize("method", CAPTURABLE)
def test_steps_do_not_wait_for_the_gpu(method: str, tmp_path: Path) -> None:
    rarely = {"iterations": 16, "log_every": 16, "evaluate_every": 16, "save_every": 16}
    trainer = trainer_for(tmp_path, method, cuda_graphs="off", **rarely)
    calls = 0

    def watch() -> None:
        nonlocal calls
        calls += 1
        torch.cuda.set_sync_debug_mode("error" if 5 <= calls < 14 else "default")

    try:
        trainer.run(after_step=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert calls == 16


def test_step_that_waits_runs_without_a_graph() -> None:
    messages: list[str] = []
    seen: list[float] = []

    def waits(batch: Batch, progress: Progress) -> None:  # noqa: ARG001
        seen.append(batch.label.sum().item())

    step = GraphedStep(waits, messages.append)
    with torch.cuda.stream(torch.cuda.Stream()):
        for number in range(6):
            step(Batch({}, torch.tensor([number], device="cuda")), Progress(number, 6))
    assert seen[-1] == 5
    assert len(messages) == 1
    assert "without" in messages[0]


def test_prefetched_batches_equal_loaded_batches(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    loader = trainer.batches.loader
    prefetcher = Prefetcher(loader, trainer.fabric.device)
    for step in (0, 1, 2, 7, 8):
        batch, expected = prefetcher.take(step), loader.batch(step)
        prefetcher.prefetch(step + 1)
        for tensor, same in zip(batch.tensors(), expected.tensors(), strict=True):
            assert torch.equal(tensor, same)


def test_network_that_cannot_be_compiled_uses_cuda_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: list[torch.cuda.CUDAGraph]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("No Triton")

    messages: list[str] = []
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", fail)
    trainer = trainer_for(tmp_path, iterations=6, compile="on")
    with trainer.display.tee(messages.append):
        trainer.run()
    assert sum("cannot be compiled (No Triton)" in text for text in messages) == 1
    assert len(replays) == 6 - EAGER_STEPS


def test_compiled_run_trains(tmp_path: Path) -> None:
    """Runs in a separate process, because the compiler leaves global state."""
    command = "train synthetic --iterations 60 --image-size 32 --batch-size 4 --device cuda --compile on --quiet --out"
    done = subprocess.run(
        [sys.executable, "-m", "semifine", *command.split(), str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "test top-1" in done.stdout
