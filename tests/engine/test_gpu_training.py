"""The means of speed on a GPU change nothing but the time."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semifine.engine.dataset import open_dataset
from semifine.engine.devices import create_fabric
from semifine.engine.display import Display
from semifine.engine.graphs import GraphedStep
from semifine.engine.placement import place_store
from semifine.engine.prefetch import Prefetcher
from semifine.engine.trainer import Trainer
from semifine.engine.training import train
from semifine.methods.base import Batch, Progress
from semifine.models.classifier import create_classifier
from semifine.run_folder import RunFolder
from semifine.views import ViewMaker, ViewSettings
from tests.conftest import tiny_settings

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


def gpu_settings(method: str = "soc", **more: object) -> Any:
    return tiny_settings(method, device="cuda", **{"precision": "fp32", "cuda_graphs": "on", **more})


def run(out: Path, *, resume: bool = False, **more: Any) -> dict[str, Any]:
    return train(gpu_settings(**more), out, resume=resume, display=Display(quiet=True))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def trainer_for(folder: Path, **more: Any) -> Trainer:
    settings = gpu_settings(**more)
    torch.manual_seed(0)
    dataset = open_dataset(settings, Display(quiet=True))
    classifier = create_classifier(settings.train.backbone, dataset.catalog.num_classes, settings.train.image_size)
    fabric = create_fabric(settings.train)
    return Trainer(settings, RunFolder(folder), fabric, dataset, classifier, Display(quiet=True))


@pytest.mark.parametrize("place", ["gpu", "host", "disk"])
def test_every_place_of_the_store_gives_the_same_views(place: str) -> None:
    store = open_dataset(gpu_settings(), Display(quiet=True)).store
    rows = np.arange(40)
    device = torch.device("cuda", 0)
    expected = ViewMaker(store.to(device), ViewSettings(size=32), seed=0, device=device).make(
        rows, ("weak", "strong", "test"), 3, "s"
    )
    placed, sentence = place_store(store, place, device)  # type: ignore[arg-type]
    assert sentence
    assert placed.pixels.is_cuda == (place == "gpu")
    assert not placed.pixels.is_pinned()
    assert placed.pixels is not store.pixels or place == "disk"
    views = ViewMaker(placed, ViewSettings(size=32), seed=0, device=device).make(
        rows, ("weak", "strong", "test"), 3, "s"
    )
    for name, view in expected.items():
        assert torch.equal(views[name], view), name


@pytest.mark.parametrize("method", ["supervised", "fixmatch", "soc"])
def test_a_run_with_graphs_learns_what_a_run_without_them_learns(method: str, tmp_path: Path) -> None:
    run(tmp_path / "graphs", method=method)
    run(tmp_path / "eager", method=method, cuda_graphs="off")
    torch.testing.assert_close(weights(tmp_path / "graphs"), weights(tmp_path / "eager"), rtol=0, atol=0)


def test_phases_of_a_run_have_their_own_graphs(tmp_path: Path) -> None:
    result = run(tmp_path / "graphs", iterations=16, labelled_first=0.5)
    run(tmp_path / "eager", iterations=16, labelled_first=0.5, cuda_graphs="off")
    assert result["iterations"] == 16
    torch.testing.assert_close(weights(tmp_path / "graphs"), weights(tmp_path / "eager"), rtol=0, atol=0)


def test_a_graph_reads_the_learning_rate_anew(tmp_path: Path) -> None:
    """With a learning rate of 0 from some step on, the student must stand still."""
    trainer = trainer_for(tmp_path, iterations=20, schedule="half_cosine", horizon=10, ema=0)
    trainer.run()
    before = {name: value.clone() for name, value in trainer.learner.classifier.named_parameters()}
    trainer.settings = dataclasses.replace(trainer.settings, iterations=30)
    trainer.run()
    torch.testing.assert_close(dict(trainer.learner.classifier.named_parameters()), before)


def test_a_resumed_run_goes_on_with_graphs(tmp_path: Path) -> None:
    run(tmp_path / "whole", iterations=16, save_every=8)
    (tmp_path / "parts").mkdir()
    trainer = trainer_for(tmp_path / "parts", iterations=16)
    trainer.settings = dataclasses.replace(trainer.settings, iterations=8)
    trainer.run()
    assert trainer.step == 8
    later = trainer_for(tmp_path / "parts", iterations=16)
    later.resume()
    assert later.step == 8
    later.run()
    assert later.step == 16


def test_no_step_waits_for_the_gpu(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, iterations=40, log_every=40, evaluate_every=40, save_every=40, cuda_graphs="off")
    calls = 0

    def watch() -> None:
        nonlocal calls
        calls += 1
        torch.cuda.set_sync_debug_mode("error" if 5 <= calls < 38 else "default")

    try:
        trainer.run(after_step=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert calls == 40


def test_a_step_that_waits_is_not_recorded_and_goes_on() -> None:
    said: list[str] = []
    seen: list[float] = []

    def waits(batch: Batch, progress: Progress) -> None:  # noqa: ARG001
        seen.append(batch.label.sum().item())

    step = GraphedStep(waits, said.append)
    with torch.cuda.stream(torch.cuda.Stream()):
        for number in range(6):
            step(Batch({}, torch.tensor([number], device="cuda")), Progress(number, 6))
    assert seen[-1] == 5
    assert len(said) == 1
    assert "without" in said[0]


def test_prefetched_batches_are_those_of_the_feed(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    feed = trainer.batches.feed
    prefetcher = Prefetcher(feed, trainer.fabric.device)
    for step in (0, 1, 2, 7, 8):
        batch, expected = prefetcher.take(step), feed.batch(step)
        prefetcher.prepare(step + 1)
        for tensor, same in zip(batch.tensors(), expected.tensors(), strict=True):
            assert torch.equal(tensor, same)


def test_a_compiled_run_trains(tmp_path: Path) -> None:
    """In a process of its own, as compilers leave much behind."""
    command = "train synthetic --iterations 60 --image-size 32 --batch-size 4 --device cuda --compile on --quiet --out"
    done = subprocess.run(
        [sys.executable, "-m", "semifine", *command.split(), str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "test top-1" in done.stdout
