"""The host's side of RandAugment for a GPU's kernels: one row of numbers an image, and one more for each of its slots.

Beside :mod:`route`, which sorts the images by operation so that torch can work on contiguous runs, nothing is
sorted here: a kernel reads in an image's own row what is to be done with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semifine.views.arrays import FloatArray
from semifine.views.crops import Crop, crop_lines
from semifine.views.geometry import identity
from semifine.views.images import ImageTable
from semifine.views.randaugment import Plan
from semifine.views.route import IS_STATISTICAL, RUN_OF, scaled_maps

# The columns of a frame ...
X_LINE, Y_LINE, TO_SOURCE, CUTOUT, HAS_THUMBNAIL, FRAME = 0, 4, 8, 14, 18, 19
# ... and those of a step.
CODE, RUN, IS_ASKED, MAGNITUDE, VIEW_MAP, THUMBNAIL_MAP, STEP = 0, 1, 2, 3, 4, 10, 16


class Itinerary(NamedTuple):
    """What a plan asks of each of N images.

    ``frame`` (N, FRAME) float32 says where the view lies: the crop's lines, the map to the original, the cutout's
    edges, and whether any statistical operation waits for the thumbnail. ``steps`` (slots, N, STEP) say what happens
    in a slot: the operation's code and run, whether a later slot still asks for the thumbnail, the magnitude, and
    the maps of :class:`route.Route`. They are float64, as the host makes its tables from magnitudes of that precision.
    """

    frame: NDArray[np.float32]
    steps: FloatArray


def make_itinerary(plan: Plan, crop: Crop, table: ImageTable, size: int, thumbnail_size: int) -> Itinerary:
    """The rows of all images of ``plan``, for views and thumbnails of these sizes."""
    count, slots = plan.codes.shape
    view_maps, thumbnail_maps, to_input = scaled_maps(plan, table, thumbnail_size)
    asked = _asked_from(plan)
    frame = np.empty((count, FRAME), dtype=np.float32)
    lines = crop_lines(crop, table, size)
    frame[:, X_LINE:Y_LINE], frame[:, Y_LINE:TO_SOURCE] = lines["x_line"], lines["y_line"]
    frame[:, TO_SOURCE:CUTOUT] = (to_input[0] if slots else identity(count)).reshape(count, 6)
    frame[:, CUTOUT:HAS_THUMBNAIL] = plan.cutout
    frame[:, HAS_THUMBNAIL] = asked[:, 0]
    steps = np.empty((slots, count, STEP))
    steps[..., CODE], steps[..., RUN] = plan.codes.T, RUN_OF[plan.codes.T]
    steps[..., IS_ASKED], steps[..., MAGNITUDE] = asked[:, 1:].T, plan.magnitudes.T
    steps[..., VIEW_MAP:THUMBNAIL_MAP] = view_maps.reshape(slots, count, 6)
    steps[..., THUMBNAIL_MAP:] = thumbnail_maps.reshape(slots, count, 6)
    return Itinerary(frame, steps)


def _asked_from(plan: Plan) -> NDArray[np.bool_]:
    """(N, slots + 1) whether a statistical operation comes in that slot or in a later one."""
    count, slots = plan.codes.shape
    asked = np.zeros((count, slots + 1), dtype=np.bool_)
    asked[:, :slots] = np.logical_or.accumulate(IS_STATISTICAL[plan.codes][:, ::-1], axis=1)[:, ::-1]
    return asked
