"""Section: the linear probe, the trained network, and which of them or which weights between them are the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semifine.report.formatting import MISSING, NO_BREAK_SPACE, count, percent
from semifine.report.section import ReportData, Section
from semifine.runs.accuracy import at_weight, describe_difference
from semifine.runs.analysis import wilson_interval
from semifine.runs.run import Run

MAX_OPEN = 4
"""Runs whose table is open at first."""

TEMPLATE = """
{% if probes %}
<section id="probe">
<h2>Probe and training</h2>
{% for probe in probes %}
{% if loop.index > max_open %}<details><summary>{{ probe.label }}</summary>{% endif %}
<div class="scroll" tabindex="0" role="region" aria-label="Probe and trained network of {{ probe.label }}">
<table>
<thead>
<tr>
<th scope="col">{{ probe.label }}</th>
{% for title in probe.columns %}
<th scope="col" class="number">{{ title.split(",")[0] }}<small>{{ title.split(",")[1] }}</small></th>
{% endfor %}
</tr>
</thead>
<tbody>
{% for row in probe.rows %}
<tr>
<th scope="row">{{ row.name }}</th>
{% for cell in row.cells %}
<td class="number">{{ cell.text }}{% if cell.interval %}<small>{{ cell.interval }}</small>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
<div class="prose">
{% for sentence in probe.sentences %}
<p>{{ sentence }}</p>
{% endfor %}
</div>
{% if loop.index > max_open %}</details>{% endif %}
{% endfor %}
<p class="small">The probe is a linear classifier on the features of the pretrained network. Numbers are top-1
accuracies with their 95 % intervals. No result on test images influenced the choice.</p>
</section>
{% endif %}
"""


@dataclass(frozen=True)
class Cell:
    """An accuracy and its interval, formatted."""

    text: str
    interval: str


@dataclass(frozen=True)
class Row:
    """The accuracies of one network."""

    name: str
    cells: list[Cell]


@dataclass(frozen=True)
class ProbeView:
    """The networks of one run."""

    label: str
    columns: list[str]
    rows: list[Row]
    sentences: list[str]


def context(report: ReportData) -> dict[str, Any]:
    views = [view_probe(run, label) for run, label in zip(report.runs, report.labels, strict=True)]
    return {"probes": [view for view in views if view is not None], "max_open": MAX_OPEN}


SECTION = Section({"probe": "Probe"}, TEMPLATE, context)


def view_probe(run: Run, label: str) -> ProbeView | None:
    """Returns the accuracies of the probe, the trained network and the result; None for a run without a probe."""
    result = run.result
    probe, trained, comparison = (result.get(name) or {} for name in ("probe", "trained", "comparison"))
    if not probe:
        return None
    images = result.get("images") or {}
    weight, tops = result.get("weight"), comparison.get("top1") or [None]
    networks = {
        "Probe": (probe.get("top1"), tops[0]),
        "Trained network": (trained.get("top1"), tops[-1]),
        f"Weights between them ({weight})": (result.get("top1"), at_weight(comparison.get("top1") or [], weight)),
    }
    if not trained:
        networks = {"Probe": networks["Probe"]}
    elif result.get("chosen") != "interpolated":
        networks = dict(list(networks.items())[:2])
    cv = probe.get("cross_validation") or {}
    numbers = (cv.get("images"), comparison.get("images"), images.get("test"))
    cv_images, held_out, tested = (int(number or 0) for number in numbers)
    columns = {
        f"Labeled images,cross-validation on {count(cv_images, 'image')}": [
            _cell(cv.get("top1") if name == "Probe" else None, cv_images) for name in networks
        ],
        f"{_held_out_name(run).capitalize()},{count(held_out, 'image')}": [
            _cell(top1, held_out) for _, top1 in networks.values()
        ],
        f"Test images,{count(tested, 'image')}": [_cell(top1, tested) for top1, _ in networks.values()],
    }
    columns = {title: cells for title, cells in columns.items() if any(cell.text != MISSING for cell in cells)}
    rows = [Row(name, [cells[index] for cells in columns.values()]) for index, name in enumerate(networks)]
    return ProbeView(label, list(columns), rows, _sentences(run, probe, trained, comparison))


def _cell(value: float | None, images: int) -> Cell:
    interval = wilson_interval(value, images) if value is not None and images else None
    return Cell(percent(value), f"{interval.low:.1f} to {interval.high:.1f}" if interval else "")


def _held_out_name(run: Run) -> str:
    return "validation images" if (run.result.get("images") or {}).get("val") else "labels held out for a trial"


def _sentences(run: Run, probe: dict[str, Any], trained: dict[str, Any], comparison: dict[str, Any]) -> list[str]:
    result, sentences = run.result, []
    chosen = {
        "probe": "the probe",
        "trained": "the trained network",
        "interpolated": f"a network with weights between both (share of the trained network{NO_BREAK_SPACE}"
        f"{result.get('weight')})",
    }.get(result.get("chosen") or "", "")
    if not trained:
        return [f"The result is {chosen}; this run took no training steps."] if chosen else []
    if comparison.get("top1") and comparison.get("images"):
        tops, images = comparison["top1"], comparison["images"]
        sentences.append(
            f"The result is {chosen}, because it has the lowest loss on {count(images, 'image')} "
            f"({_held_out_name(run)}). On them, training changed the accuracy by "
            f"{describe_difference(tops[0], tops[-1], images)}."
        )
    elif chosen:
        sentences.append(f"The result is {chosen}. There were no held-out images to compare both on.")
    tested = (run.result.get("images") or {}).get("test") or 0
    if tested and probe.get("top1") is not None and trained.get("top1") is not None:
        difference = describe_difference(probe["top1"], trained["top1"], tested)
        sentences.append(f"On the test images, training changed the accuracy by {difference}.")
    return sentences
