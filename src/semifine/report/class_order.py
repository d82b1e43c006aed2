"""Chooses the run whose classes a report shows, and orders the classes by cluster or group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.runs.analysis import class_clusters, drop_unlinked
from semifine.runs.run import Run


@dataclass(frozen=True)
class ClassOrder:
    """The classes of one run in blocks, followed by the classes without a block."""

    run: Run
    label: str
    blocks: list[list[int]]
    singles: list[int]
    kind: str
    """``clusters`` that the run has learned, ``groups`` of the data set, or ``none``."""
    k: int = 0
    reason: str = ""
    """Why there are k clusters."""

    @cached_property
    def order(self) -> list[int]:
        """All class ids, block by block."""
        return [member for members in self.blocks for member in members] + self.singles

    @cached_property
    def confusion(self) -> NDArray[np.int64] | None:
        """(K, K) confusions on test images, otherwise on labeled images in cross-validation; None without both.

        Row is the class of the image, column the predicted one.
        """
        if self.run.confusion is not None:
            return self.run.confusion
        check = self.run.label_check
        return None if check is None else check.confusion(self.run.num_classes)

    @property
    def confusion_images(self) -> str:
        """The images that :attr:`confusion` counts."""
        return "test images" if self.run.confusion is not None else "labeled images in cross-validation of the probe"


def has_transitions(run: Run) -> bool:
    """Whether the run counted at least one class transition."""
    return run.transitions is not None and bool(run.transitions.any())


def choose_run(runs: Sequence[Run]) -> int | None:
    """Returns the index of the first run with transitions, otherwise of the last run with a confusion matrix.

    Without both, the last run whose labels were checked, or that has statistics of unlabeled images.
    """
    tracked = [index for index, run in enumerate(runs) if has_transitions(run)]
    tested = [index for index, run in enumerate(runs) if run.confusion is not None]
    others = [index for index, run in enumerate(runs) if run.label_check is not None or run.sample_columns()]
    return next(iter(tracked + tested[::-1] + others[::-1]), None)


def order_classes(run: Run, label: str, k: int | None = None) -> ClassOrder:
    """Orders classes by learned clusters, otherwise by the groups of the data set, otherwise by class id.

    Args:
        run: A finished run.
        label: Name of the run in the report.
        k: Number of clusters; by default the one that :func:`choose_k` returns.
    """
    if has_transitions(run):
        assert run.transitions is not None
        if k is not None and not 1 <= k <= run.num_classes:
            raise UserError(f"--clusters is {k}, but must be between 1 and the number of classes, {run.num_classes}.")
        k, reason = (k, "as requested") if k else choose_k(run)
        blocks, singles = drop_unlinked(class_clusters(run.transitions, k), run.transitions)
        return ClassOrder(run, label, blocks, singles, "clusters", k, reason)
    if run.class_groups is not None:
        members: dict[str, list[int]] = {}
        for class_id, group in enumerate(run.class_groups):
            members.setdefault(group, []).append(class_id)
        return ClassOrder(run, label, list(members.values()), [], "groups")
    return ClassOrder(run, label, [], list(range(run.num_classes)), "none")


def choose_k(run: Run) -> tuple[int, str]:
    """Returns a number of clusters and the reason: the number of groups, or SoC's number at full confidence."""
    groups = len(set(run.class_groups or ()))
    if 1 < groups < run.num_classes:
        return groups, "the number of groups"
    k = _k_at_full_confidence(run.num_classes, run.settings.get("method"))
    if 1 < k < run.num_classes:
        return k, "the number that the method uses at full confidence"
    return _k_at_full_confidence(run.num_classes, {}), "the number that the paper\u2019s method uses at full confidence"


def describe_groups(run: Run) -> str:
    """Returns the source of the groups. Words of class names are less reliable than a taxonomy."""
    words = [name.split() for name in run.class_names]
    for index, which in ((0, "first"), (-1, "last")):
        if run.class_groups == tuple(name[index] if name else "" for name in words):
            return f"the {which} words of the class names"
    return "as defined by the data set"


def _k_at_full_confidence(num_classes: int, method: Any) -> int:
    """Returns the largest k of a method's granularity map, with the paper's values for missing settings."""
    from semifine.soft_labels.granularity import Granularity  # imports torch, which is slow

    settings = method if isinstance(method, dict) else {}
    given = {field.name: settings[field.name] for field in fields(Granularity) if field.name in settings}
    return Granularity(num_classes, **given).k_max if num_classes > 1 else 1
