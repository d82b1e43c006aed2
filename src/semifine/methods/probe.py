"""The linear probe: logistic regression on the features of a pretrained network that does not change."""

from __future__ import annotations

from typing import ClassVar

from semifine.methods.base import Group
from semifine.methods.supervised import Supervised


class Probe(Supervised):
    """A linear classifier on frozen features, fitted by ``training/probe.py`` before the first step.

    Every training from a pretrained network can start with this classifier. As a method, it takes no steps.
    """

    name = "probe"
    title = "Probe"
    color = "black"
    line_style = "--"
    group: ClassVar[Group] = "reference"
    summary = "logistic regression on the features of the pretrained network; takes no training steps"
    takes_steps = False
