"""Estimates of memory and time before training, and the profiler."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from semifine.config import TrainSettings
from semifine.models.classifier import Classifier

PATIENCE = 5.0
"""Seconds of steps that are measured before their time is said."""
MIN_STEPS_TO_BENCHMARK = 100
"""A shorter run is over, or has shown its pace, before a forecast is of use."""
FORWARD_SHARE = 1 / 3
"""What an image takes that only makes a label, of what one takes that the network learns from."""
LONG = 12 * 3600
ADVICE = "; a smaller --image-size or --backbone, or fewer --iterations shorten it"


def format_memory_estimate(
    classifier: nn.Module, image_size: int, images: int, *, has_average: bool, number_bytes: int, stored_bytes: int
) -> str:
    """What a step needs, roughly; ``images`` is how many of them learn in it."""
    weights = sum(p.numel() for p in classifier.parameters()) * 4
    network = weights * (3 + has_average)  # weights, gradients, momentum, average
    activations = _activation_numbers(classifier, image_size) * images * number_bytes
    parts = f"network and optimizer {format_bytes(network)}, decoded images {format_bytes(stored_bytes)}"
    if activations:
        parts += f", a step of {images} learning images {format_bytes(activations)}"
    return f"memory: about {format_bytes(network + activations + stored_bytes)} ({parts})"


def _activation_numbers(classifier: nn.Module, image_size: int) -> int:
    """Numbers that the layers put out for one image, which the backward pass needs; 0 where it cannot be told."""
    ghost = copy.deepcopy(classifier).to("meta").eval()  # shapes without memory or work
    count = 0

    def add(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        nonlocal count
        is_new = isinstance(output, Tensor) and not any(output is given for given in inputs)  # not so in place
        count += output.numel() if is_new and isinstance(output, Tensor) else 0

    for module in ghost.modules():
        if not list(module.children()) or list(module.parameters(recurse=False)):
            module.register_forward_hook(add)
    try:
        ghost(torch.empty(1, 3, image_size, image_size, device="meta"))
    except (RuntimeError, NotImplementedError):  # a layer that looks at values
        return 0
    return count


def count_effective_images(labeled_only: int, full: int, settings: TrainSettings, unlabeled_views: int) -> float:
    """How many learning images so many steps of the two kinds come to."""
    looked_at = max(0, unlabeled_views - 1) * (FORWARD_SHARE if settings.forward == "split" else 1)
    unlabeled = settings.mu * (1 + looked_at) if unlabeled_views else 0
    return settings.batch_size * (labeled_only + full * (1 + unlabeled))


def relative_step_cost(settings: TrainSettings, unlabeled_views: int) -> float:
    """How many times as long a step takes that sees unlabeled images, too, as one of labeled images alone."""
    labeled_only, full = (count_effective_images(*one, settings, unlabeled_views) for one in ((1, 0), (0, 1)))
    return full / labeled_only


def format_time_estimate(seconds: float, steps: int) -> str:
    """To be said before the first step."""
    advice = ADVICE if seconds > LONG else ""
    return f"time: {format_duration(seconds)} for {_in_steps(steps)}, judging by the network alone{advice}"


class TimeEstimator:
    """Watches steps, and says once for each kind how long the rest will take.

    The first ``labeled_only`` steps have no unlabeled images; each after them takes ``full_cost`` times as long.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        total: int,
        device: torch.device,
        labeled_only: int = 0,
        full_cost: float = 1.0,
    ) -> None:
        self._log = log
        self._total = total
        self._device = device
        self._labeled_only = labeled_only
        self._full_cost = full_cost
        self.restart()

    def restart(self) -> None:
        """Steps of another kind begin; the first of them is not measured, since it prepares much."""
        self._first: int | None = None
        self._is_done = False

    def update(self, step: int) -> None:
        if self._is_done:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first, self._since = step, now
        elif now - self._since >= PATIENCE:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds = (time.perf_counter() - self._since) / (step - self._first)
            if step < self._total:
                self._log(self._sentence(seconds, step))
            self._is_done = True

    def _sentence(self, seconds: float, step: int) -> str:
        left = self._total - step
        full = self._total - max(step, self._labeled_only)
        is_cheap = step <= self._labeled_only
        rest = seconds * (left - full + full * (self._full_cost if is_cheap else 1.0))
        kind = " of labeled images alone" if is_cheap else ""
        are = "is" if left == 1 else "are"
        advice = ADVICE if rest > LONG else ""
        return f"{seconds:.2g} s a step{kind}: {format_duration(rest)} for the {_in_steps(left)} that {are} left{advice}"


def _in_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def format_bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, seconds):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"


FEW = 2
"""Images to begin with on a CPU, where a whole batch may take a minute; batch normalization needs two."""
ENOUGH = 0.3
"""Seconds a pass from which on more images would tell nothing new."""
PASSES = 2
"""The quickest counts: the first prepares much, and others may use the machine."""

Autocast = Callable[[], AbstractContextManager[Any]]


def benchmark_throughput(
    classifier: Classifier, image_size: int, images: int, device: torch.device, autocast: Autocast
) -> float | None:
    """What forward and backward take for an image of a batch of ``images``; None where the memory does not suffice.

    A copy of the network is tried, and the random numbers of the run are put back.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        try:
            return _measure(copy.deepcopy(classifier).to(device), image_size, max(FEW, images), device, autocast)
        except torch.OutOfMemoryError:
            return None  # the run may get by with it, and else says what to do
        finally:
            if on_gpu:
                torch.cuda.empty_cache()


def _measure(network: Classifier, image_size: int, images: int, device: torch.device, autocast: Autocast) -> float:
    """With the whole batch on a GPU; on a CPU with ever more of it, until a pass can be measured well."""
    network.train()
    count = images if device.type == "cuda" else FEW
    while True:
        pictures = torch.rand(count, 3, image_size, image_size, device=device).to(memory_format=torch.channels_last)
        seconds = min(_seconds_a_pass(network, pictures, autocast) for _ in range(PASSES))
        if seconds >= ENOUGH or count == images:
            return seconds / count
        count = min(4 * count, images)


def _seconds_a_pass(network: Classifier, pictures: torch.Tensor, autocast: Autocast) -> float:
    started = _now(pictures.device)
    with autocast():
        loss = network(pictures).logits.float().sum()
    loss.backward()
    return _now(pictures.device) - started


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


SKIPPED, WARM_UP, ACTIVE = 10, 5, 10
ROWS = 15


@contextmanager
def profile_steps(folder: Path, log: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Watches ten steps after the first fifteen; gives what is to be called after each step.

    Leaves ``trace.json.gz`` in the folder, for chrome://tracing or ui.perfetto.dev, and says the largest costs.
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
        log(profiler.key_averages().table(sort_by=order, row_limit=ROWS, max_name_column_width=60))
        log(f"The {ACTIVE} steps of this table are in {trace}.")

    steps = schedule(skip_first=SKIPPED, wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=finish) as profiler:
        yield profiler.step
    if not finished:
        log(f"The run was too short to be profiled: that takes {SKIPPED + WARM_UP + ACTIVE} steps.")
