"""From the facts in run folders to what they say: agreement of partitions, clusters of classes, series over steps."""

from semifine.analysis.agreement import adjusted_rand_index
from semifine.analysis.clusters import (
    ConfusedPair,
    agreement_with_groups,
    class_clusters,
    most_confused_pairs,
    separate_loose,
    share_within,
)
from semifine.analysis.runs import ClassLabels, RunFacts, Series, read_run

__all__ = [
    "ClassLabels",
    "ConfusedPair",
    "RunFacts",
    "Series",
    "adjusted_rand_index",
    "agreement_with_groups",
    "class_clusters",
    "most_confused_pairs",
    "read_run",
    "separate_loose",
    "share_within",
]
