"""Supervised learning with the hidden labels of the unlabeled images: an upper bound."""

from typing import ClassVar

from semifine.methods.base import Group
from semifine.methods.supervised import Supervised


class Oracle(Supervised):
    """loss = 1/B sum CE(y, f(weak(x))), over labeled images and in-class unlabeled images with their hidden labels."""

    name = "oracle"
    title = "Oracle"
    color = "black"
    line_style = ":"
    group: ClassVar[Group] = "reference"
    summary = "supervised training that includes the hidden labels of unlabeled images (upper bound)"
    trains_on_truth = True
