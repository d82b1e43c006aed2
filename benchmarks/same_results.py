"""Compares the results of two versions of the source code: weights, predictions and reports of every method.

    git worktree add ../before COMMIT
    python benchmarks/same_results.py ../before/src src --out same_results.json

Each version trains every method for 60 steps on the CPU with the same seed, predicts the unlabeled images of one run
and writes a report. The table says which results are equal: tensors bit by bit, predictions by their values, the report
by the numbers in it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

METHODS = (
    "supervised",
    "abc",
    "debiaspl",
    "dst",
    "fixmatch",
    "flexmatch",
    "freematch",
    "mean_teacher",
    "moco",
    "oracle",
    "probe",
    "pseudo_label",
    "remixmatch",
    "self_training",
    "simmatch",
    "softmatch",
    "uda",
    "vote",
    "soc",
)
"""The first one is the teacher or voter of others. The last one predicts."""
ARGUMENTS = {
    "probe": ("--pretrained", "--backbone", "tf_efficientnet_lite0"),
    "self_training": ("--method.teacher", "supervised"),
    "vote": ("--method.voters", "supervised,fixmatch"),
}
"""Additional arguments of methods."""
DATA = ("synthetic", "--data.genera", "3")
TRAINING = ("--iterations", "60", "--evaluate-every", "60", "--seed", "3", "--batch-size", "8", "--mu", "2")


def semifine(source: Path, *arguments: str | Path, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(source), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "semifine", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")


def train_all(source: Path, folder: Path, methods: tuple[str, ...]) -> None:
    """Trains every method, predicts with the last run, and writes a report of two runs."""
    semifine(source, "prepare", *DATA, "--write-folder", "photos", folder=folder)
    for method in methods:
        arguments = ("--method", method, *TRAINING, *ARGUMENTS.get(method, ()))
        semifine(source, "train", *DATA, *arguments, "--out", method, folder=folder)
        print(f"{source}: trained {method}", flush=True)
    semifine(source, "predict", methods[-1], "photos/unlabeled", "--out", "predictions.csv", folder=folder)
    semifine(source, "report", "supervised", methods[-1], "--out", "report.html", folder=folder)


def digest(values: bytes) -> str:
    return hashlib.sha256(values).hexdigest()[:16]


def weights(folder: Path) -> dict[str, str]:
    """Returns the digest of each run's tensors in the order of their names."""
    found = {}
    files = [file for name in ("last", "probe") for file in folder.glob(f"*/checkpoints/{name}/model.safetensors")]
    for file in sorted(files):
        tensors = load_file(file)
        found[f"weights {file.relative_to(folder).parts[0]}"] = digest(
            b"".join(name.encode() + tensors[name].tobytes() for name in sorted(tensors))
        )
    return found


def results(folder: Path) -> dict[str, Any]:
    """Returns what is compared of one version, by name."""
    rows = list(csv.reader((folder / "predictions.csv").open(newline="", encoding="utf-8")))
    html = (folder / "report.html").read_text(encoding="utf-8")
    drawn = re.findall(r'\b(?:points|d|height|width|x|y|cx|cy)="([-\d.,\sA-Za-z]+)"', html)
    return {
        **weights(folder),
        "predictions": [row[1:] for row in rows[1:]],
        "drawn numbers of the report": drawn,
    }


def compare(before: Any, after: Any) -> str:
    """Returns "equal", or how far the numbers of two tables differ."""
    if before == after:
        return "equal"
    if isinstance(before, str) or len(before) != len(after):
        return "different"
    numbers = [(_number(a), _number(b)) for a, b in zip(_flat(before), _flat(after), strict=False)]
    texts = sum(a != b for a, b in zip(_flat(before), _flat(after), strict=False) if _number(a) is None)
    largest = max((abs(a - b) for a, b in numbers if a is not None and b is not None), default=0.0)
    return f"largest difference {largest:.2g}, {texts} texts differ"


def _flat(table: Any) -> list[str]:
    return [table] if isinstance(table, str) else [text for row in table for text in _flat(row)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="src folder of the earlier version")
    parser.add_argument("after", type=Path, help="src folder of the later version")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--work", type=Path, help="keep the runs here")
    parser.add_argument("--out", type=Path, help="JSON file for the comparison")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for name in ("before", "after"):
            folder = (options.work or Path(scratch)).resolve() / name
            if not (folder / "report.html").is_file():
                folder.mkdir(parents=True, exist_ok=True)
                train_all(getattr(options, name).resolve(), folder, tuple(options.methods))
            found.append(results(folder))
    before, after = found
    table = {name: compare(before.get(name, ""), after.get(name, "")) for name in dict.fromkeys([*before, *after])}
    for name, verdict in table.items():
        print(f"{name:40} {verdict}")
    if options.out:
        options.out.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
