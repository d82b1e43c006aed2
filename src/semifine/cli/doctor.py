"""semifine doctor"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from semifine.cli.main import Parser


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine doctor",
        description="Say what is installed, which devices there are, what the decoded images take and how much room is "
        "left for them, and what would go wrong. Changes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="folder of decoded images (default: that of 'semifine train')"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    options = parser.parse_args(arguments)

    from semifine.training.doctor import diagnose

    findings = diagnose(options.cache)
    if options.json:
        print(json.dumps(findings.as_dict()))
        return 0
    for name, value in findings.stats.items():
        print(f"{name:<22}{value}")
    print()
    for problem in findings.problems:
        print(f"problem: {problem}")
    if not findings.problems:
        print("nothing is wrong")
    return 0
