"""Compares predictions of many JPEG files with a plain torchvision loop on the same network.

    python benchmarks/predict_speed.py --images 10000 --device cuda --out benchmarks/results/predict-speed-cuda.json

Both read the same files and write a table, alternating ``--repeats`` times; the median counts, without loading the
network and the first batch. The plain loop has ImageFolder, the usual transforms, a DataLoader with one worker per
core, and float32. semifine runs with its defaults, on a CPU also as an exported ONNX file. An additional pass
measures the time of each stage.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

import semifine
from semifine.devices import describe_hardware
from semifine.inference.export import export
from semifine.inference.model import TrainedModel
from semifine.inference.onnx_model import OnnxModel
from semifine.inference.pipeline import find_files
from semifine.inference.predict import predict_to_table
from semifine.inference.prediction import PredictOptions
from semifine.models.classifier import normalization
from semifine.version import code_version

DISTINCT = 10
"""Number of different pictures. The files are hard links to them, with the same time to read and decode."""


def make_photos(folder: Path, count: int, width: int, height: int) -> None:
    """Writes JPEG files with the detail of photos: 500 x 375 pixels take about 60 kB."""
    random = np.random.default_rng(0)
    (folder / "drawn").mkdir(parents=True)
    (folder / "photos" / "all").mkdir(parents=True)
    for number in range(DISTINCT):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize((width, height))
        noisy = np.asarray(coarse, np.int16) + random.integers(-20, 21, (height, width, 3))
        drawn = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
        drawn.save(folder / "drawn" / f"{number}.jpg", quality=85)
    for number in range(count):
        link = folder / "photos" / "all" / f"{number:06d}.jpg"
        link.hardlink_to(folder / "drawn" / f"{number % DISTINCT}.jpg")


def plain_network(model: TrainedModel, batch: int, device: torch.device) -> torch.nn.Module:
    """Returns a copy of the network in the default memory format, which semifine changes in the original."""
    network = copy.deepcopy(model.network).to(memory_format=torch.contiguous_format).eval()
    size = model.settings.image_size
    with torch.inference_mode():
        network(torch.zeros(batch, 3, size, size, device=device)).logits.cpu()
    return network


def plain_loop(
    model: TrainedModel,
    network: torch.nn.Module,
    folder: Path,
    out: Path,
    batch: int,
    workers: int,
    device: torch.device,
) -> list[int]:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    colors, size = normalization(model.network), model.settings.image_size
    steps = [
        transforms.Resize(model.settings.stored_side),
        transforms.CenterCrop(size),
        transforms.ToTensor(),
        transforms.Normalize(colors.mean, colors.std),
    ]
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(dataset, batch, num_workers=workers, pin_memory=device.type == "cuda")
    found: list[int] = []
    with torch.inference_mode(), out.open("w", newline="") as file:
        writer = csv.writer(file)
        for images, _ in loader:
            probs = network(images.to(device)).logits.softmax(1)
            confidence, classes = probs.max(1)
            found += classes.tolist()
            writer.writerows(zip(classes.tolist(), confidence.tolist(), strict=True))
    return found


def exported_to_onnx(model: TrainedModel, folder: Path) -> OnnxModel:
    export(model, folder / "model.onnx", "onnx")
    return OnnxModel(folder / "model.onnx", "cpu")


def prediction_seconds(model: TrainedModel | OnnxModel, photos: Path, out: Path, workers: int) -> float:
    started = time.perf_counter()
    predict_to_table(out, model, find_files([str(photos)]), PredictOptions(), workers=workers)
    return time.perf_counter() - started


def record_time(owner: object, name: str, seconds: list[float]) -> AbstractContextManager[object]:
    """Patches a method so that it appends its duration to ``seconds``, from any thread."""
    function = getattr(owner, name)

    def timed(argument: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(argument)
        finally:
            seconds.append(time.perf_counter() - started)

    return mock.patch.object(owner, name, timed)


def stage_shares(model: TrainedModel, photos: Path, out: Path, workers: int) -> dict[str, float]:
    """Returns the percentage of time in which the threads or processes of each stage are busy or waiting."""
    stages: dict[str, list[float]] = {"read and decode": [], "transform": [], "network": []}
    with ExitStack() as patches:
        for owner, name, stage in (
            (model.preprocessor, "decode_file", "read and decode"),
            (model.preprocessor, "collate", "read and decode"),
            (model.preprocessor, "transform", "transform"),
            (model, "logits", "network"),
        ):
            patches.enter_context(record_time(owner, name, stages[stage]))
        started, main_started, processes_started = time.perf_counter(), time.thread_time(), children_seconds()
        predict_to_table(out, model, find_files([str(photos)]), PredictOptions(), workers=workers)
    wall, main = time.perf_counter() - started, time.thread_time() - main_started
    stages["read and decode"].append(children_seconds() - processes_started)
    shares = {stage: sum(seconds) / wall for stage, seconds in stages.items()}
    shares["read and decode"] /= workers
    return {stage: round(100 * share, 1) for stage, share in {**shares, "names and table": main / wall}.items()}


def children_seconds() -> float:
    """Returns the CPU time of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def load_network(options: argparse.Namespace, folder: Path) -> TrainedModel:
    tiny = {"source": "synthetic", "genera": 4, "unlabeled_per_class": 1, "test_per_class": 1, "val_per_class": 1}
    semifine.fit(
        tiny,
        "supervised",
        out=folder / "run",
        quiet=True,
        iterations=1,
        batch_size=2,
        backbone=options.backbone,
        image_size=options.image_size,
        device=options.device,
        compile="off",
    )
    return semifine.load(folder / "run", device=options.device)


def measure(model: TrainedModel, size: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures semifine and the plain loop on photos of one size, WIDTHxHEIGHT."""
    width, height = map(int, size.split("x"))
    make_photos(folder, options.images, width, height)
    photos, workers = folder / "photos", options.workers
    device = next(model.network.parameters()).device
    warm = list(find_files([str(photos)]))[: model.batch_size]
    predict_to_table(folder / "warm.csv", model, warm, PredictOptions(), workers=workers)
    network = plain_network(model, options.batch_size, device)
    exported = exported_to_onnx(model, folder) if options.device == "cpu" else None
    seconds: dict[str, list[float]] = {"semifine": [], "onnx": [], "plain": []}
    for turn in range(options.repeats):
        seconds["semifine"].append(prediction_seconds(model, photos, folder / f"{turn}.csv", workers))
        started = time.perf_counter()
        classes = plain_loop(model, network, photos, folder / "plain.csv", options.batch_size, workers, device)
        seconds["plain"].append(time.perf_counter() - started)
        if exported:
            seconds["onnx"].append(prediction_seconds(exported, photos, folder / f"{turn}-onnx.csv", workers))
    with (folder / "0.csv").open(encoding="utf-8", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    agreement = np.mean([name == model.class_names[c] for name, c in zip(names, classes, strict=True)])
    medians = {what: statistics.median(times) for what, times in seconds.items() if times}
    return {
        "photos": size,
        "images_per_second": {what: round(options.images / time, 1) for what, time in medians.items()},
        "ratio": {what: round(medians["plain"] / time, 2) for what, time in medians.items()},
        "seconds": {what: [round(time, 3) for time in times] for what, times in seconds.items() if times},
        "percent_of_time": stage_shares(model, photos, folder / "w.csv", workers),
        "same_prediction": round(float(agreement), 4),
    }


def show(result: dict[str, Any]) -> None:
    print(f"photos of {result['photos']} pixels")
    print("| | images/s | relative to the plain loop |")
    print("|---|---|---|")
    titles = {"semifine": "run folder", "onnx": "exported to ONNX", "plain": "plain loop"}
    for what, ratio in result["ratio"].items():
        print(f"| {titles[what]} | {result['images_per_second'][what]} | {ratio} |")
    shares = ", ".join(f"{stage} {share} %" for stage, share in result["percent_of_time"].items())
    print(f"share of the time that each stage of the run folder is busy: {shares}")
    print(f"same prediction as the plain loop: {100 * result['same_prediction']:.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--photos", nargs="+", default=["500x375", "1600x1200"], metavar="WIDTHxHEIGHT")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the plain loop")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = load_network(options, Path(folder))
        environment = describe_hardware(options.device)
        print(f"{options.images} images on {environment['device']}, {options.backbone}")
        for size in options.photos:
            results.append(measure(model, size, options, Path(folder) / size))
            show(results[-1])
    if options.out:
        setting = {key: getattr(options, key) for key in ("images", "repeats", "backbone", "image_size", "workers")}
        origin = {"semifine": code_version(), "environment": environment}
        record = {"command": " ".join(sys.argv), **setting, "results": results, **origin}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
