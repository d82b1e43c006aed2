"""How long the network takes for an image on this device, found out before the first step."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from semifine.models.classifier import Classifier

FEW = 2
"""Images to begin with on a CPU, where a whole batch may take a minute; batch normalisation needs two."""
ENOUGH = 0.3
"""Seconds a pass from which on more images would tell nothing new."""
PASSES = 2
"""The quickest counts: the first prepares much, and others may use the machine."""

Autocast = Callable[[], AbstractContextManager[Any]]


def seconds_an_image(
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
