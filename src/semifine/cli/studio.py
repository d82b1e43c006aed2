"""semifine studio"""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from semifine.cli.main import Parser, add_device
from semifine.errors import UserError


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine studio",
        description="Open a page in the browser on which people label the images that a run is unsure of.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--db",
        type=Path,
        metavar="FILE",
        help="log of the labels (default: the one that the run learned from, else RUN.studio.db beside the run)",
    )
    parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    add_device(parser, "compute")
    parser.add_argument("--export", type=Path, metavar="CSV", help="write the labels given so far to a file, and end")
    options = parser.parse_args(arguments)

    from semifine.runs.folder import RunFolder
    from semifine.studio.server import export_labels, log_of_run

    run_path = RunFolder.open(options.run).path.resolve()
    file = options.db or log_of_run(run_path)
    if options.export:
        count = export_labels(file, options.export)
        print(f"{count} labels from {file} written to {options.export}")
        return 0
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UserError("The studio needs a small web server: install it with pip install 'semifine[studio]'.")

    from semifine.data.label_log import LabelLog, check_is_log
    from semifine.studio.app import Studio
    from semifine.studio.server import listen, serve
    from semifine.studio.snapshot import take_snapshot

    def ready(address: str) -> None:
        print(f"Labels go to {file}. Stop with Ctrl-C.", file=sys.stderr)
        print(address, flush=True)
        if not options.no_browser:
            # In a thread: some browsers, such as w3m, keep whoever opens them waiting, and want to be served meanwhile.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with listen(options.port) as listening:
        if file.exists():
            check_is_log(file)  # before the long look at all images; the file is begun after it
        print(f"Looking at all images of {options.run} ...", file=sys.stderr)
        snapshot = take_snapshot(run_path, options.device)
        studio = Studio(snapshot, LabelLog(file), options.device)
        if studio.label_queue.elsewhere:
            print(f"note: {studio.label_queue.elsewhere} lines of {file} are about other images", file=sys.stderr)
        serve(studio, listening, ready)
    return 0
