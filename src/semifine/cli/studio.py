"""semifine studio"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from semifine.cli.main import Parser, add_device
from semifine.errors import UserError


def run(arguments: Sequence[str]) -> int:
    options = _create_parser().parse_args(arguments)

    # Slow: these import torch.
    from semifine.runs.folder import RunFolder
    from semifine.studio.queue import default_log, export_labels

    run_path = RunFolder.open(options.run).path.resolve()
    log_file = options.db or default_log(run_path)
    if options.export:
        count = export_labels(log_file, options.export)
        print(f"{count} labels from {log_file} written to {options.export}")
        return 0
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UserError("The studio needs a web server: install it with pip install 'semifine[studio]'.")
    _serve(run_path, log_file, options)
    return 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine studio",
        description="Label the images that a run is uncertain about, on a local page in the browser.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--db",
        type=Path,
        metavar="FILE",
        help="label log (default: the log that the run was trained with, else RUN.studio.db beside the run)",
    )
    parser.add_argument(
        "--method", type=Path, metavar="FILE", help="method file for trainings, if the run was trained with one"
    )
    parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="print the URL without opening a browser")
    add_device(parser, "predict")
    parser.add_argument("--export", type=Path, metavar="CSV", help="write the labels to a CSV file and exit")
    return parser


def _serve(run_path: Path, log_file: Path, options: argparse.Namespace) -> None:
    # Optional: starlette and uvicorn are installed with semifine[studio].
    from semifine.data.label_log import LabelLog, check_is_log
    from semifine.studio.app import Studio, listen, serve
    from semifine.studio.snapshot import take_snapshot

    def ready(url: str) -> None:
        print(f"Labels are saved to {log_file}. Press Ctrl-C to stop.", file=sys.stderr)
        print(url, flush=True)
        if not options.no_browser:
            # In a thread, because some browsers such as w3m block until they are closed.
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    with listen(options.port) as listening:
        if log_file.exists():
            check_is_log(log_file)  # before the predictions, which take time
        print(f"Predicting all images of {options.run} ...", file=sys.stderr)
        snapshot = take_snapshot(run_path, options.device)
        studio = Studio(snapshot, LabelLog(log_file), options.device, options.method)
        if count := studio.label_queue.num_unknown_paths:
            print(f"note: {count} lines of {log_file} are about images that are not in this data set", file=sys.stderr)
        serve(studio, listening, ready)
