"""semifine export"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from semifine.cli.main import Parser, add_checkpoint
from semifine.inference.export import SUFFIX, check_suffix, format_of


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine export",
        description="Write a trained classifier as one file for other programs, checked against the run.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--format", choices=tuple(SUFFIX), help="kind of file (default: as --out ends, without it onnx)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: model.onnx, .pt2 or .safetensors in RUN)"
    )
    add_checkpoint(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")
    options = parser.parse_args(arguments)

    format = options.format or (format_of(options.out) if options.out else "onnx")
    out = options.out or options.run / f"model{SUFFIX[format]}"
    check_suffix(out, format)

    from semifine.inference.export import export
    from semifine.inference.model import load
    from semifine.training.progress import Display

    run = load(options.run, checkpoint=options.checkpoint, device="cpu")
    Display().log(run.calibration_note)
    difference = export(run, out, format)
    if options.json:
        print(json.dumps({"out": str(out), "format": format, "largest_difference": difference}))
    else:
        print(f"{out}: agrees with the run, largest difference of a probability {difference:.1g}")
    return 0
