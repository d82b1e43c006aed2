"""Invalid input gives exit code 2 and an error message of one sentence, without a traceback or a hang.

Hypothesis generates the cases; benchmarks/fuzz.py runs many more of them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semifine.cli.main import main
from tests.faults import bad_inputs
from tests.faults.bad_files import decompression_bomb, encode_image

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A temporary folder that every user can read, unlike the folders of pytest."""
    place = Path(tempfile.mkdtemp(prefix="semifine-bad-input-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("kind", bad_inputs.KINDS)
@FEW
@given(rng=st.randoms(use_true_random=False))
def test_invalid_input_gives_one_sentence(kind: str, rng: random.Random, folder: Path) -> None:
    bad_inputs.try_case(kind, rng, folder)


@pytest.mark.parametrize("kind", bad_inputs.KINDS)
def test_many_cases_are_invalid(kind: str, folder: Path) -> None:
    """Valid input alone would test nothing."""
    codes = [bad_inputs.try_case(kind, random.Random(seed), folder) for seed in range(20)]
    assert codes.count(2) >= 3


def labeled_photos(root: Path) -> Path:
    for number, name in enumerate(["a", "b"]):
        (root / "labeled" / name).mkdir(parents=True)
        (root / "labeled" / name / "1.jpg").write_bytes(encode_image((20, 16), (9, 90 * number, 9), "JPEG"))
    return root


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("labeled/a/2.png", decompression_bomb(), "2.png cannot be read as an image (Image size (2500000000 pixels)"),
        ("labeled/a/2.jpg", b"", "2.jpg cannot be read as an image (not a supported image format)"),
        ("labeled/a/2.jpg", encode_image((20, 16), (1, 1, 1), "JPEG")[:300], "2.jpg cannot be read as an image"),
        ("labeled/a/2.jpg", encode_image((20, 16), (1, 1, 1), "PNG"), ""),
        ("labeled/a/2.jpg", encode_image((1, 1), (1, 1, 1), "JPEG"), ""),
        ("labeled/a/new\nline.jpg", encode_image((20, 16), (1, 1, 1), "JPEG"), ""),
        ("labeled/c\nd/2.jpg", encode_image((20, 16), (1, 1, 1), "JPEG"), ""),
        ("labeled/c\nd/2.txt", b"", "contains no image"),
    ],
)
def test_photos(name: str, content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Photos that cannot be used are left out and listed."""
    root = labeled_photos(tmp_path / "photos")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
    assert main(["prepare", str(root), "--cache", str(tmp_path / "cache"), "--image-size", "16"]) == 0
    output = capsys.readouterr().out
    assert ("left out: " in output) == bool(reason)
    assert reason in output


def test_test_photos_of_a_class_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = labeled_photos(tmp_path / "photos")
    (root / "test" / "c").mkdir(parents=True)
    (root / "test" / "c" / "2.jpg").touch()
    assert main(["prepare", str(root)]) == 2
    assert "is a class without labeled images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("a.jpg 1000000", "line 2: the label 1000000 is outside the range of -1 (unknown) to 999999"),
        (f"a.jpg {10**30}", f"line 2: the label {10**30} is outside"),
        ("a.jpg -2", "line 2: the label -2 is outside"),
        ("a.jpg 1.0", "line 2: the label '1.0' is not a whole number"),
        ("a.jpg", "line 2: expected 'path label', found 'a.jpg'"),
        ("a.jpg 3", "the labels must be 0, 1, 2, … without gaps"),
    ],
)
def test_invalid_lines_of_a_list(line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "l_train_val.txt").write_text(f"a.jpg 0\n{line}\n")
    assert main(["prepare", f"semi_aves:{tmp_path}"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("", "t.csv has no column 'path'"),
        ("path,label\n", "must contain labeled rows of at least two classes, not 0"),
        ("path,label\n1.jpg,a\n2.jpg,a\n", "must contain labeled rows of at least two classes, not 1"),
        ("path,label,split\n1.jpg,a,\n2.jpg,b,\n3.jpg,c,test\n", "line 4: class 'c' has no labeled image"),
        ("path,label,split\n1.jpg,a,soon\n", "line 2: unknown split 'soon'"),
        ('path,label\n"1\n.jpg,a\n', "t.csv, line 3"),
    ],
)
def test_invalid_tables(rows: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(rows)
    assert main(["prepare", str(tmp_path / "t.csv")]) == 2
    assert sentence in capsys.readouterr().err
