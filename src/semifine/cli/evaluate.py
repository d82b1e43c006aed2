"""semifine evaluate"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from semifine.cli.main import Parser, add_checkpoint, add_device


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine evaluate",
        description="Measure the accuracy of a trained classifier on the test or validation images of its data set.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--split", choices=("test", "val"), default="test", help="images to evaluate (default: test)")
    add_checkpoint(parser)
    add_device(parser, "compute")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args(arguments)

    from semifine.inference.model import load  # slow: imports torch

    model = load(options.run, checkpoint=options.checkpoint, device=options.device)
    scores = model.evaluate(options.split)
    trained_with = model.run.result["images"].get(options.split) if model.run.folder.result.is_file() else None
    if trained_with not in (None, scores["images"]):
        print(f"note: at the time of training, the data set had {trained_with} {options.split} images", file=sys.stderr)
    if options.json:
        print(json.dumps(scores))
    else:
        print(
            f"{options.split}: top-1 {scores['top1']:.2f} %, top-5 {scores['top5']:.2f} % "
            f"on {scores['images']} images ({options.checkpoint} weights)"
        )
    return 0
