"""Generates wrong input of every kind at random; each case must end with exit code 2 and one sentence.

python benchmarks/fuzz.py --cases 10000 --json benchmarks/results/fuzz.json
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import bad_inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases of all kinds together")
    parser.add_argument("--kinds", nargs="+", choices=bad_inputs.KINDS, default=list(bad_inputs.KINDS))
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the first case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to this file")
    options = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in options.kinds}
    started, slowest = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for number in range(options.cases):
            kind, seed = options.kinds[number % len(options.kinds)], options.seed + number
            case_started = time.perf_counter()
            try:
                outcome = f"exit code {bad_inputs.try_case(kind, random.Random(seed), Path(folder))}"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome = "FAILED"
                print(f"{kind} {seed}\n{traceback.format_exc(limit=-4)}", file=sys.stderr, flush=True)
            slowest = max(slowest, time.perf_counter() - case_started)
            counts[kind][outcome] += 1
    for kind, outcomes in counts.items():
        print(f"{kind:<16}" + "   ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items())))
    print(f"{options.cases} cases in {time.perf_counter() - started:.0f} s; slowest case: {slowest:.1f} s")
    if options.json:
        result = {"cases": options.cases, "seed": options.seed, "slowest_seconds": round(slowest, 2), "counts": counts}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(outcomes["FAILED"] for outcomes in counts.values()))


if __name__ == "__main__":
    main()
