"""Measures the time of a SoftLabelSelector step and the memory of its state.

    python benchmarks/soc_core.py                       # CPU, and CUDA if available
    python benchmarks/soc_core.py --classes 200 --device cpu --out benchmarks/results

The window is full. Predictions move within families of similar classes, with some random ones, as in training. A
step is ``selector(probs, index)``: tracking, clustering, selection. The times of these parts come from further steps,
which wait for the device after each part. Their memory is the state of the transitions and of the clusterings.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semifine.soft_labels import SoftLabelSelector, TransitionTracker
from semifine.version import code_version

REPOSITORY = Path(__file__).parents[1]
CLASSES = (200, 810, 2_000, 8_142)
LARGEST_FOR_ALL = 810
FAMILY_SIZE = 10
HEADING = (
    "device,K,refresh,host sync,non-zero,ms/step,p90,tracking ms,clusters ms,select ms,graph ms,"
    "tracking MB,clusters MB,dense MB,peak MB"
).split(",")


@dataclass
class Measurement:
    """A row of the table."""

    device: str
    classes: int
    refresh: str
    host_sync: bool
    transitions: int
    nonzero: int
    steps: int
    median_ms: float
    p90_ms: float
    parts_ms: dict[str, float]
    """Median milliseconds of tracking, clustering and selection."""
    tracking_mb: float
    """Transitions of the window and the last prediction of each sample."""
    clustering_mb: float
    """Medoids and clusters for each k."""
    state_mb: float
    dense_mb: float
    peak_device_mb: float | None = None
    graph_ms: float | None = None


@dataclass
class ReferenceMeasurement:
    """Times of the plain Python version on the same state."""

    classes: int
    refresh: str
    steps: int
    median_ms: float


class SimulatedModel:
    """Endless (probs, index) batches of a simulated model that confuses the classes of a family."""

    def __init__(self, num_classes: int, num_samples: int, batch_size: int, device: torch.device, seed: int) -> None:
        self.num_classes = num_classes
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.truth = torch.randint(0, num_classes, (num_samples,), generator=self.generator)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in self.indices():
            yield self.probabilities(self.predictions(index)), index.to(self.device)

    def indices(self) -> Iterator[Tensor]:
        """Yields full batches of consecutive permutations."""
        while True:
            for index in torch.split(self._order(), self.batch_size):
                if len(index) == self.batch_size:
                    yield index

    def predictions(self, index: Tensor) -> Tensor:
        """Half of the samples keep their class, most others move within the family, one in ten is random."""
        truth = self.truth[index]
        sibling = truth - truth % FAMILY_SIZE + self._integers(FAMILY_SIZE)
        chance = torch.rand(self.batch_size, generator=self.generator)
        prediction = torch.where(chance < 0.5, truth, sibling)
        return torch.where(chance > 0.9, self._integers(self.num_classes), prediction).clamp(max=self.num_classes - 1)

    def probabilities(self, prediction: Tensor) -> Tensor:
        """(batch, K) with confidences spread over the whole range, so that many different k occur."""
        confidence = 0.05 + 0.94 * torch.rand((self.batch_size, 1), generator=self.generator)
        rest = 0.5 + torch.rand((self.batch_size, self.num_classes), generator=self.generator)
        rest.scatter_(1, prediction[:, None], 0)
        probs = rest / rest.sum(dim=1, keepdim=True) * (1 - confidence)
        return probs.scatter_(1, prediction[:, None], confidence).to(self.device)

    def _order(self) -> Tensor:
        return torch.randperm(self.num_samples, generator=self.generator)

    def _integers(self, high: int) -> Tensor:
        return torch.randint(0, high, (self.batch_size,), generator=self.generator)


def megabytes(module: torch.nn.Module) -> float:
    return float(sum(buffer.nbytes for buffer in module.state_dict().values())) / 2**20


def full_window(num_classes: int, options: argparse.Namespace) -> dict[str, Tensor]:
    """Returns the state of a tracker with a full ring buffer that has seen every sample."""
    tracker = TransitionTracker(num_classes, options.samples, options.window)
    stream = SimulatedModel(num_classes, options.samples, options.batch, torch.device("cpu"), options.seed)
    indices = stream.indices()
    for _ in range(options.window):
        index = next(indices)
        tracker.update(index, stream.predictions(index))
    return tracker.state_dict()


def steady_selector(
    num_classes: int, window: dict[str, Tensor], options: argparse.Namespace, **settings: Any
) -> SoftLabelSelector:
    """Returns a selector with a full window."""
    selector = SoftLabelSelector(num_classes, options.samples, window=options.window, **settings)
    selector.tracker.load_state_dict(window)
    return selector


def timed(step: Callable[[], object], device: torch.device) -> float:
    """Returns the milliseconds of one call, synchronized with the device."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def time_steps(selector: SoftLabelSelector, stream: SimulatedModel, options: argparse.Namespace) -> list[float]:
    """Returns the milliseconds of each step after the warmup, in which medoids converge; has a time limit."""
    times: list[float] = []
    deadline = time.monotonic() + options.seconds
    for step, (probs, index) in enumerate(stream):
        took = timed(partial(selector, probs, index), stream.device)
        is_late = time.monotonic() > deadline
        if step >= options.warmup or is_late:
            times.append(took)
        if len(times) == options.steps or (is_late and len(times) >= 3):
            break
    return times


def time_parts(selector: SoftLabelSelector, stream: SimulatedModel, steps: int) -> dict[str, float]:
    """Returns the median milliseconds of the parts of a step."""
    parts = {
        "tracking": (selector.tracker, "update"),
        "clustering": (selector, "_refresh"),
        "selection": (selector, "_select"),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}

    def record(name: str, original: Callable[..., Any], *arguments: Any) -> Any:
        results: list[Any] = []
        times[name].append(timed(lambda: results.append(original(*arguments)), stream.device))
        return results[0]

    for name, (owner, method) in parts.items():
        setattr(owner, method, partial(record, name, getattr(owner, method)))
    for _, (probs, index) in zip(range(steps), stream, strict=False):
        selector(probs, index)
    for owner, method in parts.values():
        delattr(owner, method)
    return {name: statistics.median(values) for name, values in times.items()}


def time_graph(selector: SoftLabelSelector, stream: SimulatedModel, steps: int) -> float:
    """Returns the median milliseconds of a step replayed from a CUDA graph."""
    batches = iter(stream)
    probs, index = next(batches)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        selector(probs, index)
    times = []
    for _ in range(steps):
        new_probs, new_index = next(batches)
        probs.copy_(new_probs)
        index.copy_(new_index)
        torch.cuda.synchronize()
        times.append(timed(graph.replay, stream.device))
    return statistics.median(times)


def measure(
    device: torch.device, window: dict[str, Tensor], line: tuple[int, str, bool], options: argparse.Namespace
) -> Measurement:
    num_classes, refresh, host_sync = line
    stream = SimulatedModel(num_classes, options.samples, options.batch, device, options.seed)
    selector = steady_selector(num_classes, window, options, refresh=refresh, host_sync=host_sync).to(device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = time_steps(selector, stream, options)
    graph_ms = time_graph(selector, stream, len(times)) if on_gpu and not host_sync else None
    # Read first, because the sum of the (K, K) counts takes more memory than a step.
    peak_device_mb = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    return Measurement(
        device=device.type,
        classes=num_classes,
        refresh=selector.refresh,
        host_sync=host_sync,
        transitions=int(selector.counts.sum()),
        nonzero=int(selector.counts.count_nonzero()),
        steps=len(times),
        median_ms=statistics.median(times),
        p90_ms=sorted(times)[int(0.9 * (len(times) - 1))],
        parts_ms=time_parts(selector, stream, len(times)),
        tracking_mb=megabytes(selector.tracker),
        clustering_mb=megabytes(selector) - megabytes(selector.tracker),
        state_mb=megabytes(selector),
        dense_mb=num_classes**2 * options.window * 4 / 2**20,
        peak_device_mb=peak_device_mb,
        graph_ms=graph_ms,
    )


def measure_reference(num_classes: int, window: dict[str, Tensor], options: argparse.Namespace) -> ReferenceMeasurement:
    """Measures the readable version of the tests from the same full window and converged medoids."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.soft_labels.reference import ReferenceSelector

    stream = SimulatedModel(num_classes, options.samples, options.batch, torch.device("cpu"), options.seed)
    selector = steady_selector(num_classes, window, options, refresh="all")
    batches = iter(stream)
    for _ in range(options.warmup):
        selector(*next(batches))
    slow = ReferenceSelector(num_classes, options.samples, window=options.window, refresh="all")
    slow.bank = selector.tracker.bank.tolist()
    ring = selector.tracker.ring.roll(-int(selector.tracker.cursor), dims=0)
    slow.batches = [[divmod(code, num_classes) for code in row if code >= 0] for row in ring.tolist()]
    slow.medoids = {k: selector.medoids[k - selector.k_min, :k].tolist() for k in slow.k_values}
    times = []
    for _ in range(options.reference_steps):
        probs, index = next(batches)
        expected = selector(probs, index)
        rows, indices = probs.tolist(), index.tolist()
        start = time.perf_counter()
        soft = slow.step(rows, indices)
        times.append((time.perf_counter() - start) * 1e3)
        torch.testing.assert_close(torch.tensor(soft), expected)  # they compute the same
    return ReferenceMeasurement(num_classes, "all", len(times), statistics.median(times))


def plan(device: torch.device, num_classes: int) -> Iterator[tuple[int, str, bool]]:
    """Yields (classes, refresh, host_sync) of each row; with many classes, "all" takes too long."""
    host_sync = device.type == "cpu"
    if num_classes <= LARGEST_FOR_ALL:
        yield num_classes, "all", host_sync
    yield num_classes, "occurring", host_sync
    yield num_classes, "oldest", host_sync
    yield num_classes, "round_robin", host_sync


def print_row(cells: Iterable[str]) -> None:
    print(" | ".join(f"{cell:>11}" for cell in cells), flush=True)


def print_measurement(line: Measurement) -> None:
    cells = (
        line.device,
        f"{line.classes:,}",
        line.refresh,
        "yes" if line.host_sync else "no",
        f"{line.nonzero:,}",
        f"{line.median_ms:.2f}",
        f"{line.p90_ms:.2f}",
        *(f"{line.parts_ms[name]:.2f}" for name in ("tracking", "clustering", "selection")),
        "" if line.graph_ms is None else f"{line.graph_ms:.2f}",
        f"{line.tracking_mb:,.1f}",
        f"{line.clustering_mb:,.1f}",
        f"{line.dense_mb:,.0f}",
        "" if line.peak_device_mb is None else f"{line.peak_device_mb:,.0f}",
    )
    print_row(cells)


def hardware(device: torch.device) -> dict[str, object]:
    """What the numbers were measured on."""
    stats: dict[str, object] = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        stats |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return stats


def processor_name() -> str:
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: both if CUDA is available")
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--window", type=int, default=5120)
    parser.add_argument("--samples", type=int, default=26_640, help="unlabeled images; default: Semi-Aves")
    parser.add_argument("--steps", type=int, default=100, help="measured steps")
    parser.add_argument(
        "--warmup", type=int, default=20, help="steps before the measurement, in which the medoids converge"
    )
    parser.add_argument("--seconds", type=float, default=60, help="time limit for the steps of one row")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--reference-steps", type=int, default=3, help="steps of the plain Python version; 0 skips it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for soc-core-<device>.json, such as benchmarks/results")
    return parser.parse_args()


def run(device: torch.device, options: argparse.Namespace) -> None:
    print_row(HEADING)
    measurements: list[Measurement] = []
    slow = None
    for num_classes in options.classes:
        window = full_window(num_classes, options)
        for line in plan(device, num_classes):
            measurements.append(measure(device, window, line, options))
            print_measurement(measurements[-1])
        if device.type == "cpu" and options.reference_steps and num_classes == options.classes[0]:
            slow = measure_reference(num_classes, window, options)
            print(f"plain Python reference, K = {num_classes}, refresh all, same labels: {slow.median_ms:,.0f} ms")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        result = {
            "command": " ".join(sys.argv),
            "semifine": code_version(),
            "hardware": hardware(device),
            "settings": {name: getattr(options, name) for name in ("batch", "window", "samples", "warmup", "seed")},
            "measurements": [asdict(line) for line in measurements],
            "reference": None if slow is None else asdict(slow),
        }
        path = options.out / f"soc-core-{device.type}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"wrote {path}")


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    available = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for name in [options.device] if options.device else available:
        run(torch.device(name), options)


if __name__ == "__main__":
    main()
