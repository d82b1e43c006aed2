"""What was found to be wrong with the data, and how its images are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semifine.report.formatting import count, enumeration
from semifine.report.names import by_data, data_labels
from semifine.runs.run import Run

MAX_FILES = 10
SPLIT_NAMES = {"val": "validation"}


@dataclass(frozen=True)
class DataView:
    name: str
    counts: str
    problems: list[str]
    copies: list[str]
    """Groups of exact copies, each in one line."""
    more_copies: int


def view_data(runs: Sequence[Run]) -> list[DataView]:
    """One entry for each data set; empty where the runs noted nothing."""
    names = data_labels(runs)
    noted = [[place for place in places if runs[place].data_report] for places in by_data(runs)]
    return [_view(runs[places[0]], names[places[0]]) for places in noted if places]


def _view(run: Run, name: str) -> DataView:
    report = run.data_report
    numbers = (report.get("splits") or {}).items()
    splits = [count(number, f"{SPLIT_NAMES.get(name, name)} image") for name, number in numbers if number]
    spread = report.get("labeled_per_class") or {}
    counts = f"{count(run.num_classes, 'class', 'classes')}; {enumeration(splits)}"
    if spread:
        few, many = spread["min"], spread["max"]
        labeled = f"{few} to {many} labeled images" if few < many else count(few, "labeled image")
        counts += f"; {labeled} a class"
    truth = report.get("unlabeled_truth") or {}
    if truth.get("other_class"):
        counts += f"; {count(truth['other_class'], 'unlabeled image')} of no known class"
    copies = [" = ".join(map(str, group)) for group in report.get("duplicates") or []]
    problems = [*map(str, report.get("errors") or []), *map(str, report.get("warnings") or [])]
    aside = [str(path) for path in run.result.get("unreadable") or []]
    if aside:
        files = ", ".join(aside[:MAX_FILES]) + (", …" if len(aside) > MAX_FILES else "")
        problems.append(f"{count(len(aside), 'image')} could not be read and stayed out: {files}.")
    return DataView(name, counts, problems, copies[:MAX_FILES], max(0, len(copies) - MAX_FILES))
