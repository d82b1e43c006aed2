"""Measures the time of `semifine --help`, which every command needs at least.

python benchmarks/start_time.py --json benchmarks/results/start-time.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds to this file")
    options = parser.parse_args()
    seconds = [_seconds([sys.executable, "-m", "semifine", "--help"]) for _ in range(options.repeats)]
    result = {"median": round(statistics.median(seconds), 3), "slowest": round(max(seconds), 3)}
    print(f"semifine --help: {result['median']} s (median of {options.repeats}), slowest {result['slowest']} s")
    if options.json:
        options.json.write_text(json.dumps({**provenance(), **result}, indent=2) + "\n", encoding="utf-8")


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
