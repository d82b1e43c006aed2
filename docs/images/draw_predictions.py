"""Draws predictions.png from a finished run on the synthetic data set.

python docs/images/draw_predictions.py RUN
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import semifine
from semifine.data.catalog import Split


def main() -> None:
    model = semifine.load(sys.argv[1], device="cpu")
    catalog = model.run.dataset.catalog
    images = [catalog.reader.read(int(row)) for row in catalog.rows(Split.TEST)[:400]]
    predictions = model.predict(images)
    by_confidence = np.argsort([-prediction.probability for prediction in predictions])
    chosen = [int(by_confidence[rank]) for rank in (5, 372, 396)]
    blobs = np.random.default_rng(1).integers(0, 256, (4, 4, 3), np.uint8)
    unknown = np.asarray(Image.fromarray(blobs).resize((48, 48), Image.Resampling.BICUBIC))
    shown = [(images[row], predictions[row]) for row in chosen] + [(unknown, model.predict([unknown])[0])]
    figure, axes = plt.subplots(2, 4, figsize=(11, 4.2), height_ratios=(1, 1), layout="constrained")
    for (picture, bars), (image, prediction) in zip(axes.T, shown, strict=True):
        picture.imshow(image)
        picture.axis("off")
        size = len(prediction.conformal_set or ())
        picture.set_title("unknown" if prediction.is_ood else f"one of {size}" if size > 1 else "one species")
        names, values = prediction.names[::-1], prediction.probabilities[::-1]
        inside = [name in (prediction.conformal_set or ()) for name in names]
        colors = ["#c9ccd1" if prediction.is_ood or not is_in else "#2f6f9f" for is_in in inside]
        bars.barh(names, values, color=colors)
        bars.set_xlim(0, 1)
        bars.tick_params(labelsize=8)
        bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("predictions.png"), dpi=110)


if __name__ == "__main__":
    main()
