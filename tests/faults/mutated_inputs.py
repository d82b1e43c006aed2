"""Valid files with a few changes, each with a command that reads them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from semifine.config import TrainSettings
from semifine.fields import field_names
from tests.faults import mutations
from tests.faults.bad_files import encode_image, finished_run
from tests.faults.cases import FEW_IMAGES, NAMES, VALUES, Case, encode, prepare


def mutated_yaml(rng: random.Random, folder: Path) -> Case:
    """The settings of a run with a few changed values, tags, anchors and levels."""
    settings = mutations.mutate_yaml(rng, (finished_run() / "settings.yaml").read_bytes())
    keys = ["method.name", "data.source", "setting", *field_names(TrainSettings), "data", "method", "synthetic"]
    if rng.random() < 0.5:
        (folder / "settings.yaml").write_bytes(settings)
        command = ["prepare", *FEW_IMAGES, "--config", str(folder / "settings.yaml"), "--cache", str(folder / "cache")]
        return Case(command, [str(folder), *keys])
    out = _copy_run(folder)
    (out / "settings.yaml").write_bytes(settings)
    return Case(_read_run(rng, out), [str(folder), *keys])


def mutated_json(rng: random.Random, folder: Path) -> Case:
    """A finished run with a few changed values in one of its JSON files."""
    out = _copy_run(folder)
    files = sorted([*out.glob("*.json"), *out.glob("*.jsonl"), *out.glob("checkpoints/last/*.json")])
    file = rng.choice(files)
    file.write_bytes(mutations.mutate_json(rng, file.read_bytes()))
    if file.name != "result.json" and rng.random() < 0.3:
        (out / "result.json").unlink()
    return Case(_read_run(rng, out), [str(out)])


def mutated_label_log(rng: random.Random, folder: Path) -> Case:
    """A label log with a changed schema, changed rows or changed pages."""
    file = folder / "labels.db"
    mutations.write_label_log(rng, file, ["unlabeled/a.jpg", "b.jpg"], ["Tirilla simplex", "none"])
    small = "--iterations 1 --image-size 16 --backbone test_resnet --method supervised --quiet --device cpu"
    return Case(
        ["train", *FEW_IMAGES, *small.split(), "--labels", str(file), "--out", str(folder / "run")], [str(file)]
    )


def mutated_safetensors(rng: random.Random, folder: Path) -> Case:
    """Weights or class statistics of a run with a changed header, and without checksums."""
    out = _copy_run(folder)
    (out / "checkpoints" / "last" / "checksums.json").unlink()
    name = rng.choice(["classes.safetensors", "checkpoints/last/model.safetensors"])
    content = mutations.mutate_safetensors(rng, (out / name).read_bytes())
    (out / name).write_bytes(content)
    if name == "classes.safetensors":
        return Case(["report", str(out)], [str(out)])
    if rng.random() < 0.3:
        (folder / "w.safetensors").write_bytes(content)
        small = "--iterations 1 --image-size 16 --backbone test_resnet --method supervised --quiet --device cpu"
        command = ["train", *FEW_IMAGES, *small.split(), "--weights", str(folder / "w.safetensors")]
        return Case([*command, "--out", str(folder / "new")], [str(folder)])
    return Case(_read_run(rng, out), [str(out)])


def mutated_image(rng: random.Random, folder: Path) -> Case:
    """Photos of all formats with a few changed fields of their containers."""
    root = folder / "photos"
    for name in ("a", "b"):
        (root / "labeled" / name).mkdir(parents=True)
        (root / "labeled" / name / "1.jpg").write_bytes(
            encode_image((20, 16), (9, 2 * ord(name), 9 * ord(name) % 256), "JPEG")
        )
    (root / "unlabeled").mkdir()
    for number in range(5):
        suffix, content = mutations.mutate_image(rng)
        (root / "unlabeled" / f"{number}.{suffix}").write_bytes(content)
    if rng.random() < 0.5:
        return Case([*prepare(folder, str(root)), *rng.choice([[], ["--group-by", "exif-burst"]])], [str(root)])
    command = ["predict", str(finished_run()), str(root), "--out", str(folder / "t.csv"), "--device", "cpu", "--quiet"]
    return Case([*command, "--camtrap-dp", str(folder / "package")], [str(folder)])


def mutated_boxes(rng: random.Random, folder: Path) -> Case:
    """Boxes of animals in MegaDetector's JSON or COCO JSON with a few changed values."""
    file = folder / "boxes.json"
    names = ["labeled/a/1.png", "unlabeled/u.png"]
    file.write_bytes(mutations.mutate_json(rng, json.dumps(rng.choice([_megadetector, _coco])(names)).encode()))
    return Case(_use_boxes(rng, folder, names, file), [str(folder)])


def mutated_table(rng: random.Random, folder: Path) -> Case:
    """Tables of boxes, extra labels and a taxonomy with a few changed cells."""
    names = ["labeled/a/1.png", "unlabeled/u.png"]
    kind = rng.choice(["boxes", "labels", "taxonomy"])
    rows = {
        "boxes": [["path", "x", "y", "width", "height", "confidence"]]
        + [[name, "0.1", "0.2", "0.5", "0.5", "0.9"] for name in names],
        "labels": [["path", "label", "time", "person"], ["unlabeled/u.png", "a", "2024-05-06", "Ada"]],
        "taxonomy": [["class", "genus", "order"], *[[name, "g", "o"] for name in finished_classes()]],
    }[kind]
    for _ in range(rng.choice([1, 1, 2, 4])):
        line = rng.choice(rows)
        cell = rng.choice([*names, *NAMES, *VALUES, *map(str, mutations.TEXTS[:-1]), "1" * 200_000, '"', "'=1"])
        change = rng.choice(["cell", "cell", "cell", "cut", "more", "repeat"])
        if change == "repeat":
            rows.append(list(line))
        elif change == "cut":
            del line[rng.randrange(len(line)) :]
            line += [""] * (not line)
        elif change == "more":
            line.append(cell)
        else:
            line[rng.randrange(len(line))] = cell
    file = folder / f"{kind}.csv"
    text = "\n".join(",".join(line) for line in rows)
    file.write_bytes(encode(rng, text.encode("utf-8", "replace").decode()))
    if kind == "boxes":
        return Case(_use_boxes(rng, folder, names, file), [str(folder)])
    _write_photos(folder / "photos", names)
    if kind == "taxonomy":
        command = ["predict", str(finished_run()), str(folder / "photos"), "--taxonomy", str(file), "--quiet"]
        return Case([*command, "--device", "cpu"], [str(folder)])
    small = "--iterations 1 --image-size 16 --backbone test_resnet --method supervised --quiet --device cpu"
    command = ["train", str(folder / "photos"), *small.split(), "--labels", str(file), "--out", str(folder / "run")]
    return Case([*command, "--cache", str(folder / "cache"), "--batch-size", "2"], [str(folder)])


def finished_classes() -> list[str]:
    """Names of the classes of the finished run."""
    return list(json.loads((finished_run() / "data.json").read_text(encoding="utf-8"))["classes"])


def _megadetector(names: list[str]) -> dict[str, Any]:
    found = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.2, 0.5, 0.5]}
    images = [{"file": name, "max_detection_conf": 0.9, "detections": [dict(found), dict(found)]} for name in names]
    return {"info": {"detector": "md"}, "detection_categories": {"1": "animal", "2": "person"}, "images": images}


def _coco(names: list[str]) -> dict[str, Any]:
    images = [{"id": number, "file_name": name, "width": 20, "height": 16} for number, name in enumerate(names)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 9, 9], "score": 0.9} for n in range(len(names))]
    return {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "animal"}]}


def _write_photos(root: Path, names: list[str]) -> None:
    for number, name in enumerate([*names, "labeled/b/1.png"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode_image((20, 16), (9, 90 * number, 9), "PNG"))


def _use_boxes(rng: random.Random, folder: Path, names: list[str], file: Path) -> list[str]:
    """A command that reads a file of boxes."""
    root = folder / "photos"
    _write_photos(root, names)
    if rng.random() < 0.5:
        return [*prepare(folder, str(root)), "--data.crops", str(file)]
    return ["predict", str(finished_run()), str(root), "--crops", str(file), "--device", "cpu", "--quiet"]


def _copy_run(folder: Path) -> Path:
    return Path(shutil.copytree(finished_run(), folder / "run", symlinks=True))


def _read_run(rng: random.Random, out: Path) -> list[str]:
    """A command that reads a run."""
    image = out.parent / "image.png"
    image.write_bytes(encode_image((20, 16), (9, 9, 9), "PNG"))
    commands = [
        ["evaluate", str(out), "--device", "cpu"],
        ["train", "--out", str(out), "--resume", "--quiet", "--device", "cpu"],
        ["predict", str(out), str(image), "--device", "cpu", "--quiet"],
        ["export", str(out), "--format", "safetensors"],
        ["report", str(out)],
        ["report", str(out)],
        ["report", str(out), str(finished_run()), "--out", str(out.parent / "report.html")],
    ]
    return rng.choice(commands)


KINDS = (
    *(mutated_yaml, mutated_json, mutated_label_log, mutated_safetensors, mutated_image),
    *(mutated_boxes, mutated_table),
)
