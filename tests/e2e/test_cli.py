"""The command line as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from semifine.cli.main import VERBS, main

TINY = (
    "--image-size 32 --iterations 4 --batch-size 4 --mu 2 --log-every 2 --evaluate-every 2 --device cpu "
    "--data.genera 3 --data.species 2 --data.labeled-per-class 3 --data.unlabeled-per-class 6 "
    "--data.val-per-class 2 --data.test-per-class 3 --quiet"
).split()


def make_photos(root: Path) -> Path:
    """Creates a folder of small photos of two kinds of stripes, with special characters in names."""
    random = np.random.default_rng(0)

    def photo(path: Path, kind: int) -> None:
        pixels = random.integers(0, 60, (40, 50, 3))
        pixels[:: 2 + 3 * kind, :, kind] += 180
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)

    for kind, name in enumerate(["Mésange bleue", "Red-tailed hawk "]):
        for number in range(4):
            photo(root / "labeled" / name / f"photo {number}.PNG", kind)
            photo(root / "test" / name / f"test {number}.jpg", kind)
        for number in range(8):
            photo(root / "unlabeled" / f"site {kind}" / f"{number}.jpeg", kind)
    return root


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run for all tests that only read it."""
    out = tmp_path_factory.mktemp("runs") / "soc"
    assert main(["train", "--method", "soc", "--out", str(out), *TINY]) == 0
    return out


def test_help_imports_no_heavy_packages() -> None:
    """Checks imports, not time; benchmarks/start_time.py measures the start time."""
    program = Path(sys.executable).parent / "semifine"
    watched = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    result = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, env=watched)
    assert all(verb in result.stdout for verb in VERBS)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
    assert "semifine" in imported
    assert not imported & {"torch", "numpy", "PIL", "rich", "yaml", "timm", "pyarrow", "lightning_fabric", "matplotlib"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"semifine {verb}" in capsys.readouterr().out


def test_train_writes_the_documented_run_folder(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"settings.yaml", "metrics.jsonl", "result.json", "samples.parquet", "checkpoints"} <= names
    assert load_file(finished / "checkpoints" / "last" / "model.safetensors")
    assert json.loads((finished / "result.json").read_text())["iterations"] == 4


def test_evaluate_reproduces_the_result_of_training(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(finished), "--device", "cpu", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    result = json.loads((finished / "result.json").read_text())
    assert (scores["top1"], scores["top5"], scores["images"]) == (result["top1"], result["top5"], 18)


def test_evaluate_on_validation_images(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(finished), "--split", "val", "--checkpoint", "best_val", "--device", "cpu"]) == 0
    assert "val: top-1" in capsys.readouterr().out


def test_json_goes_to_stdout_and_messages_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [argument for argument in TINY if argument != "--quiet"]
    assert main(["train", "--method", "supervised", "--out", str(tmp_path / "run"), "--json", *arguments]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert {"top1", "top5", "seed", "environment"} <= set(result)
    assert "step" in captured.err


def test_existing_run_is_not_overwritten(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert main(["train", "--method", "soc", "--out", str(finished), *TINY]) == 2
    assert "--resume" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_resuming_a_finished_run_prints_its_result(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(finished), "--resume", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished / "result.json").read_text())


def test_resuming_with_other_settings_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(finished), "--resume", "--lr", "0.5", "--quiet"]) == 2
    assert "lr" in capsys.readouterr().err


def test_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert main(["train", "--out", str(tmp_path), *TINY]) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_folder_is_usable_after_an_error(tmp_path: Path) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), "--method", "supervised", *TINY]
    assert main([*arguments, "--backbone", "resnet5O"]) == 2
    assert main(arguments) == 0


def test_own_photos_from_folder_to_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = make_photos(tmp_path / "my photos")
    common = ["--cache", str(tmp_path / "cache"), "--image-size", "32", "--backbone", "test_resnet", "--device", "cpu"]
    assert main(["prepare", str(photos), *common]) == 0
    report = capsys.readouterr().out
    assert "Mésange bleue" in report
    out = tmp_path / "run"
    arguments = ["--method", "fixmatch", "--out", str(out), "--iterations", "4", "--batch-size", "4", "--mu", "2"]
    assert main(["train", str(photos), *arguments, *common, "--quiet"]) == 0
    assert main(["evaluate", str(out), "--device", "cpu", "--json"]) == 0

    import semifine

    model = semifine.load(out, device="cpu")
    files = sorted((photos / "unlabeled").rglob("*.jpeg"))
    predictions = model.predict([*files, Image.open(files[0]), np.zeros((30, 20, 3), np.uint8)])
    assert len(predictions) == len(files) + 2
    assert predictions[0].name in model.class_names
    assert predictions[len(files)] == predictions[0], "a path and the same opened image give equal predictions"
    assert abs(sum(predictions[0].probabilities) - 1) < 1e-5


def test_command_line_overrides_file_overrides_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("method: {name: soc, alpha: 3.0}\nlr: 0.2\nimage_size: 24\n")
    arguments = ["--preset", "lite0-imagenet", "--config", str(tmp_path / "mine.yaml"), "--method.alpha=4", *TINY]
    arguments += ["--backbone", "test_resnet", "--no-pretrained", "--out", str(tmp_path / "run")]
    assert main(["train", *arguments]) == 0

    import yaml

    settings = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert settings["method"]["alpha"] == 4.0, "command line"
    assert settings["lr"] == 0.2, "file"
    assert settings["warmup"] == 0.1, "preset"
    assert settings["image_size"] == 32, "command line beats file"


@pytest.mark.parametrize("kind", ["methods", "datasets", "backbones", "presets"])
def test_list_prints_names(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    full = capsys.readouterr().out
    assert main(["list", kind, "--plain"]) == 0
    names = capsys.readouterr().out.split()
    expected = {"methods": "soc", "datasets": "synthetic", "backbones": "resnet50", "presets": "soc-paper"}
    assert expected[kind] in names
    assert all(name in full for name in names)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["trian"], "Unknown command 'trian'"),  # codespell:ignore trian
        (["train"], "--out"),
        (["train", "--out", "x", "--itertions", "5"], "Did you mean '--iterations'?"),
        (["train", "--out", "x", "--iterations", "many"], "iterations must be a whole number"),
        (["train", "--out", "x", "--iterations", "0"], "iterations must be at least 1"),
        (["train", "--out", "x", "--method", "sock"], "Unknown method 'sock'"),
        (["train", "--out", "x", "--method.alpha"], "--method.alpha needs a value"),
        (["train", "--out", "x", "--method.alpha", "0.5"], "method.alpha must be at least 1"),
        (["train", "--out", "x", "--method.gamma", "1"], "Unknown setting 'method.gamma'"),
        (["train", "nowhere", "--out", "x"], "nowhere"),
        (["train", "semi_cub:nowhere", "--out", "x"], "nowhere"),
        (["train", "--out", "x", "--preset", "none"], "Unknown preset 'none'"),
        (["train", "--out", "x", "--config", "none.yaml"], "none.yaml"),
        (["train", "--out", "x", "--backbone", "resnet5O", "--quiet"], "Unknown backbone 'resnet5O'"),
        (["train", "--out", "x", "--weights", "none.pt", "--quiet"], "none.pt"),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["list", "everything"], "everything"),
    ],
)
def test_errors_are_one_sentence_with_exit_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.startswith("semifine: ")
    assert len(error.strip().splitlines()) == 1


def test_test_image_in_the_training_set_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = make_photos(tmp_path / "photos")
    leaked = next((photos / "test").rglob("*.jpg"))
    (photos / "unlabeled" / "leaked.jpg").write_bytes(leaked.read_bytes())
    assert main(["prepare", str(photos), "--cache", str(tmp_path / "cache"), "--image-size", "32"]) == 0
    printed = capsys.readouterr().out
    assert f"left out: unlabeled/leaked.jpg: copy of a test image (= {leaked.relative_to(photos)})" in printed
    assert "note: training leaves out 1 unlabeled image (also in test)" in printed


def test_misspelled_backbone_is_refused_before_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, cache = make_photos(tmp_path / "photos"), tmp_path / "cache"
    assert main(["train", str(photos), "--out", str(tmp_path / "run"), "--cache", str(cache), "--backbone", "r50"]) == 2
    assert "Unknown backbone 'r50'" in capsys.readouterr().err
    assert not cache.exists()


def test_unreadable_images_are_left_out_unless_they_are_the_majority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_photos(tmp_path / "photos")
    common = [str(photos), "--cache", str(tmp_path / "cache"), "--image-size", "32", "--device", "cpu"]
    (photos / "unlabeled" / "broken.jpg").write_bytes(b"not an image")
    assert main(["prepare", *common]) == 0
    assert "broken.jpg" in capsys.readouterr().out
    (photos / "labeled" / "Mésange bleue" / "torn.jpg").write_bytes(b"not an image")
    assert main(["prepare", *common]) == 0
    printed = capsys.readouterr().out
    assert "torn.jpg" in printed
    assert "note: training leaves out 1 unlabeled image and 1 val image (unreadable)" in printed
    for file in (photos / "test").rglob("test [123].jpg"):
        file.write_bytes(b"not an image")
    assert main(["prepare", *common]) == 2
    printed, error = capsys.readouterr()
    assert all(f"left out: {file.relative_to(photos)}: " in printed for file in (photos / "test").rglob("test 1.jpg"))
    assert "6 of 8 test images of photos cannot be read (test/" in error
    assert len(error.strip().splitlines()[-1:]) == 1


def test_written_folder_is_complete_or_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "out"
    (photos / "unlabeled" / "broken.jpg").write_bytes(b"not an image")
    (photos / "labeled" / "Mésange bleue" / "torn.jpg").write_bytes(b"no image either")
    torn = list((photos / "labeled" / "Red-tailed hawk ").iterdir())
    contents = [file.read_bytes() for file in torn]
    for file in torn:
        file.write_bytes(b"no image either")
    writing = ["prepare", str(photos), "--write-folder", str(out)]
    assert main(writing) == 2
    assert "5 of 9 labeled images of photos cannot be read (labeled/" in capsys.readouterr().err
    assert not out.exists()
    for file, content in zip(torn, contents, strict=True):
        file.write_bytes(content)
    assert main(writing) == 0
    said = capsys.readouterr().out
    assert "left out unlabeled/broken.jpg" in said
    assert "32 images of photos written" in said
    assert len([path for path in out.rglob("*") if path.is_file()]) == 32
