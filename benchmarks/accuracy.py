"""Trains several methods with several seeds on one data set and prints a table of their accuracy.

    python benchmarks/accuracy.py semi_cub:PATH --preset lite0-imagenet --methods supervised fixmatch soc --seeds 0 \
        --jobs 3 --runs runs/cub --out benchmarks/results/semi-cub.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def train(options: argparse.Namespace, extra: list[str], method: str, seed: int) -> dict[str, Any] | None:
    """Trains with the command line and returns the result; resumes a run that stopped earlier."""
    out = options.runs / f"{method}-{seed}"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "semifine", "train", options.data, "--method", method, "--seed", str(seed)]
    command += ["--out", str(out), "--resume", *extra]
    if options.preset:
        command += ["--preset", options.preset]
    started = time.perf_counter()
    with out.with_suffix(".log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        print(f"{method} seed {seed} failed, see {out.with_suffix('.log')}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    print(f"{method} seed {seed}: top-1 {result['top1']:.1f}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return result


def format_mean(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def format_table(results: list[dict[str, Any]], methods: list[str]) -> str:
    lines = [
        "| method | seeds | top-1 | top-5 | pseudo-label accuracy | candidates | hit rate | seconds per run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in methods:
        runs = [result for result in results if result["method"] == method]
        if not runs:
            continue
        unlabeled = [run["unlabeled"] for run in runs]
        columns = [
            format_mean([run["top1"] for run in runs]),
            format_mean([run["top5"] for run in runs]),
            *(
                format_mean([u[key] for u in unlabeled])
                for key in ("pseudo_label_accuracy", "candidates", "candidate_hit_rate")
            ),
            format_mean([run["seconds"] for run in runs]),
        ]
        lines.append(f"| {method} | {len(runs)} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", help="data set, as for semifine train")
    parser.add_argument("--preset")
    parser.add_argument("--methods", nargs="+", default=["supervised", "fixmatch", "soc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options, extra = parser.parse_known_args()
    grid = [(method, seed) for seed in options.seeds for method in options.methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        finished = pool.map(lambda run: train(options, extra, *run), grid)
    results = [result for result in finished if result]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"command": " ".join(sys.argv), "results": results}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(format_table(results, options.methods))


if __name__ == "__main__":
    main()
