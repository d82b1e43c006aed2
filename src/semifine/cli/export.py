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
        description="Export a trained classifier as one file, and compare the file with the run.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--format", choices=tuple(SUFFIX), help="file format (default: by the suffix of --out, else onnx)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: model.onnx, .pt2 or .safetensors in RUN)"
    )
    add_checkpoint(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args(arguments)

    format = options.format or (format_of(options.out) if options.out else "onnx")
    out = options.out or options.run / f"model{SUFFIX[format]}"
    check_suffix(out, format)

    # Slow to import (torch).
    from semifine.inference.export import export
    from semifine.inference.model import load
    from semifine.training.progress import Display

    model = load(options.run, checkpoint=options.checkpoint, device="cpu")
    Display().log(model.calibration_note)
    difference = export(model, out, format)
    if options.json:
        print(json.dumps({"out": str(out), "format": format, "largest_difference": difference}))
    else:
        print(f"{out}: agrees with the run, largest difference of a probability {difference:.1g}")
    return 0
