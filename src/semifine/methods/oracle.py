"""Supervised learning with the hidden labels shown: the upper reference."""

from typing import ClassVar

from semifine.methods.base import Group
from semifine.methods.supervised import Supervised


class Oracle(Supervised):
    """Supervised on labeled and in-class unlabeled images, all with their true label."""

    name = "oracle"
    title = "Oracle"
    color = "black"
    line_style = ":"
    group: ClassVar[Group] = "reference"
    summary = "supervised, the true labels of unlabeled images included (upper reference)"
    trains_on_truth = True
