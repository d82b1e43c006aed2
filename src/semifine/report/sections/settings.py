"""Section: settings and environment of all runs side by side."""

from __future__ import annotations

from typing import Any

from semifine.report.run_settings import environment_rows, settings_rows
from semifine.report.section import ReportData, Section

TEMPLATE = """
{% macro side_by_side(rows, title) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ title }}">
<table class="settings">
<thead>
<tr><th scope="col">{{ title }}</th>{% for label in labels %}<th scope="col">{{ label }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for row in rows %}
<tr{% if row.differs %} class="differs"{% endif %}>
<th scope="row">{{ row.key }}</th>{% for value in row["values"] %}<td>{{ value }}</td>{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
<section id="settings">
<h2>Settings and environment</h2>
<details>
<summary>All settings of the {{ "run" if labels|length == 1 else "%d runs"|format(labels|length) }}, hardware and
versions</summary>
{% if labels|length > 1 %}<p class="small">Highlighted rows differ between the runs.</p>{% endif %}
{{ side_by_side(settings, "Setting") }}
{% if environment %}{{ side_by_side(environment, "Environment") }}{% endif %}
</details>
</section>
"""


def context(report: ReportData) -> dict[str, Any]:
    return {
        "labels": report.labels,
        "settings": settings_rows(report.runs),
        "environment": environment_rows(report.runs),
    }


SECTION = Section({"settings": "Settings"}, TEMPLATE, context)
