"""Estimates of the memory and the time of a run, printed before training."""

from __future__ import annotations

import copy
import time

import torch
from torch import Tensor, nn

from semifine.config import RunSettings, TrainSettings
from semifine.data.dataset import Dataset
from semifine.devices import Autocast, resolve_precision
from semifine.methods import method_class
from semifine.models.classifier import Classifier
from semifine.training.fabric import Fabric

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


# Time

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
    started = synchronized_clock(batch.device)
    with autocast():
        loss = network(batch).logits.float().sum()
    loss.backward()
    return synchronized_clock(batch.device) - started


def synchronized_clock(device: torch.device) -> float:
    """Returns ``time.perf_counter`` after the GPU has finished its work."""
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
    return f"time: {format_duration(seconds)} for {format_steps(steps)}, estimated from the network alone{advice}"


def format_duration(seconds: float) -> str:
    """Formats a duration.

    Example:
        >>> format_duration(40), format_duration(9000)
        ('about 40 s', 'about 2.5 hours')
    """
    if seconds < 90:
        return f"about {max(1, seconds):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"


def format_steps(count: int) -> str:
    """Formats a number of steps.

    Example:
        >>> format_steps(1), format_steps(200)
        ('1 step', '200 steps')
    """
    return "1 step" if count == 1 else f"{count} steps"


# A run


def estimate_memory(settings: RunSettings, classifier: Classifier, dataset: Dataset, device: str) -> str:
    """Returns the estimated memory and the precision of a run as a line of text."""
    train, precision = settings.train, resolve_precision(settings.train.precision, device)
    estimate = format_memory_estimate(
        classifier,
        train.image_size,
        _images_per_step(settings),
        has_ema=bool(train.ema),
        bytes_per_value=4 if precision == "fp32" else 2,
        stored_bytes=dataset.store.nbytes,
    )
    return f"{estimate}; precision {precision}"


def benchmark_run(settings: RunSettings, classifier: Classifier, fabric: Fabric) -> float | None:
    """Measures the seconds per image in the first process; returns None in the others and for a short run."""
    train = settings.train
    if not fabric.is_global_zero or train.iterations < MIN_STEPS_TO_BENCHMARK or train.trained_stages is not None:
        return None
    images = -(-_images_per_step(settings) // fabric.world_size)
    return benchmark_throughput(classifier, train.image_size, images, fabric.device, fabric.autocast)


def estimate_time(
    settings: TrainSettings, first: int, full_steps: range, unlabeled_views: int, image_seconds: float
) -> str:
    """Returns the estimated time of the remaining steps as a line of text.

    Args:
        settings: The training settings.
        first: Number of finished steps.
        full_steps: Steps on labeled and unlabeled images.
        unlabeled_views: Views of each unlabeled image.
        image_seconds: Seconds per image, see :func:`benchmark_run`.
    """
    steps = settings.iterations - first
    labeled_steps = steps - len(range(max(first, full_steps.start), full_steps.stop))
    images = count_effective_images(labeled_steps, steps - labeled_steps, settings, unlabeled_views)
    return format_time_estimate(images * image_seconds, steps)


def _images_per_step(settings: RunSettings) -> int:
    """Number of images per step with a gradient."""
    train = settings.train
    return train.batch_size * (1 + train.mu * bool(method_class(settings.method).unlabeled_views))
