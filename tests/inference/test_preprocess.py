"""The evaluation transform in NumPy agrees with the one in PyTorch, and the normalization with torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from semifine.augment.crops import center_crop, crop_and_resize
from semifine.augment.settings import oversampling
from semifine.inference.network import ImageClassifier
from semifine.inference.preprocess import center_crop_array
from semifine.models.classifier import create_classifier, normalization
from tests.augment.helpers import make_batch


@pytest.mark.parametrize(
    ("height", "width", "size"), [(36, 36, 32), (37, 61, 32), (64, 40, 32), (9, 14, 32), (1, 3, 8), (120, 90, 32)]
)
def test_center_crops_in_numpy_and_pytorch_agree(height: int, width: int, size: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    batch = make_batch([image], oversampling(min(height, width), size))
    expected = crop_and_resize(batch, center_crop(batch.table, size), size)[0].permute(1, 2, 0).numpy()
    actual = center_crop_array(image, size)
    assert actual.shape == (size, size, 3)
    assert np.abs(actual - expected).max() <= 0.501


def test_the_classifier_normalizes_as_torchvision_does() -> None:
    network = create_classifier("test_resnet", 3, 32).eval()
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    config = normalization(network)
    normalized = tv.normalize(images.permute(0, 3, 1, 2).float() / 255, list(config.mean), list(config.std))
    with torch.inference_mode():
        _, logits, _ = ImageClassifier(network)(images)
        torch.testing.assert_close(logits, network(normalized).logits)
