"""Compares `semifine train FOLDER` with features and scikit-learn, and with training on the labels alone.

    python benchmarks/laptop.py SPECIES --neighbors --classes 15 --labels 8 --unlabeled 500 --draws 0 1 2 3 4 \
        --time 10m --out benchmarks/results/laptop-cub15.json
    python benchmarks/laptop.py PHOTOS --draws 0 --out benchmarks/results/laptop-cub100.json

SPECIES contains one folder of photos per class. Each draw takes random classes and random labels, further photos
without labels, and the rest as test images. PHOTOS already contains ``labeled``, ``unlabeled`` and ``test``; a draw is
then only a seed of the training.

For each draw, four commands run one after the other, each from nothing but the photos: `probe_script.py`, the same with
features of the unlabeled photos, `semifine train`, and `semifine train --method supervised`. The table shows the test
accuracy, the time until the run folder holds the probe, and the total time. Unknown options go to `semifine train`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from semifine.data.image_files import IMAGE_SUFFIXES
from semifine.devices import describe_hardware
from semifine.version import code_version

SCRIPT = Path(__file__).with_name("probe_script.py")
POLL_SECONDS = 0.05


def link_photos(source: Path, photos: Path, options: argparse.Namespace, draw: int) -> Path:
    """Arranges links to random photos of random classes as a folder of own photos; returns the folder."""
    if (source / "labeled").is_dir():
        return source
    random = np.random.default_rng(draw)
    folders = sorted(path for path in source.iterdir() if path.is_dir())
    if options.neighbors:
        first = int(random.integers(len(folders) - options.classes + 1))
        chosen = list(range(first, first + options.classes))
    else:
        chosen = sorted(random.permutation(len(folders))[: options.classes].tolist())
    rest: list[tuple[str, Path]] = []
    links: list[tuple[Path, Path]] = []
    for folder in (folders[index] for index in chosen):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
        shuffled = [files[index] for index in random.permutation(len(files))]
        links += [(path, Path("labeled", folder.name, path.name)) for path in shuffled[: options.labels]]
        rest += [(folder.name, path) for path in shuffled[options.labels :]]
    for position, index in enumerate(random.permutation(len(rest)).tolist()):
        name, path = rest[index]
        if position < options.unlabeled:
            links.append((path, Path("unlabeled", f"{position:05}{path.suffix}")))
        elif position < options.unlabeled + options.test:
            links.append((path, Path("test", name, path.name)))
    for path, link in links:
        (photos / link).parent.mkdir(parents=True, exist_ok=True)
        (photos / link).symlink_to(path.resolve())
    return photos


def run_script(photos: Path, *arguments: str) -> dict[str, Any]:
    output = subprocess.run([sys.executable, SCRIPT, photos, *arguments], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(output.stdout)
    return {key: found[key] for key in ("top1", "top1_scaled", "seconds")}


def train(photos: Path, run: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs `semifine train` and `semifine evaluate`; the cache of decoded images and features starts empty."""
    cache = run.with_suffix(".cache")
    command = [sys.executable, "-m", "semifine", "train", str(photos), "--out", str(run), "--cache", str(cache)]
    started, first = time.perf_counter(), None
    with run.with_suffix(".log").open("w") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            if first is None and (run / "probe.json").exists():
                first = time.perf_counter() - started
            time.sleep(POLL_SECONDS)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed, see {run.with_suffix('.log')}")
    shutil.rmtree(cache)
    evaluate = [sys.executable, "-m", "semifine", "evaluate", str(run), "--json"]
    scores = json.loads(subprocess.run(evaluate, check=True, capture_output=True, text=True).stdout)
    result = json.loads((run / "result.json").read_text())
    return {
        "top1": result["top1"],
        "seconds": seconds,
        "seconds_to_probe": first,
        "iterations": result["iterations"],
        **{key: result[key] for key in ("chosen", "weight", "comparison", "probe", "trained") if key in result},
        "evaluation": {key: value for key, value in scores.items() if isinstance(value, int | float | str | dict)},
    }


def measure(source: Path, options: argparse.Namespace, extra: list[str], draw: int) -> dict[str, Any]:
    work: Path = options.work / str(draw)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    photos = link_photos(source, work / "photos", options, draw)
    budget = ["--time", options.time] if options.time else []
    seeded = ["--seed", str(draw), *budget, *extra]
    row: dict[str, Any] = {"draw": draw, "script": run_script(photos)}
    row["script_with_unlabeled"] = run_script(photos, "--unlabeled")
    row["default"] = train(photos, work / "default", seeded)
    if not options.only_default:
        row["supervised"] = train(photos, work / "supervised", [*seeded, "--method", "supervised"])
    return row


def mean_and_deviation(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def summarize(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Returns means and standard deviations over the draws."""
    columns: dict[str, list[float | None]] = {
        "script, %": [row["script"]["top1"] for row in rows],
        "script with scaled features, %": [row["script"]["top1_scaled"] for row in rows],
        "script, seconds": [row["script"]["seconds"] for row in rows],
        "script with features of the unlabeled photos, seconds": [
            row["script_with_unlabeled"]["seconds"] for row in rows
        ],
        "probe, %": [row["default"].get("probe", {}).get("top1") for row in rows],
        "probe, seconds": [row["default"]["seconds_to_probe"] for row in rows],
        "result, %": [row["default"]["top1"] for row in rows],
        "result, seconds": [row["default"]["seconds"] for row in rows],
        "result minus the better script, points": [
            row["default"]["top1"] - max(row["script"]["top1"], row["script"]["top1_scaled"]) for row in rows
        ],
        "labels alone in the same time, %": [
            row["supervised"]["top1"] if "supervised" in row else None for row in rows
        ],
    }
    found = {name: [value for value in values if value is not None] for name, values in columns.items()}
    return {name: mean_and_deviation(values) for name, values in found.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument(
        "--neighbors", action="store_true", help="classes that follow each other by name, which are similar in CUB-200"
    )
    parser.add_argument("--labels", type=int, default=8)
    parser.add_argument("--unlabeled", type=int, default=500)
    parser.add_argument("--test", type=int, default=1000, help="largest number of test images")
    parser.add_argument("--draws", type=int, nargs="+", default=[0])
    parser.add_argument("--time", help="time budget of each training (default: the program's)")
    parser.add_argument("--only-default", action="store_true", help="no training on the labels alone")
    parser.add_argument("--work", type=Path, default=Path("build/laptop"))
    parser.add_argument("--out", type=Path)
    options, extra = parser.parse_known_args()
    rows = []
    for draw in options.draws:
        rows.append(measure(options.source, options, extra, draw))
        report = {
            "command": " ".join(["python", "benchmarks/laptop.py", *sys.argv[1:]]),
            "version": code_version(),
            "hardware": describe_hardware("cpu"),
            "summary": summarize(rows),
            "draws": rows,
        }
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(report["summary"], indent=1), flush=True)


if __name__ == "__main__":
    main()
