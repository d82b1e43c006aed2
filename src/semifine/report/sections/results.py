"""Section: the numbers of each run, its run time, and its pseudo-labels of images of other classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semifine.report.formatting import MISSING, count, decimal, duration, join_words, percent, three_digits, with_unit
from semifine.report.names import is_reference
from semifine.report.scores import ResultRow
from semifine.report.section import ReportData, Section
from semifine.runs.run import Run

TEMPLATE = """
<section id="results">
<h2>Results</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Results table">
<table class="results">
<thead>
<tr>
<th scope="col">Method</th>
<th scope="col" class="number">Seed</th>
{% for column in columns %}
<th scope="col" class="number">{{ column.title }}<small>{{ column.explanation }}</small></th>
{% endfor %}
</tr>
</thead>
<tbody>
{% for row in rows %}
<tr>
<th scope="row"><span class="dot" style="background: var(--hue-{{ row.hue }})"></span>{{ row.label }}</th>
<td class="number">{{ row.seed }}</td>
{% for column in columns %}
{% set cell = row.cells[column.key] %}
<td class="number{{ ' quiet' if column.key == 'best_on_test' }}" data-column="{{ column.key }}">
{%- if cell.value is none %}{{ cell.text }}{% else %}<data value="{{ cell.value }}">{{ cell.text }}</data>{% endif %}
{% if cell.interval %}<small>{{ cell.interval }}</small>{% endif %}
</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
<div class="prose small">
{% set filled = columns|map(attribute="key")|list %}
<p>
{% if "top1" in filled %}
Top-1 and top-5 accuracy of the resulting network. No result on test images influenced this choice. Below each accuracy
is its 95 % interval for new photos like the test images.
{% elif "val" in filled %}
There are no test images. The accuracy is measured on validation images, with its 95 % interval.
{% endif %}
{% if "best_on_test" in filled %}
<em>Best on test</em> is the evaluation with the highest test accuracy, as in the paper. Use it only to compare with
published numbers; it overestimates the accuracy.
{% endif %}
{% if "pseudo_label_accuracy" in filled %}
Pseudo-label accuracy, candidate classes and hit rate describe the labels that the method makes for unlabeled images at
the end of training, for images with a known true class.
{% elif "candidates" in filled %}
Candidate classes describe the labels that the method makes for unlabeled images at the end of training.
{% endif %}
</p>
{% for line in times %}
<p>{{ line }}</p>
{% endfor %}
</div>
{% if outside %}
<h3>Unlabeled images of known and of other classes</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Unlabeled images of known and of other classes">
<table>
<thead>
<tr>
<th scope="col">Run</th>
<th scope="col">Unlabeled images</th>
<th scope="col" class="number">Number</th>
<th scope="col" class="number">Mean confidence</th>
<th scope="col" class="number">Candidate classes</th>
<th scope="col" class="number">Accepted pseudo-labels</th>
</tr>
</thead>
<tbody>
{% for row in outside %}
<tr>
<th scope="row">{{ row.label }}</th>
<td>{{ row.which }}</td>
<td class="number">{{ row.images }}</td>
<td class="number">{{ row.confidence }}</td>
<td class="number">{{ row.candidates }}</td>
<td class="number">{{ row.accepted }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endif %}
</section>
"""


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    key: str
    title: str
    explanation: str


COLUMNS = (
    Column("top1", "Top-1", "test images"),
    Column("top5", "Top-5", "test images"),
    Column("val", "Validation", "top-1"),
    Column("selected_on_val", "Selected on validation", "test top-1 at the best validation accuracy"),
    Column("best_on_test", "Best on test", "the paper\u2019s protocol; too optimistic"),
    Column("pseudo_label_accuracy", "Pseudo-label accuracy", "unlabeled images, end of training"),
    Column("candidates", "Candidate classes", "mean per unlabeled image"),
    Column("candidate_hit_rate", "Hit rate", "true class is a candidate"),
    Column("agreement", "Agreement with groups", "adjusted Rand index"),
    Column("seconds", "Time", "without start-up"),
)


def context(report: ReportData) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "columns": filled_columns(report.rows),
        "outside": outside_rows(report.runs, report.labels),
        "times": time_lines(report.runs, report.labels),
    }


SECTION = Section({"results": "Results"}, TEMPLATE, context)


def filled_columns(rows: Sequence[ResultRow]) -> list[Column]:
    """Returns the columns with at least one number. Validation accuracy is left out if there is test accuracy."""
    filled = {key for row in rows for key, cell in row.cells.items() if cell.value is not None}
    wanted = filled - ({"val"} if "top1" in filled else set())
    if all(row.cells["candidates"].value in (None, 1.0) for row in rows):
        wanted -= {"candidates"}  # hard labels
    return [column for column in COLUMNS if column.key in wanted]


@dataclass(frozen=True)
class OutsideRow:
    """Labels that a run makes for unlabeled images of known classes, or of other classes."""

    label: str
    which: str
    images: str
    confidence: str
    candidates: str
    accepted: str


def outside_rows(runs: Sequence[Run], labels: Sequence[str]) -> list[OutsideRow]:
    """Returns two rows for each run with unlabeled images that are known to show other classes."""
    rows = []
    for run, label in zip(runs, labels, strict=True):
        for key, which in (("in_class", "of known classes"), ("out_of_class", "of other classes")):
            means = run.unlabeled.get(key)
            if isinstance(means, dict):
                rows.append(
                    OutsideRow(
                        label,
                        which,
                        count(means["images"], "image"),
                        percent(100 * means["confidence"]),
                        decimal(means["candidates"], 1),
                        MISSING if is_reference(run.method) else percent(100 * means["accepted"]),
                    )
                )
    return rows


# name in result.json -> name in the report
PARTS = {
    "probe": "probe",
    "steps": "steps",
    "evaluation": "evaluation",
    "saving": "checkpoints",
    "start_up": "start-up",
}


def time_lines(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """Returns a line about the run time of each run that recorded it."""
    return [_time_line(run, label) for run, label in zip(runs, labels, strict=True) if any(run.time.values())]


def _time_line(run: Run, label: str) -> str:
    total = sum(run.time.values())
    shares = [f"{_share(run.time[part] / total)} {name}" for part, name in PARTS.items() if run.time.get(part)]
    return f"{label}: {duration(total)} in total, {join_words(shares)}{_speed(run)}."


def _speed(run: Run) -> str:
    words = []
    if run.step_seconds is not None:
        has_supervised_steps = run.supervised_steps and not is_reference(run.method)
        which = " with unlabeled images" if has_supervised_steps else ""
        words.append(f"{with_unit(three_digits(1000 * run.step_seconds), 'ms')} per step{which}")
    if len(speeds := run.of_full_steps("images_per_second")):
        words.append(count(float(np.median(speeds)), "image") + " per second")
    if len(waits := run.of_full_steps("data_wait")):
        words.append(f"{_share(float(waits.mean()))} of the step time waiting for batches")
    if run.peak_gpu_bytes:
        words.append(f"{with_unit(three_digits(run.peak_gpu_bytes / 1e9), 'GB')} of GPU memory at the peak")
    return f"; {join_words(words)}" if words else ""


def _share(part: float) -> str:
    return with_unit(f"{100 * part:.0f}", "%")
