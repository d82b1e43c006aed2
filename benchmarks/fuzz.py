"""Generates wrong input of every kind at random; each case must end with exit code 2 and one sentence.

python benchmarks/fuzz.py --cases 50000 --workers 8 --log fuzz.jsonl --json benchmarks/results/fuzz.json

The same command with the same log continues an interrupted run.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))

from provenance import provenance
from tests.faults import bad_inputs

CHUNK = 1000
"""Number of cases of one process."""
HIDDEN = ("counts", "hardware", "command")
"""Parts of the result that are not printed in its last line."""
HARD_LIMIT = 10 * bad_inputs.TIME_LIMIT
"""Seconds after which a process ends that does not react to the time limit of a case."""


def run_chunk(kinds: list[str], numbers: list[int], seed: int) -> None:
    """Runs cases in this process and prints a line of JSON for each."""
    output = sys.stdout
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for number in numbers:
            kind = kinds[number % len(kinds)]
            faulthandler.dump_traceback_later(HARD_LIMIT, exit=True)
            started = time.perf_counter()
            try:
                outcome = f"exit code {bad_inputs.try_case(kind, random.Random(seed + number), Path(folder))}"
            except TimeoutError:
                outcome = "hang"
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                outcome = "wrong message" if isinstance(error, AssertionError) else "traceback"
                print(f"{kind} {seed + number}\n{traceback.format_exc(limit=-6)[-3000:]}", file=sys.stderr, flush=True)
            seconds = round(time.perf_counter() - started, 3)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            record = {"case": number, "kind": kind, "outcome": outcome, "seconds": seconds, "peak_mb": peak}
            print(json.dumps(record), file=output, flush=True)


def run_in_process(kinds: list[str], numbers: list[int], seed: int) -> Iterator[dict[str, Any]]:
    """Runs cases in processes; a case that ends its process is recorded, and the others continue in a new one."""
    waiting = list(numbers)
    while waiting:
        command = [sys.executable, __file__, "--seed", str(seed), "--kinds", *kinds, "--chunk", *map(str, waiting)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"case": '):
                    record = json.loads(line)
                    waiting.remove(record["case"])
                    yield record
        if waiting and process.returncode:
            number = waiting.pop(0)
            outcome = f"process ended with {process.returncode}"
            yield {"case": number, "kind": kinds[number % len(kinds)], "outcome": outcome, "seconds": 0.0, "peak_mb": 0}


def read_log(log: Path | None) -> list[dict[str, Any]]:
    """The records of the cases that an interrupted run finished."""
    if log is None or not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the cases that are not in the log yet; returns the records of all."""
    records = read_log(options.log)
    finished = {record["case"] for record in records}
    numbers = [number for number in range(options.cases) if number not in finished]
    chunks = [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
    lock = Lock()
    with ExitStack() as stack:
        log: TextIO | None = stack.enter_context(options.log.open("a", encoding="utf-8")) if options.log else None

        def run(chunk: list[int]) -> None:
            for record in run_in_process(options.kinds, chunk, options.seed):
                with lock:
                    records.append(record)
                    if log is not None:
                        print(json.dumps(record), file=log, flush=True)

        pool = stack.enter_context(ThreadPoolExecutor(options.workers))
        list(pool.map(run, chunks))
    return records


def summarize(records: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, collections.Counter[str]] = {}
    for record in records:
        counts.setdefault(record["kind"], collections.Counter())[record["outcome"]] += 1
    outcomes = collections.Counter(record["outcome"] for record in records)
    return {
        "cases": len(records),
        "tracebacks": outcomes["traceback"],
        "wrong_messages": outcomes["wrong message"],
        "hangs": outcomes["hang"],
        "ended_processes": sum(number for name, number in outcomes.items() if name.startswith("process")),
        "peak_mb": max((record["peak_mb"] for record in records), default=0),
        "slowest_seconds": max((record["seconds"] for record in records), default=0.0),
        "counts": counts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases of all kinds together")
    parser.add_argument("--kinds", nargs="+", choices=bad_inputs.KINDS, default=list(bad_inputs.KINDS))
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the first case")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--log", type=Path, metavar="FILE", help="one line per case; a later run skips these cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to this file")
    parser.add_argument("--chunk", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk:
        run_chunk(options.kinds, options.chunk, options.seed)
        return
    started = time.perf_counter()
    result = {**provenance(), "seed": options.seed}  # before the run, during which the checkout may change
    result |= summarize(run_all(options))
    for kind, outcomes in result["counts"].items():
        print(f"{kind:<20}" + "   ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items())))
    print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in result.items() if name not in HIDDEN))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    failures = ("tracebacks", "wrong_messages", "hangs", "ended_processes")
    sys.exit(any(result[name] for name in failures))


if __name__ == "__main__":
    main()
