"""Measures the studio with many photos: start, photos, answers, refits of the live model, grid, search, memory.

    python benchmarks/studio.py --photos 10000 100000 --out benchmarks/results/studio.json

The photos are links to 50 JPEG files of 48 x 36 pixels in a plain folder. Their features are random, around one center
per class, and are in the cache before the start, as after a first start; no network runs. The program runs as
``semifine studio PHOTOS``, and this script is its only visitor, over HTTP on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

from provenance import provenance
from semifine.data import store
from semifine.data.decode import DecodedImage, compute_digest
from semifine.data.store import perceptual_hash
from semifine.features.extract import FeatureEvaluator
from semifine.studio.plain import open_photos, take_plain_snapshot

SIZE = (48, 36)
DISTINCT = 50
"""Number of different pictures."""
ANSWERS = 60
"""Single answers whose time is measured."""
REPEATS = 5


def write_photos(folder: Path, count: int) -> None:
    """Writes some pictures, and links to them in folders of 1,000 files."""
    random = np.random.default_rng(0)
    (folder.parent / "pictures").mkdir()
    for number in range(DISTINCT):
        picture = Image.fromarray(random.integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8))
        picture.save(folder.parent / "pictures" / f"{number}.jpg")
    for number in range(count):
        link = folder / f"camera-{number // 1000:03d}" / f"IMG_{number:06d}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(folder.parent / "pictures" / f"{number % DISTINCT}.jpg")


def fill_cache(photos: Path, cache: Path, classes: int) -> float:
    """Fills the caches of decoded images and of features as a first start does. Returns the seconds.

    Images are not decoded again and again, and each link counts as another photo.
    """
    random = np.random.default_rng(1)
    pictures = [np.asarray(Image.open(photos.parent / "pictures" / f"{number}.jpg")) for number in range(DISTINCT)]
    hashes = [perceptual_hash(picture) for picture in pictures]

    def decode(_reader: object, row: int, _size: int) -> DecodedImage:
        return DecodedImage(pictures[row % DISTINCT], *SIZE[::-1], compute_digest(str(row).encode()))

    def random_features(evaluator: FeatureEvaluator, rows: np.ndarray, flip: bool) -> np.ndarray:  # noqa: ARG001
        dim = evaluator._network.feature_dim
        centers = random.normal(size=(classes, dim)).astype(np.float32)
        return np.abs(centers[rows % classes] + 2 * random.standard_normal((len(rows), dim), np.float32))

    started = time.perf_counter()
    with (
        mock.patch.object(FeatureEvaluator, "_compute", random_features),
        mock.patch.object(store, "try_decode_row", decode),
        mock.patch.object(store, "perceptual_hash", lambda pixels: hashes[int(pixels[0, 0, 0]) % DISTINCT]),
    ):
        take_plain_snapshot(photos, open_photos(str(photos), {}), "cpu", cache=cache)
    return time.perf_counter() - started


@contextmanager
def studio(photos: Path, cache: Path) -> Iterator[tuple[httpx.Client, int, float]]:
    """Starts the program, and yields a client, the process id, and the time of the start."""
    command = [sys.executable, "-m", "semifine", "studio", str(photos), "--no-browser", "--device", "cpu"]
    environment = {**os.environ, "SEMIFINE_CACHE": str(cache)}
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
            with httpx.Client(base_url=url, headers={"Origin": origin}, timeout=600) as client:
                yield client, process.pid, started
        finally:
            process.kill()


def seconds(function: Any) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def get(client: httpx.Client, path: str, **query: object) -> dict[str, Any]:
    response = client.get(path, params={key: str(value) for key, value in query.items()})
    response.raise_for_status()
    return dict(response.json())


def get_bytes(client: httpx.Client, path: str, parameters: dict[str, str]) -> bytes:
    return client.get(path, params=parameters).raise_for_status().content


def post(client: httpx.Client, path: str, **body: object) -> dict[str, Any]:
    response = client.post(path, json={"person": "Ada", **body})
    response.raise_for_status()
    return dict(response.json())


def wait_for_model(client: httpx.Client) -> dict[str, Any]:
    """Waits until the live model has learned from all answers, and returns its state."""
    time.sleep(1.0)  # the model waits for a pause of the answers
    while (live := get(client, "api/changes", after=2**40)["live"])["fitting"]:
        time.sleep(0.1)
    return dict(live)


def answer(client: httpx.Client, run: str, ids: list[int], class_name: str) -> None:
    images = [{"id": index, "seen": 0} for index in ids]
    post(client, "api/answer", run=run, kind="label", images=images, **{"class": class_name})


def label_classes(client: httpx.Client, run: str, classes: int, per_class: int) -> list[str]:
    """Creates classes, and labels photos of each with one answer. Returns the names."""
    names = [f"species {number:03d}" for number in range(classes)]
    for number, name in enumerate(names):
        post(client, "api/classes", action="create", name=name)
        answer(client, run, [number + classes * place for place in range(per_class)], name)
    return names


def measure(photos: Path, cache: Path, count: int, classes: int, per_class: int) -> dict[str, Any]:
    with studio(photos, cache) as (client, process, started):
        client.get("").raise_for_status()
        measured: dict[str, Any] = {"page_s": time.perf_counter() - started, "page_cpu_s": cpu_seconds(process)}
        overview = get(client, "api/overview")
        measured["overview_s"] = time.perf_counter() - started
        run = overview["run"]
        first = get(client, "api/queue")["ids"][0]
        row = get(client, f"api/image/{first}")["row"]
        measured["first_photo_ms"] = 1000 * seconds(lambda: client.get(f"photo/{row}/large").raise_for_status())
        names = label_classes(client, run, classes, per_class)
        wait_for_model(client)
        start, answers, refits = classes * per_class, [], []
        for number in range(ANSWERS):
            answers.append(seconds(lambda n=number: answer(client, run, [start + n], names[(start + n) % classes])))
        refits.append(wait_for_model(client)["seconds"])
        tiles = list(range(start + ANSWERS, start + ANSWERS + min(1000, count - start - ANSWERS)))
        measured["answer_of_1000_tiles_ms"] = 1000 * seconds(lambda: answer(client, run, tiles, names[0]))
        post(client, "api/undo")
        cpu = cpu_seconds(process)
        for number in range(REPEATS):
            answer(client, run, [tiles[number]], names[tiles[number] % classes])
            refits.append(wait_for_model(client)["seconds"])
        measured["refit_cpu_s"] = (cpu_seconds(process) - cpu) / REPEATS
        measured["answer_ms"] = {"median": 1000 * statistics.median(answers), "highest": 1000 * max(answers)}
        measured["refit_s"] = {"median": statistics.median(refits), "highest": max(refits)}
        measured["labels"] = start + ANSWERS + REPEATS
        measured |= {f"{name}_ms": value for name, value in requests(client, count).items()}
        measured["memory_gib"] = peak_memory(process)
        return measured


def requests(client: httpx.Client, count: int) -> dict[str, float]:
    """Returns the median milliseconds of requests that the pages send."""
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "changes": ("api/changes", {"after": 2**40}),
        "overview": ("api/overview", {}),
        "queue": ("api/queue", {}),
        "image": ("api/image/7", {}),
        "grid_first": ("api/grid", {"state": "all", "count": 200}),
        "grid_at_90_percent": ("api/grid", {"state": "all", "offset": count * 9 // 10, "count": 200}),
        "grid_outliers": ("api/grid", {"state": "all", "order": "outliers", "count": 200}),
        "grid_search": ("api/grid", {"state": "all", "text": "camera-007", "count": 200}),
        "neighbors": ("api/neighbors/7", {"count": 60}),
        "review": ("api/review", {}),
        "log": ("api/log", {}),
        "thumbnail": ("photo/11/small", {}),
    }
    medians = {}
    for name, (path, query) in calls.items():
        parameters = {key: str(value) for key, value in query.items()}
        times = [seconds(partial(get_bytes, client, path, parameters)) for _ in range(REPEATS)]
        medians[name] = 1000 * statistics.median(times)
    return medians


def cpu_seconds(process: int) -> float:
    """CPU time of a process, which other programs on the machine change less than the elapsed time."""
    values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(process: int) -> float:
    """Highest resident memory of a process in GiB; memory-mapped images count as far as they were read."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return kilobytes / 2**20


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--labels-per-class", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {**provenance(), "classes": options.classes, "sizes": {}}
    for count in options.photos:
        with tempfile.TemporaryDirectory() as folder:
            photos, cache = Path(folder) / "photos", Path(folder) / "cache"
            write_photos(photos, count)
            first = fill_cache(photos, cache, options.classes)
            print(f"{count} photos written and decoded in {first:.0f} s", file=sys.stderr)
            measured = measure(photos, cache, count, options.classes, options.labels_per_class)
        result["sizes"][str(count)] = rounded(measured)
        print(json.dumps(result["sizes"][str(count)], indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
