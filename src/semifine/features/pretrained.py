"""Features of a pretrained network, cached, for photos without a run."""

from __future__ import annotations

from pathlib import Path

import torch

from semifine.data.store import ImageStore
from semifine.features.extract import FeatureCache, FeatureEvaluator, Progress
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.models.classifier import create_classifier
from semifine.models.imagenet import load_imagenet_weights


def pretrained_evaluator(
    store: ImageStore,
    backbone: str,
    image_size: int,
    stored_side: int,
    *,
    device: torch.device,
    cache: Path | str | None = None,
    progress: Progress = lambda _: None,
) -> FeatureEvaluator:
    """Creates an evaluator of features with ImageNet weights. It shares its cache with the probe of ``train``.

    Args:
        store: The decoded images.
        backbone: Name of a timm model.
        image_size: Side of the network's input.
        stored_side: Shorter side of the decoded images.
        device: Device of the computations.
        cache: Folder of the cache; by default the folder of decoded images.
        progress: Called with the number of images whose features were computed.
    """
    network = create_classifier(backbone, 0, image_size).to(device).eval()
    load_imagenet_weights(network, backbone, image_size)
    evaluator = Evaluator(store, create_preprocessor(image_size, stored_side, device), device)
    caches = [
        FeatureCache.of(network, f"{backbone} {image_size} {stored_side} {flip}", cache) for flip in (False, True)
    ]
    return FeatureEvaluator(evaluator, network, store, (caches[0], caches[1]), progress)
