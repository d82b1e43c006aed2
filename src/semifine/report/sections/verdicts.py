"""Section: whether the unlabeled data helps, compared with supervised training under the same budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifine.report.formatting import count, join_words, percent, points
from semifine.report.names import data_labels, group_by_data, is_reference
from semifine.report.run_settings import differences_beyond_method
from semifine.report.scores import Comparison, ResultRow, collect_scores, compare, find_baseline
from semifine.report.section import ReportData, Section
from semifine.runs.run import Run

TEMPLATE = """
{% if box.verdicts or box.advice %}
<section id="help">
<h2>Does the unlabeled data help?</h2>
<div class="verdicts">
{% for verdict in box.verdicts %}
  <div class="verdict {{ verdict.word|replace(" ", "-") }}">
    <span class="answer">{{ verdict.word|capitalize }}</span>
    <div>
      <p><span class="dot" style="background: var(--hue-{{ verdict.hue }})"></span><strong>{{ verdict.label }}</strong>
      reaches {{ verdict.accuracy }}, supervised training {{ verdict.baseline }}:
      <strong>{{ verdict.difference }}</strong>
      {%- if verdict.margin %}; the 95 % margin of error is {{ verdict.margin }}{% endif %}.</p>
      <p class="small">{{ verdict.sentence }}</p>
    </div>
  </div>
{% endfor %}
{% for difference in box.unequal %}
  <p class="small">Different budgets: {{ difference }}.</p>
{% endfor %}
{% if box.verdicts and not box.unequal %}
  <p class="small">All runs use the same data, steps and network. The supervised run uses only the labeled images.</p>
{% endif %}
{% for advice in box.advice %}
  <p class="empty">{{ advice.text }}</p>
  {% if advice.command %}<p><code class="command">{{ advice.command }}</code></p>{% endif %}
{% endfor %}
</div>
</section>
{% endif %}
"""

EXPLANATIONS = {
    "yes": "The difference is significant at the 1 % level.",
    "probably": "The difference is significant at the 5 % level, but not at the 1 % level. Repeat with other seeds.",
    "inconclusive": "The difference is not significant at the 5 % level.",
    "probably not": "The unlabeled images reduced the accuracy. The difference is significant at the 5 % level, but "
    "not at the 1 % level. Repeat with other seeds.",
    "no": "The unlabeled images reduced the accuracy. The difference is significant at the 1 % level.",
}


@dataclass(frozen=True)
class Verdict:
    """A method compared with supervised training, formatted."""

    label: str
    hue: str
    accuracy: str
    baseline: str
    difference: str
    margin: str
    word: str
    """``yes``, ``probably``, ``inconclusive``, ``probably not`` or ``no``."""
    sentence: str


@dataclass(frozen=True)
class Advice:
    """What to do if there is no run to compare with."""

    text: str
    command: str = ""
    """The complete command line."""


@dataclass(frozen=True)
class VerdictBox:
    """Content of the section."""

    verdicts: list[Verdict]
    unequal: list[str]
    """Runs and the settings, besides the method, in which they differ."""
    advice: list[Advice]


def context(report: ReportData) -> dict[str, Any]:
    return {"box": compare_runs(report.runs, report.rows)}


SECTION = Section({"help": "Does it help?"}, TEMPLATE, context)


def compare_runs(runs: Sequence[Run], rows: Sequence[ResultRow]) -> VerdictBox:
    """Compares each method that uses unlabeled images with the supervised runs on the same data."""
    verdicts: list[Verdict] = []
    unequal: list[str] = []
    advice: list[Advice] = []
    data_sets, names = group_by_data(runs), data_labels(runs)
    for indices in data_sets:
        data_runs, data_rows = [runs[index] for index in indices], [rows[index] for index in indices]
        scores = collect_scores(data_runs, data_rows)
        if find_baseline(scores) is None:
            advice += _advice(data_runs, data_rows, is_measured=bool(scores))
            continue
        comparisons = compare(scores)
        verdicts += [_verdict(comparison) for comparison in comparisons]
        different = differences_beyond_method(data_runs) if comparisons else []
        if different:
            where = f" on {names[indices[0]]}" if len(data_sets) > 1 else ""
            unequal.append(f"the runs{where} differ in {join_words(different)}")
    return VerdictBox(verdicts, unequal, advice)


def _advice(runs: Sequence[Run], rows: Sequence[ResultRow], is_measured: bool) -> list[Advice]:
    """Returns advice for runs on one data set; none if all of them are references."""
    learners = [(run, row) for run, row in zip(runs, rows, strict=True) if not is_reference(run.method)]
    if not learners:
        return []
    methods = join_words(list(dict.fromkeys(row.method for _, row in learners)))
    if not is_measured:
        return [Advice(f"{methods}: there are no test or validation images to compare on.")]
    missing = "this report has no supervised run with the same data and settings to compare with. Train one:"
    return [Advice(f"{methods}: {missing}", supervised_command(learners[0][0].path))]


def _verdict(comparison: Comparison) -> Verdict:
    score, baseline, margin = comparison.score, comparison.baseline, comparison.margin
    digits = comparison.digits
    sentence = EXPLANATIONS[comparison.verdict]
    if margin is None:
        sentence = f"The number of {score.split} images is unknown, so the margin of error is unknown, too."
    single = [compared.label for compared in (score, baseline) if len(compared.values) == 1]
    if single:
        which = "Both methods have" if len(single) == 2 else f"{single[0]} has"
        sentence += f" {which} one seed, so the margin does not include the variance over seeds."
    return Verdict(
        label=score.label,
        hue=score.hue,
        accuracy=percent(score.mean),
        baseline=percent(baseline.mean),
        difference=points(comparison.difference, digits),
        margin="" if margin is None else f"±{margin:.{digits}f} on {count(comparison.images, f'{score.split} image')}",
        word=comparison.verdict,
        sentence=sentence,
    )


def supervised_command(run: Path) -> str:
    """Returns a command that trains a supervised run with the settings of another run, in a folder beside it."""
    folder = run if run.name not in ("", "..") else run.resolve()
    out = folder.with_name(f"{folder.name}-supervised")
    return shlex.join(
        ["semifine", "train", "--config", str(folder / "settings.yaml"), "--method", "supervised", "--out", str(out)]
    )
