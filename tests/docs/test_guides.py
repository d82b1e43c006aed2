"""The guides for contributors: each is followed in a copy of the source tree, and its effect is checked.

A guide names the file of a code block in the line above the block: "New file `PATH`:" or "In `PATH`:". Edits are diffs.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import FEW_IMAGES, ROOT

HOW_TO = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^(New file|In) `(src/[\w/.]+)`:\n\n```\w+\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
RUN_COMMANDS = """
import json, shlex, sys
import torch
from semifine.cli.main import main
torch.set_num_threads(1)
for line in json.loads(sys.argv[1]):
    assert main(shlex.split(line)) == 0, line
"""
DATA = {**FEW_IMAGES, "data.val_per_class": 6}
TINY = {
    "image_size": 32,
    "store_size": 32,
    "batch_size": 4,
    "mu": 2,
    "log_every": 1,
    "device": "cpu",
    "loggers": "none",
}


class Copy:
    """A copy of the source tree with the edits of a guide."""

    def __init__(self, folder: Path, page: str) -> None:
        self.folder = folder
        self.text = (HOW_TO / page).read_text(encoding="utf-8")
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.edited = {path for _, path, _ in BLOCK.findall(self.text)}
        for kind, path, block in BLOCK.findall(self.text):
            file = folder / path
            if kind == "New file":
                assert not file.exists()
                file.write_text(block, encoding="utf-8")
            else:
                file.write_text(apply_diff(file.read_text(encoding="utf-8"), block, path), encoding="utf-8")
        self.check_style(*sorted(self.edited))

    def check_style(self, *files: str) -> None:
        for command in (("check", "--quiet"), ("format", "--check", "--quiet")) if files else ():
            subprocess.run([sys.executable, "-m", "ruff", *command, *files], cwd=self.folder, check=True)

    def python(self, program: str, *arguments: str, **environment: str) -> str:
        """Runs a program that imports the copy, and returns its output."""
        places = os.pathsep.join([str(self.folder / "src"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-c", dedent(program), *arguments],
            env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commands(self, *others: str) -> str:
        """Runs other commands, then those of the guide."""
        blocks = re.findall(r"^```console\n(.*?)^```$", self.text, flags=re.DOTALL | re.MULTILINE)
        lines = [line.removeprefix("$ semifine ") for line in "".join(blocks).splitlines()]
        return self.python(RUN_COMMANDS, json.dumps([*others, *lines]))

    def write_defaults(self, source: str, **settings: object) -> None:
        """Makes trainings on a data source small by the preset that its trainings start from."""
        preset = self.folder / "src" / "semifine" / "config" / "presets" / "datasets" / f"{source}.yaml"
        preset.write_text(json.dumps({"backbone": "test_resnet", **TINY, **settings}))


def apply_diff(text: str, diff: str, path: str) -> str:
    """Replaces the one place that has the context and the removed lines of a diff."""
    lines = [line or " " for line in diff.splitlines()]
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(old) == 1, f"{path} has {text.count(old)} places with the lines\n{old}"
    return text.replace(old, new)


def test_diffs_must_match_one_place() -> None:
    assert apply_diff("a\nb\nc\n", " a\n-b\n+B\n", "file") == "a\nB\nc\n"
    for wrong in (" d\n+e\n", "+e\n"):
        with pytest.raises(AssertionError, match="file has"):
            apply_diff("a\nb\nc\n", wrong, "file")


@pytest.mark.slow
def test_add_a_method(tmp_path: Path) -> None:
    """In the package, the method of the guide is listed, trained, reported by its title, and part of a recipe."""
    copy = Copy(tmp_path, "add_a_method.md")
    (code,) = re.findall(r"^```python\n# balanced_soft.py\n(.*?)^```$", copy.text, flags=re.DOTALL | re.MULTILINE)
    named = '    name = "balanced_soft"\n'
    if "\n    title = " not in code:
        code = apply_diff(code, f' {named}+    title = "Balanced soft labels"\n', "balanced_soft.py")
    (title,) = re.findall(r'^    title = "(.*)"$', code, flags=re.MULTILINE)
    package = tmp_path / "src" / "semifine"
    (package / "methods" / "balanced_soft.py").write_text(code, encoding="utf-8")
    recipes = package / "config" / "experiments" / "recipes.yaml"
    if "  balanced_soft:\n" not in recipes.read_text(encoding="utf-8"):
        with recipes.open("a", encoding="utf-8") as file:
            file.write(RECIPE)
    copy.write_defaults("synthetic", **DATA)
    train = "train synthetic --method balanced_soft --out runs/soft --iterations 2 --quiet"
    shown = copy.python(
        RUN_COMMANDS, json.dumps(["list methods --plain", train, "report runs/soft --out report.html", EXPERIMENT])
    )
    assert "balanced_soft" in shown
    assert title in (tmp_path / "report.html").read_text(encoding="utf-8")


FEW = " ".join(f"--{name} {value}" for name, value in FEW_IMAGES.items())
EXPERIMENT = f"experiment balanced_soft --budget 1 --out experiment {FEW}"
RECIPE = """
  balanced_soft:
    family: two_views
    settings: {method.name: balanced_soft}
    scratch: {iterations: 400_000, lr: 0.01}
    experts: {iterations: 50_000, lr: 0.001}
"""


@pytest.mark.slow
def test_add_an_augmentation(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add_an_augmentation.md")
    assert len(copy.edited) == 4, "two files for a setting, two for an operation"
    copy.write_defaults("synthetic", **DATA)
    copy.commands()
    assert "\nvertical_flip: 0.5\n" in (tmp_path / "runs" / "flipped" / "settings.yaml").read_text()
    copy.python(VIEWS)
    copy.python(OPERATION)


VIEWS = """
    import numpy as np
    import torch
    from semifine.augment.pipeline import AugmentPipeline
    from semifine.augment.settings import AugmentSettings
    from tests.augment.helpers import make_store, smooth_image

    store = make_store([smooth_image(40, 30, seed=seed) for seed in range(16)])

    def weak(**settings):
        pipeline = AugmentPipeline(store, AugmentSettings(size=16, **settings), seed=0)
        return pipeline("weak", np.arange(16), step=0, stream="labeled")

    upright, flipped, mixed = weak(), weak(vertical_flip=1.0), weak(vertical_flip=0.5)
    assert torch.equal(flipped, upright.flip(2)) and not torch.equal(flipped, upright)
    is_flipped = [torch.equal(view, other) for view, other in zip(mixed, flipped)]
    is_upright = [torch.equal(view, other) for view, other in zip(mixed, upright)]
    assert all(a != b for a, b in zip(is_flipped, is_upright)) and 0 < sum(is_flipped) < 16
"""

OPERATION = """
    import numpy as np
    from semifine.augment.crops import center_crop
    from semifine.augment.randaugment import RandAugmentParams, apply_randaugment
    from semifine.augment.randaugment_ops import CODE
    from tests.augment.helpers import make_batch, smooth_image

    images = make_batch([smooth_image(20, 20)])
    crop = center_crop(images.table, 20)

    def render(name):
        params = RandAugmentParams(np.array([[CODE[name]]]), np.zeros((1, 1)), cutout=np.zeros((1, 4)))
        return apply_randaugment(images, params, crop, 20).float()

    assert (render("Invert") + render("Identity") == 255).all()
"""


@pytest.mark.slow
def test_the_operation_works_in_the_kernel(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    copy = Copy(tmp_path, "add_an_augmentation.md")
    program = """
        import torch
        from tests.augment.kernel_comparison import IMAGES, compare_randaugment
        compare_randaugment([["Invert", "Equalize", "Invert"]] * len(IMAGES), 24, 20, torch.device("cpu"))
    """
    copy.python(program, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_add_a_data_source(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add_a_data_source.md")
    assert len(copy.edited) == 1
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for name in ("robin", "great_tit"):
        for number in range(8):
            pixels = random.integers(0, 255, (40, 40, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}_{number:03d}.png")
    copy.write_defaults("file_names", supervised_warmup=0)
    assert "file_names" in copy.commands("list datasets")
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert result["images"] == {"labeled": 4, "unlabeled": 8, "val": 0, "test": 4}
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "last" / "model.safetensors").is_file()


@pytest.mark.slow
def test_add_a_prediction_column(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    copy = Copy(tmp_path, "add_a_prediction_column.md")
    assert len(copy.edited) == 1
    copy.write_defaults("synthetic", **DATA)
    train = "train synthetic --method supervised --out run --iterations 2 --quiet"
    copy.commands("prepare synthetic --write-folder photos", train)
    with (tmp_path / "predictions.csv").open(newline="") as file:
        tables: list[list[dict[str, Any]]] = [list(csv.DictReader(file))]
    tables.append([json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()])
    tables.append(pq.read_table(tmp_path / "predictions.parquet").to_pylist())
    for table in tables:
        assert len(table) == 24
        assert [float(row["margin"]) for row in table] == [float(row["margin"]) for row in tables[0]]
    for row in tables[2]:
        first, second, *_ = row["probabilities"]
        assert 0 <= row["margin"] == pytest.approx(first - second, abs=2e-6)


@pytest.mark.slow
def test_add_a_report_section(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add_a_report_section.md")
    assert len(copy.edited) == 2
    copy.write_defaults("synthetic", **DATA)
    copy.commands()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<a href="#confidence">Confidence</a>' in page
    (section,) = re.findall(r'<section id="confidence">.*?</section>', page, flags=re.DOTALL)
    assert "on 54 unlabeled images." in section
    assert section.count("<svg ") == 1
    assert section.count("<path ") >= 20, "twenty bars"
    assert re.search(r"Median \d+(\.\d+)?\s%", section)
