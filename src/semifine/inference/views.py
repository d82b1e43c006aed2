"""Several views of an image, whose predictions are averaged: crops and mirror images. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from semifine.errors import UserError

NUM_VIEWS = (1, 2, 5, 10)
"""Numbers of views: the center crop; with its mirror image; the corners and the center of a larger square; all of these
with their mirror images."""
MARGIN = 1 / 14
"""Width of the border around the center crop in the larger square, relative to the side of the crop."""


@dataclass(frozen=True)
class AveragedViews:
    """The views of each image.

    Args:
        count: Number of views, one of ``NUM_VIEWS``.
        image_size: Side of a view.

    Example:
        >>> import numpy as np
        >>> views = AveragedViews(10, image_size=28)
        >>> views.side
        32
        >>> [view.shape for view in views.of(np.zeros((1, 32, 32, 3)))][:2]
        [(1, 28, 28, 3), (1, 28, 28, 3)]
    """

    count: int
    image_size: int

    def __post_init__(self) -> None:
        if self.count not in NUM_VIEWS:
            raise UserError(f"views must be one of {', '.join(map(str, NUM_VIEWS))}, not {self.count}.")

    @property
    def side(self) -> int:
        """Side of the preprocessed square from which the views are cut."""
        return self.image_size + 2 * (round(self.image_size * MARGIN) if self.count > 2 else 0)

    def of(self, images: Any) -> Iterator[Any]:
        """Yields each view of images ``(N, side, side, 3)``, an array or a tensor; the first one is the center crop."""
        size, far = self.image_size, self.side - self.image_size
        corners = ((0, 0), (0, far), (far, 0), (far, far)) if self.count > 2 else ()
        mirrored = list(range(size - 1, -1, -1))
        for top, left in ((far // 2, far // 2), *corners):
            crop = images[:, top : top + size, left : left + size]
            yield crop
            if self.count in (2, 10):
                yield crop[:, :, mirrored]
