"""Time and memory of a run: estimates before training, timers during training, and the profiler."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from semifine.config import TrainSettings
from semifine.devices import Autocast
from semifine.models.classifier import Classifier

# Memory


def format_memory_estimate(
    classifier: nn.Module, image_size: int, images: int, *, has_ema: bool, bytes_per_value: int, stored_bytes: int
) -> str:
    """Returns a rough estimate of the memory of a run as a line of text.

    Args:
        classifier: The network.
        image_size: Side of the square images in pixels.
        images: Images per step with a gradient.
        has_ema: Whether the run keeps an average of the weights.
        bytes_per_value: Bytes of an activation.
        stored_bytes: Bytes of the decoded images.
    """
    weights = sum(p.numel() for p in classifier.parameters()) * 4
    network = weights * (3 + has_ema)  # weights, gradients, momentum, EMA
    activations = _activations_per_image(classifier, image_size) * images * bytes_per_value
    parts = f"network and optimizer {format_bytes(network)}, decoded images {format_bytes(stored_bytes)}"
    if activations:
        parts += f", activations of {images} images per step {format_bytes(activations)}"
    return f"memory: about {format_bytes(network + activations + stored_bytes)} ({parts})"


def _activations_per_image(classifier: nn.Module, image_size: int) -> int:
    """Returns the number of activations that the backward pass needs for one image, or 0 if it is not known."""
    network = copy.deepcopy(classifier).to("meta").eval()  # computes shapes without memory
    count = 0

    def add(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        nonlocal count
        is_new = isinstance(output, Tensor) and not any(output is given for given in inputs)  # not an in-place layer
        count += output.numel() if is_new and isinstance(output, Tensor) else 0

    for module in network.modules():
        if not list(module.children()) or list(module.parameters(recurse=False)):
            module.register_forward_hook(add)
    try:
        network(torch.empty(1, 3, image_size, image_size, device="meta"))
    except (RuntimeError, NotImplementedError):  # a layer that depends on values
        return 0
    return count


def format_bytes(size: float) -> str:
    """Formats a number of bytes.

    Example:
        >>> format_bytes(1.5e9), format_bytes(2e7)
        ('1.5 GB', '20 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


# Time before training

MIN_STEPS_TO_BENCHMARK = 100
"""Shorter runs are not benchmarked, because they end soon."""
FORWARD_SHARE = 1 / 3
"""Time of a forward pass relative to forward and backward."""
LONG_RUN = 12 * 3600
ADVICE = "; a smaller --image-size or --backbone, or fewer --iterations, shorten it"

MIN_BATCH = 2
"""First batch size of the benchmark on a CPU; batch normalization needs two images."""
LONG_ENOUGH = 0.3
"""Seconds per pass from which on a larger batch does not improve the measurement."""
NUM_PASSES = 2
"""The fastest pass counts: the first one includes initialization."""


def benchmark_throughput(
    classifier: Classifier, image_size: int, images: int, device: torch.device, autocast: Autocast
) -> float | None:
    """Measures forward and backward of a copy of the network; the random state does not change.

    Args:
        classifier: The network.
        image_size: Side of the square images in pixels.
        images: Images per step.
        device: Device of the run.
        autocast: Precision of the run.

    Returns:
        Seconds per image, or None if the memory is too small.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        try:
            network = copy.deepcopy(classifier).to(device)
            return _seconds_per_image(network, image_size, max(MIN_BATCH, images), device, autocast)
        except torch.OutOfMemoryError:
            return None  # training may still fit; if it does not, it prints the remedy
        finally:
            if on_gpu:
                torch.cuda.empty_cache()


def _seconds_per_image(
    network: Classifier, image_size: int, images: int, device: torch.device, autocast: Autocast
) -> float:
    """Uses the whole batch on a GPU, and growing batches on a CPU until the time is long enough."""
    network.train()
    count = images if device.type == "cuda" else MIN_BATCH
    while True:
        batch = torch.rand(count, 3, image_size, image_size, device=device).to(memory_format=torch.channels_last)
        seconds = min(_seconds_per_pass(network, batch, autocast) for _ in range(NUM_PASSES))
        if seconds >= LONG_ENOUGH or count == images:
            return seconds / count
        count = min(4 * count, images)


def _seconds_per_pass(network: Classifier, batch: Tensor, autocast: Autocast) -> float:
    started = _synchronized_clock(batch.device)
    with autocast():
        loss = network(batch).logits.float().sum()
    loss.backward()
    return _synchronized_clock(batch.device) - started


def _synchronized_clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def count_effective_images(labeled_steps: int, full_steps: int, settings: TrainSettings, unlabeled_views: int) -> float:
    """Returns the number of images of a run, weighted by their cost relative to forward and backward of one image.

    Args:
        labeled_steps: Steps on labeled images only.
        full_steps: Steps on labeled and unlabeled images.
        settings: The training settings.
        unlabeled_views: Views of each unlabeled image, of which one has a gradient.
    """
    without_gradient = max(0, unlabeled_views - 1) * (FORWARD_SHARE if settings.forward == "split" else 1)
    unlabeled = settings.mu * (1 + without_gradient) if unlabeled_views else 0
    return settings.batch_size * (labeled_steps + full_steps * (1 + unlabeled))


def relative_step_cost(settings: TrainSettings, unlabeled_views: int) -> float:
    """Returns the cost of a step on labeled and unlabeled images relative to a step on labeled images only."""
    labeled, full = (count_effective_images(*steps, settings, unlabeled_views) for steps in ((1, 0), (0, 1)))
    return full / labeled


def format_time_estimate(seconds: float, steps: int) -> str:
    """Returns the estimate that is printed before training.

    Example:
        >>> format_time_estimate(600, steps=200)
        'time: about 10 min for 200 steps, estimated from the network alone'
    """
    advice = ADVICE if seconds > LONG_RUN else ""
    return f"time: {format_duration(seconds)} for {_format_steps(steps)}, estimated from the network alone{advice}"


def format_duration(seconds: float) -> str:
    """Formats a duration.

    Example:
        >>> format_duration(40), format_duration(9000)
        ('about 40 s', 'about 2.5 hours')
    """
    if seconds < 90:
        return f"about {max(1, seconds):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"


def _format_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


# Time during training

SECONDS_TO_MEASURE = 5.0
"""Seconds of steps that are measured before the remaining time is printed."""


class TimeEstimator:
    """Measures the first steps and logs the remaining time once, and once more after :meth:`restart`.

    Args:
        log: Receives the estimate.
        total: Number of steps of the run.
        device: Device of the run.
        labeled_steps: Number of steps at the start of the run that see labeled images only.
        full_cost: Cost of the later steps relative to these.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        total: int,
        device: torch.device,
        labeled_steps: int = 0,
        full_cost: float = 1.0,
    ) -> None:
        self._log = log
        self._total = total
        self._device = device
        self._labeled_steps = labeled_steps
        self._full_cost = full_cost
        self.restart()

    def restart(self) -> None:
        """Starts a new measurement after the next step, which may include initialization."""
        self._first: int | None = None
        self._is_done = False

    def update(self, step: int) -> None:
        """Call this after each step with the number of finished steps."""
        if self._is_done:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first, self._since = step, now
        elif now - self._since >= SECONDS_TO_MEASURE:
            seconds = (_synchronized_clock(self._device) - self._since) / (step - self._first)
            if step < self._total:
                self._log(self._format(seconds, step))
            self._is_done = True

    def _format(self, seconds: float, step: int) -> str:
        steps_left = self._total - step
        full_steps = self._total - max(step, self._labeled_steps)
        is_labeled_step = step <= self._labeled_steps
        rest = seconds * (steps_left - full_steps + full_steps * (self._full_cost if is_labeled_step else 1.0))
        kind = " on labeled images" if is_labeled_step else ""
        advice = ADVICE if rest > LONG_RUN else ""
        remaining = f"{format_duration(rest)} for the remaining {_format_steps(steps_left)}"
        return f"{seconds:.2g} s per step{kind}: {remaining}{advice}"


Phase = Literal["start_up", "steps", "evaluation", "saving"]


class PhaseTimer:
    """Run time in seconds by phase, including the time before a resume.

    It reads the clock of the host without waiting for the GPU, so that the time of the last few steps may be counted in
    the next phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {"start_up": 0.0, "steps": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._since = time.perf_counter()
        self._read = 0.0

    def start_steps(self, started: float | None) -> None:
        """Ends the phase "start_up", which began at ``started`` on ``time.perf_counter`` (None: now)."""
        self._since = time.perf_counter() if started is None else started
        self._add_to("start_up")
        self._read = self.seconds["steps"]

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Counts the time of the context in the phase, and the time before it in "steps"."""
        self._add_to("steps")
        yield
        self._add_to(phase)

    def lap(self) -> float:
        """Returns the seconds of the phase "steps" since the last call."""
        self._add_to("steps")
        seconds, self._read = self.seconds["steps"] - self._read, self.seconds["steps"]
        return seconds

    @property
    def training(self) -> float:
        """Seconds of all phases except "start_up"."""
        return sum(self.seconds.values()) - self.seconds["start_up"]

    def _add_to(self, phase: Phase) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now


# Profiler

SKIPPED, WARMUP, ACTIVE = 10, 5, 10
MAX_ROWS = 15


@contextmanager
def profile_steps(folder: Path, log: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Profiles ten steps after the first fifteen.

    Writes ``trace.json.gz`` for chrome://tracing or ui.perfetto.dev, and logs the most expensive operations.

    Args:
        folder: Folder for the trace.
        log: Receives the table.

    Yields:
        The function to call after each step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    finished = False

    def finish(profiler: profile) -> None:
        nonlocal finished
        finished = True
        trace = folder / "trace.json.gz"
        profiler.export_chrome_trace(str(trace))
        log(profiler.key_averages().table(sort_by=order, row_limit=MAX_ROWS, max_name_column_width=60))
        log(f"The trace of these {ACTIVE} steps is in {trace}.")

    steps = schedule(skip_first=SKIPPED, wait=0, warmup=WARMUP, active=ACTIVE, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=finish) as profiler:
        yield profiler.step
    if not finished:
        log(f"The run is too short for --profile, which needs {SKIPPED + WARMUP + ACTIVE} steps.")
