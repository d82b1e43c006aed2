"""Section: number of images, and problems in the data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semifine.data.left_out import describe_left_out
from semifine.report.formatting import count, join_words
from semifine.report.names import data_labels, group_by_data
from semifine.report.section import ReportData, Section
from semifine.runs.run import Run

MAX_FILES = 10
MAX_LEFT_OUT = 100
SPLIT_NAMES = {"val": "validation"}

TEMPLATE = """
{% if data_sets %}
<section id="data">
<h2>Data set</h2>
{% for data in data_sets %}
<div class="prose">
<p><strong>{{ data.name }}</strong>: {{ data.counts }}.</p>
{% if data.problems %}
<div class="note" role="note"><ul>{% for problem in data.problems %}<li>{{ problem }}</li>{% endfor %}</ul></div>
{% else %}
<p class="small">No problems found: all images are readable, and no image is in both training and test set.</p>
{% endif %}
{% if data.left_out %}
<details><summary>Left out</summary><ul class="plain-list">
{% for line in data.left_out %}
<li>{{ line }}</li>
{% endfor %}
{% if data.more_left_out %}<li>and {{ data.more_left_out }} more; data.json lists all</li>{% endif %}
</ul></details>
{% endif %}
{% if data.copies %}
<details><summary>Exact copies</summary><ul class="plain-list">
{% for line in data.copies %}
<li>{{ line }}</li>
{% endfor %}
{% if data.more_copies %}<li>and {{ data.more_copies }} more</li>{% endif %}
</ul></details>
{% endif %}
</div>
{% endfor %}
</section>
{% endif %}
"""


@dataclass(frozen=True)
class DataView:
    """One data set."""

    name: str
    counts: str
    problems: list[str]
    left_out: list[str]
    """One line per image or class that is left out."""
    more_left_out: int
    copies: list[str]
    """One line per group of exact copies."""
    more_copies: int


def context(report: ReportData) -> dict[str, Any]:
    return {"data_sets": view_data(report.runs)}


SECTION = Section({"data": "Data"}, TEMPLATE, context)


def view_data(runs: Sequence[Run]) -> list[DataView]:
    """Returns one entry per data set with recorded checks."""
    names = data_labels(runs)
    recorded = [[index for index in indices if runs[index].data_report] for indices in group_by_data(runs)]
    return [_view(runs[indices[0]], names[indices[0]]) for indices in recorded if indices]


def _view(run: Run, name: str) -> DataView:
    report = run.data_report
    numbers = (report.get("splits") or {}).items()
    splits = [count(number, f"{SPLIT_NAMES.get(split, split)} image") for split, number in numbers if number]
    counts = f"{count(run.num_classes, 'class', 'classes')}; {join_words(splits)}"
    per_class = report.get("labeled_per_class") or {}
    if per_class:
        low, high = per_class["min"], per_class["max"]
        labeled = f"{low} to {high} labeled images" if low < high else count(low, "labeled image")
        counts += f"; {labeled} per class"
    truth = report.get("unlabeled_truth") or {}
    if truth.get("other_class"):
        counts += f"; {count(truth['other_class'], 'unlabeled image')} of other classes"
    copies = [" = ".join(map(str, group)) for group in report.get("duplicates") or []]
    problems = [*map(str, report.get("errors") or []), *map(str, report.get("warnings") or [])]
    items = run.left_out
    if items:
        problems.insert(0, f"Left out: {describe_left_out(items)}.")
    left_out = [f"{item.path}: {item.reason}" + (f" = {item.copy_of}" if item.copy_of else "") for item in items]
    return DataView(
        name,
        counts,
        problems,
        left_out[:MAX_LEFT_OUT],
        max(0, len(left_out) - MAX_LEFT_OUT),
        copies[:MAX_FILES],
        max(0, len(copies) - MAX_FILES),
    )
