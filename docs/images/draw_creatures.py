"""Draws creatures.jpg: two individuals of each species of the synthetic data set."""

from pathlib import Path

import numpy as np
from PIL import Image

from semifine.data.catalog import Split
from semifine.data.sources.synthetic import Settings, load

GENERA, SPECIES, INDIVIDUALS, SIDE, GAP = 8, 5, 2, 96, 6


def main() -> None:
    catalog = load(None, Settings(genera=GENERA, species=SPECIES, labeled_per_class=INDIVIDUALS, image_side=SIDE))
    rows = catalog.rows(Split.LABELED).reshape(GENERA, SPECIES, INDIVIDUALS)
    height, width = GENERA * SIDE, SPECIES * (INDIVIDUALS * SIDE + GAP) - GAP
    sheet = np.full((height, width, 3), 255, np.uint8)
    for genus, species, individual in np.ndindex(rows.shape):
        left = species * (INDIVIDUALS * SIDE + GAP) + individual * SIDE
        image = catalog.reader.read(int(rows[genus, species, individual]))
        sheet[genus * SIDE : (genus + 1) * SIDE, left : left + SIDE] = image
    Image.fromarray(sheet).save(Path(__file__).parent / "creatures.jpg", quality=85)


if __name__ == "__main__":
    main()
