"""Soft label selection from class transitions (SoC). Depends on PyTorch only."""

from semifine.soft_labels.centroids import ClassCentroids
from semifine.soft_labels.clustering import Clustering, cluster_classes, k_medoids, objective
from semifine.soft_labels.granularity import Granularity, exponential_k, linear_k
from semifine.soft_labels.selector import OFFICIAL_CODE, Selection, SoftLabelSelector, select_candidates
from semifine.soft_labels.transitions import TransitionTracker

__all__ = [
    "OFFICIAL_CODE",
    "ClassCentroids",
    "Clustering",
    "Granularity",
    "Selection",
    "SoftLabelSelector",
    "TransitionTracker",
    "cluster_classes",
    "exponential_k",
    "k_medoids",
    "linear_k",
    "objective",
    "select_candidates",
]
