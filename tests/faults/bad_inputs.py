"""Generates random invalid inputs of many kinds, and checks the error message of each."""

from __future__ import annotations

import contextlib
import encodings.cp437  # noqa: F401 (zip archives need it, and the user 'nobody' may not have permission to import it)
import io
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from semifine.cli.main import main
from semifine.config import TrainSettings
from semifine.fields import field_names
from tests.faults import mutated_inputs
from tests.faults.bad_files import (
    decompression_bomb,
    encode_image,
    finished_run,
    weights_of_another_network,
    write_damaged_run,
    write_image,
)
from tests.faults.cases import FEW_IMAGES, NAMES, VALUES, Case, encode, prepare

TIME_LIMIT = 180
"""Time limit of a case, without the time in which other processes have the CPU. Most cases take 0.03 s."""
NOBODY_UID = 65534
KEYS = [
    *("iterations", "lr", "method", "method.alpha", "data", "backbone", "image_size", "ema", "seed", "color", "mu"),
    *("method.window", "data.genera", "data.image_side", "data.unlabeled_per_class", "crop_scale", "cache", "weights"),
    *("store_size", "batch_size", "labels", "schedule", "horizon", "summary", "3", "method.name", "data.source"),
]


def try_case(kind: str, rng: random.Random, folder: Path) -> int:
    """Runs a case within the time limit. The exit code must be 0, or 2 with an error message that names the cause."""
    place = folder / kind
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    case = KINDS[kind](rng, place)
    stderr = io.StringIO()
    with (
        contextlib.redirect_stderr(stderr),
        contextlib.redirect_stdout(io.StringIO()),
        _time_limit(TIME_LIMIT),
        _without_root() if case.without_root else contextlib.nullcontext(),
    ):
        code = main(case.arguments)
    assert code in (0, 2), f"{case.arguments} ended with {code}"
    assert "Traceback" not in stderr.getvalue(), stderr.getvalue()
    if code == 2:
        before, _, sentence = stderr.getvalue().partition("semifine: ")
        assert "Error" not in before, before
        assert any(word and word in sentence for word in case.expected), (
            f"{case.arguments} has the error message: {sentence}"
        )
    return code


def settings_file(rng: random.Random, folder: Path) -> Case:
    """A settings file with invalid keys, types or values, or invalid YAML."""
    keys = [rng.choice(KEYS) for _ in range(rng.randint(1, 4))]
    lines = [f"{key}: {rng.choice(VALUES)}" for key in keys]
    if rng.random() < 0.2:
        lines.append(rng.choice([": :", "- a", "{", "\t- x", "a: b: c", "&x *y", "? [a]\n: b", "1: 2", "method: 3: 4"]))
    file = folder / "settings.yaml"
    file.write_bytes(encode(rng, "\n".join(lines)))
    expected = [str(file), *keys, *(key.rpartition(".")[2] for key in keys), "Unknown setting", "data source", "method"]
    return Case(["prepare", *FEW_IMAGES, "--config", str(file)], expected)


def option(rng: random.Random, _: Path) -> Case:
    """Options that are misspelled, lack a value, or have an invalid value."""
    names = [f"--{key.replace('_', '-')}" for key in KEYS]
    names += ["--itertions", "--preset", "--config", "--", "-x", "--json"]
    words = [word for _ in range(rng.randint(1, 3)) for word in (rng.choice(names), rng.choice(VALUES))]
    if rng.random() < 0.3:
        words.pop()
    verb = rng.choice(["prepare", "prepare", "prepare", "evaluate", "doctor", "list", "train", rng.choice(NAMES)])
    words += FEW_IMAGES if verb == "prepare" else ["--iterations", "0"] if verb == "train" else []
    keys = [word.strip("-").replace("-", "_").rpartition(".")[2] for word in words]
    return Case([verb, *words], [verb, *words, *keys, "data source", "PATH", "command"])


def table(rng: random.Random, folder: Path) -> Case:
    """A CSV table with a few invalid cells, rows or bytes."""
    images = ["a.jpg", "b.jpg", "c.jpg"]
    for number, image in enumerate(images):
        (folder / image).write_bytes(encode_image((20, 16), (9, 90 * number, 9), "JPEG"))
    rows = [["path", "label", "split", "truth"], ["a.jpg", "a", "train", ""], ["b.jpg", "b", "", ""]]
    rows += [["c.jpg", "", "unlabeled", "a"]]
    cells = [*images, "train", "test", "val", "unlabeled", "TEST ", "a", "b", *NAMES, *VALUES]
    for _ in range(rng.choice([1, 1, 2, 4])):
        change = rng.choice(["cell", "cell", "cell", "row", "column", "no row"])
        if change == "cell":
            line = rng.choice(rows)
            line[rng.randrange(len(line))] = rng.choice(cells)
        elif change == "row":
            rows.append([rng.choice(cells) for _ in range(rng.randint(1, 5))])
        elif change == "no row" and len(rows) > 1:
            rows.pop(rng.randrange(len(rows)))
        else:
            line = rng.choice(rows)
            line[len(line) // 2 :] = []
            line += [""] * (not line)
    quoted = [[f'"{cell}"' if "\n" in cell or rng.random() < 0.1 else cell for cell in line] for line in rows]
    file = folder / rng.choice(["t.csv", "t.csv", "t.csv", "t.tsv"])
    file.write_bytes(encode(rng, "\n".join(",".join(line) for line in quoted)))
    return Case(prepare(folder, str(file)), [str(folder), *images, "Class"])


def list_files(rng: random.Random, folder: Path) -> Case:
    """List files of a published data set with a few invalid lines or missing files."""
    source = rng.choice(["semi_cub", "semi_aves", "semi_fungi", "semi_inat"])
    unlabeled = "003.B/c.jpg" if source == "semi_cub" else "u_train/001.jpg"
    images = ["001.A/a.jpg", "003.B/b.jpg", unlabeled, "test/d.jpg", "test/e.jpg"]
    for number, image in enumerate(images):
        (folder / image).parent.mkdir(exist_ok=True)
        (folder / image).write_bytes(encode_image((20, 16), (9, 50 * number, 9), "JPEG"))
    files = {
        "l_train_val": [f"{images[0]} 0", f"{images[1]} 1"],
        "u_train_in": [f"{images[2]} -1"],
        "test": [f"{images[3]} 0", f"{images[4]} 1"],
        "u_train_in_oracle": [f"{images[2]} 1"],
        "species_names": ["0 A_a", "1 B_b"],
        "all_taxa_info": ['{"0": {"species": "A a", "genus": "A"},', '"1": {"species": "B b", "genus": "B"}}'],
    }
    for _ in range(rng.choice([1, 1, 2, 4])):
        lines = files[rng.choice(sorted(files))]
        line = f"{rng.choice(images + NAMES)}{rng.choice([' ', ' ', '', '  '])}{rng.choice(VALUES + ['0', '1'] * 12)}"
        if lines is files["species_names"] and rng.random() < 0.5:
            line = f"{rng.choice(VALUES + ['0', '1'] * 12)} {rng.choice(['A_a', 'B_b', '7_A_a', '7_', '_', *NAMES])}"
        change = rng.choice(["line", "line", "add", "drop", "drop all"])
        if change == "line" and lines:
            lines[rng.randrange(len(lines))] = line
        elif change == "drop" and lines:
            lines.pop(rng.randrange(len(lines)))
        elif change == "drop all":
            lines.clear()
        else:
            lines.append(line)
    for name, lines in files.items():
        if rng.random() < 0.95:
            suffix = "json" if name == "all_taxa_info" else "txt"
            (folder / f"{name}.{suffix}").write_bytes(encode(rng, "\n".join(lines)))
    return Case(prepare(folder, f"{source}:{folder}"), [str(folder), *images, "Class", "data.images"])


def photos(rng: random.Random, folder: Path) -> Case:
    """Folders of photos with missing or unknown classes and damaged, misnamed, tiny or huge images."""
    root = folder / "photos"
    places = ["labeled/a", "labeled/b", "unlabeled", "labeled", "test/a", "test/c", "val/b", "other", "labeled/x\ny"]
    chosen = ["labeled/a", "labeled/b"] * (rng.random() < 0.7) + rng.sample(places, rng.randint(0, 4))
    for place in chosen:
        (root / place).mkdir(parents=True, exist_ok=True)
        for number in range(rng.randint(0, 3)):
            stem, suffix = rng.choice(["", "n\nl", "ü"]), rng.choice([".jpg", ".png", ".JPG", ".txt", ""])
            write_image(rng, root / place / f"{stem}{number}{suffix}")
        if place.count("/") and rng.random() < 0.8:
            (root / place / "good.jpg").write_bytes(encode_image((20, 16), (len(place), ord(place[-1]), 0), "JPEG"))
    root.mkdir(exist_ok=True)
    return Case(prepare(folder, str(root)), [str(folder), *places, "Class", "labeled/"])


def forbidden(rng: random.Random, folder: Path) -> Case:
    """Folders and files without read or write permission."""
    finished_run()  # imports all modules before the permissions of root are dropped
    root, out = folder / "photos", folder / "out"
    for name in ("a", "b"):
        for place in ("labeled", "test"):
            (root / place / name).mkdir(parents=True)
            (root / place / name / "1.jpg").write_bytes(encode_image((20, 16), (ord(name), len(place), 0), "JPEG"))
    (root / "unlabeled").mkdir()
    (folder / "settings.yaml").write_text("seed: 1\n")
    for path in (out, folder / "cache"):
        path.mkdir()
        path.chmod(0o777)
    train = [
        *("train", str(root), "--out", str(out / "run"), "--cache", str(folder / "cache"), "--method", "supervised"),
        *("--iterations", "1", "--image-size", "16", "--batch-size", "2", "--backbone", "test_resnet", "--quiet"),
        *("--config", str(folder / "settings.yaml"), "--device", "cpu"),
    ]
    paths = [out, folder / "settings.yaml", folder / "cache", root, *sorted(root.rglob("*"))]
    for path in rng.sample(paths, rng.randint(1, 2)):
        path.chmod(rng.choice([0o000, 0o111, 0o444, 0o555]) if path.is_dir() else 0o000)
    return Case(train, [str(folder), "labeled/", "test/"], without_root=True)


def weights(rng: random.Random, folder: Path) -> Case:
    """Weights files with invalid content, weights of another network, or pickled code."""
    file = folder / rng.choice(["w.pth", "w.safetensors", "w.pt"])
    real = weights_of_another_network().read_bytes()
    contents = [
        b"",
        b"PK\x03\x04",
        rng.randbytes(200),
        b"\x80\x02cos\nsystem\n(S'false'\ntR.",
        b"{}",
        decompression_bomb(),
        real,
    ]
    content = bytearray(rng.choice([*contents, real]))
    if content and rng.random() < 0.3:
        content[rng.randrange(min(len(content), 4000))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    small = "--iterations 1 --image-size 16 --backbone test_resnet --method supervised --quiet --device cpu"
    return Case(
        ["train", *FEW_IMAGES, *small.split(), "--weights", str(file), "--out", str(folder / "run")], [str(file)]
    )


def run_folder(rng: random.Random, folder: Path) -> Case:
    """A finished run with a damaged file, for a random command that reads runs."""
    out = folder / "run"
    write_damaged_run(rng, out)
    if rng.random() < 0.5:
        (out / "result.json").unlink(missing_ok=True) if not (out / "result.json").is_dir() else None
    image = folder / "image.png"
    image.write_bytes(encode_image((20, 16), (9, 9, 9), "PNG"))
    checkpoint = ["--checkpoint", rng.choice(["last", "best_val"])]
    commands = [
        ["evaluate", str(out), "--device", "cpu", *checkpoint],
        ["train", "--out", str(out), "--resume", "--quiet", "--device", "cpu"],
        ["predict", str(out), str(image), "--device", "cpu", "--quiet", *checkpoint],
        ["export", str(out), "--format", "safetensors", *checkpoint],
        ["report", str(out)],
    ]
    return Case(rng.choice(commands), [str(out), "setting", *field_names(TrainSettings)])


def prediction(rng: random.Random, folder: Path) -> Case:
    """Predictions of an intact run for damaged images and missing paths, with unusual options."""
    images = [folder / f"{number}{rng.choice(['.jpg', '.png', '.txt', ''])}" for number in range(rng.randint(0, 3))]
    for image in images:
        write_image(rng, image)
    given = [str(image) for image in images] + [rng.choice(["", str(folder), "none.jpg", f"{folder}/..", "a\nb"])]
    (folder / "taxa.csv").write_bytes(
        encode(rng, rng.choice(["class,genus\na,b\n", "", "a\n", "class\n\n", "x,y,z\n1"]))
    )
    numbers = ["--top", "--coverage", "--false-alarms", "--taxon-threshold", "--batch-size", "--workers"]
    files = [
        *(["--out", str(folder / f"table{suffix}")] for suffix in (".csv", ".jsonl", ".parquet", ".txt", "")),
        *(
            ["--taxonomy", str(folder / "taxa.csv")],
            ["--camtrap-dp", str(folder / "package")],
            ["--json"],
            ["--resume"],
        ),
    ]
    options = rng.choice([*files, []]) + rng.choice([*files, []])
    options += [rng.choice(numbers), rng.choice(VALUES)] * (rng.random() < 0.5)
    command = ["predict", str(finished_run()), *given, *options, "--device", "cpu", "--quiet"]
    return Case(command, [*given, str(folder), *(option.strip("-").replace("-", "_") for option in options), "--"])


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    started, waited = time.monotonic(), _seconds_without_cpu()

    def stop(*_: object) -> None:
        passed = time.monotonic() - started - (_seconds_without_cpu() - waited)
        if passed >= seconds - 1:
            raise TimeoutError(f"not done after {seconds} s")
        signal.alarm(math.ceil(seconds - passed))

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _seconds_without_cpu() -> float:
    """Seconds in which this thread could run, but other processes had the CPU; 0 on systems that do not count them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@contextlib.contextmanager
def _without_root() -> Iterator[None]:
    """Drops the permissions of root, because root can read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(0)


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    kind.__name__: kind
    for kind in (
        *(settings_file, option, table, list_files, photos, forbidden, weights, run_folder, prediction),
        *mutated_inputs.KINDS,
    )
}
