"""Measures a refit of the live model: fit, predictions of all photos, order of the queue and map of the classes.

The features are random clouds, one for each class, so no photos are needed.

    OMP_NUM_THREADS=1 python benchmarks/live_fit.py --photos 10000 100000 --out benchmarks/results/live-fit.json
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from provenance import provenance
from semifine.features.live import LiveClassifier
from semifine.studio.coverage import rank_by_coverage
from semifine.studio.live import CLASSES_PER_CLUSTER, live_map
from semifine.studio.plain import GROUP_COMPONENTS, group_photos
from semifine.studio.snapshot import center_and_normalize

NOISE = 1.5


def clouds(photos: int, classes: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features and classes of photos."""
    random = np.random.default_rng(0)
    truth = random.integers(0, classes, photos)
    features = random.standard_normal((photos, dim), np.float32) * NOISE
    features += random.standard_normal((classes, dim), np.float32)[truth]
    return center_and_normalize(features, features.mean(axis=0)), truth


def measure(photos: int, classes: int, dim: int, labels: int, refits: int) -> dict[str, Any]:
    """Measures the start and several refits, each with five more labels."""
    features, truth = clouds(photos, classes, dim)
    started = time.perf_counter()
    classifier = LiveClassifier(features)
    found: dict[str, Any] = {"photos": photos, "classes": classes, "dim": dim, "labels": labels}
    found["components_seconds"] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    components = classifier.features.numpy()
    group_photos(components[:, :GROUP_COMPONENTS])
    found["group_seconds"] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    near = features @ features[0]
    np.argpartition(-near, 60)
    found["neighbors_seconds"] = round(time.perf_counter() - started, 3)
    normalized = center_and_normalize(components, components.mean(axis=0))
    chosen = np.random.default_rng(1).permutation(photos)
    fit, times, parts = None, [], []
    for number in range(refits + 1):
        rows = chosen[: labels + 5 * number]
        begun, begun_cpu = time.perf_counter(), time.process_time()
        fit = classifier.fit(rows, truth[rows], classes, fit)
        fitted = time.perf_counter()
        probs = classifier.predict(fit)
        predicted = time.perf_counter()
        is_answered = np.isin(np.arange(photos), rows)
        rank_by_coverage(probs.max(axis=1), normalized, is_answered)
        live_map(probs, normalized, classes // CLASSES_PER_CLUSTER)
        done = time.perf_counter()
        times.append((done - begun, time.process_time() - begun_cpu))
        parts.append((fitted - begun, predicted - fitted, done - predicted))
    found["first_seconds"] = round(times[0][0], 3)
    wall, cpu = np.median(np.array(times[1:]), axis=0)
    found |= {"refit_seconds": round(float(wall), 3), "refit_cpu_seconds": round(float(cpu), 3)}
    names = ("fit_seconds", "predict_seconds", "order_seconds")
    medians = np.median(np.array(parts[1:]), axis=0)
    found |= {name: round(float(value), 3) for name, value in zip(names, medians, strict=True)}
    found["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--photos", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--labels", type=int, default=2000)
    parser.add_argument("--refits", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    results = []
    for photos in options.photos:
        results.append(measure(photos, options.classes, options.dim, options.labels, options.refits))
        print(results[-1], flush=True)
    options.out.write_text(json.dumps({**provenance("cpu"), "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
