"""Measures time and memory against the number of classes, the batch size and the number of images.

    python benchmarks/scaling.py --out benchmarks/results

SoftLabelSelector is measured as in soc_core.py, with a full window, as a training step calls it; on a GPU as a CUDA
graph.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import torch

import soc_core
from semifine.augment.image_batch import ImageTable
from semifine.augment.pipeline import AugmentPipeline
from semifine.augment.settings import AugmentSettings
from semifine.data.samplers import IndexSampler
from semifine.devices import describe_hardware
from semifine.soft_labels import TransitionTracker
from semifine.version import code_version

SIDE = 64


def selector_costs(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Measures a step of SoftLabelSelector against the number of classes and the batch size."""
    sizes = [(classes, 160) for classes in options.classes] + [(200, batch) for batch in options.batches]
    rows = []
    for classes, batch in sizes:
        settings = argparse.Namespace(**{**vars(options), "batch": batch})
        window = soc_core.full_window(classes, settings)
        line = soc_core.measure(device, window, (classes, "auto", device.type == "cpu"), settings)
        best = line.median_ms if line.graph_ms is None else line.graph_ms
        memory = line.state_mb if line.peak_device_mb is None else line.peak_device_mb
        rows.append({"classes": classes, "batch": batch, "ms": best, "refresh": line.refresh, "memory_mb": memory})
        print(
            f"selector K {classes:>6}  batch {batch:>4}  {line.refresh:>9}  {best:8.2f} ms  {memory:8.1f} MB",
            flush=True,
        )
    return rows


def sampler_costs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the indices of a batch, and the memory of sampler and label bank, against the number of images."""
    rows = []
    for images in options.images:
        tracemalloc.start()
        sampler = IndexSampler(images, 160, seed=0)
        started = time.perf_counter()
        for step in range(1000):
            sampler.batch(step)
        took = (time.perf_counter() - started) * 1e3 / 1000
        memory = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        bank = TransitionTracker(200, images, window=1).bank.nbytes / 2**20
        rows.append({"images": images, "ms": took, "memory_mb": memory, "bank_mb": bank})
        print(f"sampler {images:>9} images  {took:8.4f} ms per batch  {memory:6.1f} MB, bank {bank:.1f} MB", flush=True)
    return rows


class RepeatedStore:
    """A store of any number of images that share the pixels of a thousand."""

    def __init__(self, images: int, device: torch.device) -> None:
        length, kept = SIDE * SIDE * 3, min(images, 1000)
        self.pixels = torch.randint(0, 256, (kept * length,), dtype=torch.uint8).to(device)
        self.offset = torch.arange(images) % kept * length
        self.height = torch.full((images,), SIDE)
        self.width = torch.full((images,), SIDE)


def store_costs(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Measures a batch of views, and the memory of the image index, against the number of images."""
    rows = []
    rng = np.random.default_rng(0)
    for images in options.images:
        store = RepeatedStore(images, device)
        maker = AugmentPipeline(store, AugmentSettings(size=32), seed=0, device=device)
        table = ImageTable.from_store(store)
        index_mb = (table.offset.nbytes + table.height.nbytes + table.width.nbytes) / 2**20
        for step in range(3):
            maker.augment(rng.integers(images, size=160), ("weak", "strong"), step, "unlabeled")
        steps = 20
        started = time.perf_counter()
        for step in range(steps):
            maker.augment(rng.integers(images, size=160), ("weak", "strong"), step, "unlabeled")
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = (time.perf_counter() - started) * 1e3 / steps
        rows.append({"images": images, "ms": took, "index_mb": index_mb})
        print(f"store   {images:>9} images  {took:8.2f} ms for 320 views  index {index_mb:.1f} MB", flush=True)
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[200, 500, 1000, 2000, 5000, 10_000])
    parser.add_argument("--batches", type=int, nargs="+", default=[40, 640])
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--window", type=int, default=5120)
    parser.add_argument("--samples", type=int, default=100_000, help="unlabeled images for SoftLabelSelector")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for scaling-<device>.json, such as benchmarks/results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    record = {
        "command": " ".join(["python", *sys.argv]),
        "semifine": code_version(),
        "hardware": describe_hardware(device.type),
        "selector": selector_costs(options, device),
        "samplers": sampler_costs(options),
        "store": store_costs(options, device),
    }
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"scaling-{device.type}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
