"""Which run's classes a page shows, and how they are put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from semifine.errors import UserError
from semifine.runs.analysis import class_clusters, drop_unlinked
from semifine.runs.run import Run


@dataclass(frozen=True)
class Arrangement:
    """The blocks of classes of one run that stand together, and the classes that stand alone."""

    run: Run
    label: str
    blocks: list[list[int]]
    alone: list[int]
    kind: str
    """``clusters`` that the run has learned, else the ``groups`` of the data, else ``none``."""
    k: int = 0
    reason: str = ""

    @cached_property
    def order(self) -> list[int]:
        return [member for members in self.blocks for member in members] + self.alone


def has_transitions(run: Run) -> bool:
    return run.transitions is not None and bool(run.transitions.any())


def choose_run(runs: Sequence[Run]) -> int | None:
    """The place of the first run with transitions, else of the last one with a confusion matrix."""
    tracked = [place for place, run in enumerate(runs) if has_transitions(run)]
    tested = [place for place, run in enumerate(runs) if run.confusion is not None]
    return next(iter(tracked + tested[::-1]), None)


def arrange(run: Run, label: str, wanted: int | None = None) -> Arrangement:
    """By learned clusters where there are transitions, by groups where those are known, else as they come.

    ``wanted`` is a number of clusters to take instead of the one that ``choose_k`` finds.
    """
    if has_transitions(run):
        assert run.transitions is not None
        if wanted is not None and not 1 <= wanted <= run.num_classes:
            raise UserError(f"{run.num_classes} classes form 1 to {run.num_classes} clusters, not {wanted}.")
        k, reason = (wanted, "as asked for") if wanted else choose_k(run)
        blocks, alone = drop_unlinked(class_clusters(run.transitions, k), run.transitions)
        return Arrangement(run, label, blocks, alone, "clusters", k, reason)
    if run.class_groups is not None:
        members: dict[str, list[int]] = {}
        for place, group in enumerate(run.class_groups):
            members.setdefault(group, []).append(place)
        return Arrangement(run, label, list(members.values()), [], "groups")
    return Arrangement(run, label, [], list(range(run.num_classes)), "none")


def choose_k(run: Run) -> tuple[int, str]:
    """As many clusters as there are groups; else as many as SoC forms for an image it is sure of."""
    groups = len(set(run.class_groups or ()))
    if 1 < groups < run.num_classes:
        return groups, "as many as there are groups, to compare them"
    k = _finest(run.num_classes, run.settings.get("method"))
    if 1 < k < run.num_classes:
        return k, "as many as the method forms for an image that it is sure of"
    return _finest(run.num_classes, {}), "as many as the paper\u2019s method forms for an image that it is sure of"


def groups_told(run: Run) -> str:
    """How the groups are known: words of the class names say less than a taxonomy."""
    words = [name.split() for name in run.class_names]
    for place, which in ((0, "first"), (-1, "last")):
        if run.class_groups == tuple(own[place] if own else "" for own in words):
            return f"the {which} words of the class names"
    return "as the data set names them"


def _finest(num_classes: int, method: Any) -> int:
    """The number of clusters at full confidence by a method's map; by the paper's where its settings have none."""
    from semifine.soft_labels.granularity import Granularity

    settings = method if isinstance(method, dict) else {}
    own = {field.name: settings[field.name] for field in fields(Granularity) if field.name in settings}
    return Granularity(num_classes, **own).k_max if num_classes > 1 else 1
