"""Supervised learning with the hidden labels shown: the upper reference."""

from semifine.methods.supervised import Supervised


class Oracle(Supervised):
    """Supervised on labelled and in-class unlabelled images, all with their true label."""

    name = "oracle"
    summary = "supervised, the true labels of unlabelled images included (upper reference)"
    trains_on_truth = True
