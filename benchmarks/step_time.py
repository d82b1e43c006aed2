"""Compares the time of a complete training step with the bare network, and measures the parts of the step.

    python benchmarks/step_time.py --out benchmarks/results
    python benchmarks/step_time.py --backbone tf_efficientnet_lite0 --image-size 128 --compile off --cuda-graphs off

The bare step is the network on random tensors on the device, with the same passes, precision, compilation and graph
as the run, a plain loss, backward and the optimizer. The full step is the step of ``semifine train``: augmentation
of stored images, network, soft labels, backward, optimizer, EMA, metrics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semifine.config import RunSettings, resolve
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.store import ImageStore
from semifine.devices import describe_hardware
from semifine.methods.base import Batch, Progress
from semifine.models.classifier import create_classifier
from semifine.runs.folder import RunFolder
from semifine.training.acceleration import GraphedStep
from semifine.training.fabric import create_fabric, training_stream
from semifine.training.meters import AverageMeter
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from semifine.version import code_version

NOW = Progress(0, 1)


def random_dataset(options: argparse.Namespace) -> Dataset:
    """Returns noise images, 4:3, at the stored size of a run. Every class has labeled images."""
    height = round(options.image_size * 8 / 7)
    width = round(height * 4 / 3)
    labeled = 10 * options.classes
    rows = labeled + options.images
    rng = np.random.default_rng(0)
    sizes = np.full(rows, height, np.int32), np.full(rows, width, np.int32)
    store = ImageStore(
        size=height,
        pixels=torch.from_numpy(rng.integers(0, 256, rows * height * width * 3, dtype=np.uint8)),
        offset=torch.arange(rows) * (height * width * 3),
        height=torch.from_numpy(sizes[0]),
        width=torch.from_numpy(sizes[1]),
        readable=np.ones(rows, np.bool_),
        original_size=np.stack(sizes, axis=1),
        digest=np.zeros((rows, 16), np.uint8),
        phash=np.zeros((rows, 16), np.uint16),
        reasons={},
    )
    truth = np.arange(rows) % options.classes
    split = np.where(np.arange(rows) < labeled, Split.LABELED, Split.UNLABELED).astype(np.uint8)
    names = tuple(f"class {number}" for number in range(options.classes))
    label = np.where(split == Split.LABELED, truth, -1)
    paths = [f"{row}.jpg" for row in range(rows)]
    return Dataset.from_catalog(Catalog("noise", names, paths, label, split, truth, reader=None), store)  # type: ignore[arg-type]


def run_settings(options: argparse.Namespace) -> RunSettings:
    steps = options.warmup + options.steps
    chosen = {
        "data.source": "synthetic",
        "method.name": options.method,
        "backbone": options.backbone,
        "image_size": options.image_size,
        "store_size": None,
        "batch_size": options.batch_size,
        "mu": options.mu,
        "iterations": steps,
        "supervised_warmup": 0,
        "ema": 0.999,
        "forward": options.forward,
        "compile": options.compile,
        "cuda_graphs": options.cuda_graphs,
        "store": options.store,
        "precision": options.precision,
        "evaluate_every": steps,
        "log_every": 50,
    }
    if options.method == "soc":
        chosen["method.refresh"] = options.refresh
    return resolve([chosen])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_calls(call: Callable[[int], object], options: argparse.Namespace) -> float:
    """Returns the milliseconds per call over many calls without synchronization between them."""
    for number in range(options.warmup):
        call(number)
    rounds = []
    each = max(1, options.steps // 3)
    for start in range(0, each * 3, each):
        synchronize()
        started = time.perf_counter()
        for number in range(start, start + each):
            call(number)
        synchronize()
        rounds.append((time.perf_counter() - started) * 1e3 / each)
    return statistics.median(rounds)


def time_full_step(trainer: Trainer, options: argparse.Namespace) -> float:
    """Measures the training loop from the end of the warmup to the last step."""
    done, started, took = 0, 0.0, 0.0

    def after_step() -> None:
        nonlocal done, started, took
        done += 1
        if done == options.warmup:
            synchronize()
            started = time.perf_counter()
        if done == options.warmup + options.steps:
            synchronize()
            took = time.perf_counter() - started

    trainer.run(after_step=after_step)
    return took * 1e3 / options.steps


def time_bare_step(trainer: Trainer, batch: Batch, options: argparse.Namespace) -> float:
    """Measures the network with the forward passes of the method."""
    if trainer.train_state.ema is None or not batch.unlabeled:
        raise SystemExit("step_time.py needs a method with unlabeled images and an EMA network.")

    def step(batch: Batch, progress: Progress) -> None:  # noqa: ARG001
        trainer.train_state.optimizer.zero_grad()
        labeled, weak, strong = trainer.train_state.networks(
            batch.labeled["weak"], batch.unlabeled["weak"], batch.unlabeled["strong"], without_gradient=(1,)
        )
        target = weak.logits.detach().argmax(dim=1)
        loss = cross_entropy(labeled.logits, batch.label) + cross_entropy(strong.logits, target)
        trainer.fabric.backward(loss)
        trainer.train_state.optimizer.step()

    run_step = GraphedStep(step, print) if trainer.acceleration.cuda_graphs else step
    noise = batch.clone()
    for view in (*noise.labeled.values(), *noise.unlabeled.values()):
        view.normal_()
    return time_calls(lambda _: run_step(noise, NOW), options)


def as_graph(call: Callable[[], object], trainer: Trainer) -> Callable[[int], object]:
    """Returns the call as a CUDA graph if the run uses CUDA graphs."""
    if not trainer.acceleration.cuda_graphs:
        return lambda _: call()
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call()
    return lambda _: graph.replay()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = run_settings(options)
    fabric = create_fabric(settings.train)
    torch.manual_seed(0)
    classifier = create_classifier(options.backbone, options.classes, options.image_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, RunFolder(Path(folder)), fabric, random_dataset(options), classifier, Display())
        started = time.perf_counter()
        full = time_full_step(trainer, options)
        wall = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() if fabric.device.type == "cuda" else 0
    classifier.train()
    with training_stream(fabric.device):
        parts = measure_parts(trainer, options)
    images = options.batch_size * (1 + options.mu)
    return {
        "full_ms": full,
        "bare_ms": parts.pop("bare"),
        "parts_ms": parts,
        "images_per_second": images / full * 1e3,
        "peak_memory_gb": peak / 1e9,
        "compiled": trainer.acceleration.compiled,
        "graphs": trainer.acceleration.cuda_graphs,
        "first_steps_s": wall - full * options.steps / 1e3,
    }


def measure_parts(trainer: Trainer, options: argparse.Namespace) -> dict[str, float]:
    """Measures each part separately; in a step they may overlap."""
    batch = trainer.batches.take(0)
    parts = {"bare": time_bare_step(trainer, batch, options)}
    parts["augmentation"] = time_calls(trainer.batches.loader.batch, options)
    if hasattr(trainer.method, "selector"):
        probs = torch.rand(len(batch.index), options.classes, device=trainer.fabric.device).pow(8)  # type: ignore[arg-type]
        probs /= probs.sum(dim=1, keepdim=True)
        parts |= measure_soft_labels(trainer, probs, batch.index, options)

    def optimize() -> None:
        trainer.train_state.optimizer.step()
        trainer.train_state.update_ema()

    parts["optimizer and EMA"] = time_calls(as_graph(optimize, trainer), options)
    meter = AverageMeter()
    numbers = {name: torch.ones((), device=trainer.fabric.device) for name in ("loss", "loss_labeled")}
    parts["metrics"] = time_calls(as_graph(lambda: meter.update(numbers), trainer), options)
    return parts


def measure_soft_labels(
    trainer: Trainer, probs: Tensor, index: Tensor, options: argparse.Namespace
) -> dict[str, float]:
    """Measures the soft labels and, of these, transition tracking, clustering and selection."""
    selector = trainer.method.selector
    prediction = probs.argmax(dim=1)
    k = selector.granularity(probs.amax(dim=1))
    calls: dict[str, Callable[[], object]] = {
        "soft labels": lambda: selector(probs, index),
        "transition tracking": lambda: selector.tracker.update(index, prediction),
        "clustering": lambda: selector._refresh(k, selector.counts),
        "selection": lambda: selector.select(probs),
    }
    return {name: time_calls(as_graph(call, trainer), options) for name, call in calls.items()}


def show(result: dict[str, Any]) -> None:
    full, bare = result["full_ms"], result["bare_ms"]
    print(f"{'bare network':<24}{bare:8.2f} ms")
    print(f"{'full step':<24}{full:8.2f} ms   {full / bare:.3f} x the bare network")
    for name, took in result["parts_ms"].items():
        print(f"{'  ' + name:<24}{took:8.2f} ms   {100 * took / full:.1f} % of the full step, separately")
    print(f"{result['images_per_second']:.0f} images per second, {result['peak_memory_gb']:.1f} GB peak memory")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="soc")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--mu", type=int, default=5)
    parser.add_argument("--images", type=int, default=4000, help="unlabeled images")
    parser.add_argument("--forward", choices=("joint", "split", "dp2"), default="split")
    parser.add_argument("--refresh", default="all", help="clusterings that a step updates")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="on")
    parser.add_argument("--cuda-graphs", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--store", choices=("auto", "gpu", "host", "disk"), default="auto")
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--name", help="name of the result file; default: from the settings")
    parser.add_argument("--out", type=Path, help="folder for step-time-NAME.json, such as benchmarks/results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    result = measure(options)
    show(result)
    if options.out:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        name = options.name or f"{options.backbone}-{options.image_size}-{device}"
        record = {
            "command": " ".join(["python", *sys.argv]),
            "semifine": code_version(),
            "hardware": describe_hardware(device),
            "settings": {key: str(value) for key, value in vars(options).items() if key not in ("out", "name")},
            **result,
        }
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"step-time-{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
