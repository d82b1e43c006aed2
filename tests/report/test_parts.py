"""The small parts of the page: words, colours, names, curves, matrices, pictures."""

from __future__ import annotations

import base64
import io
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semifine.analysis import Series, read_run
from semifine.report.arrangement import arrange, choose_k, choose_run
from semifine.report.curves import thinned
from semifine.report.matrices import tinted
from semifine.report.naming import run_labels
from semifine.report.palette import HUES, METHOD_STYLES, method_style, run_styles
from semifine.report.pictures import BUDGET, SIDE, data_uri, encode_examples
from semifine.report.settings_table import flat, settings_rows
from semifine.report.time_lines import time_lines
from semifine.report.wording import (
    MINUS,
    MISSING,
    count,
    decimal,
    duration,
    enumeration,
    method_name,
    percent,
    points,
    shortened,
)
from tests.analysis.fake_runs import make_groups, planted_counts, write_run


def test_words() -> None:
    assert percent(61.25) == "61.2\u202f%"
    assert percent(None) == decimal(None) == duration(None) == MISSING
    assert points(1.26) == "+1.3 points"
    assert points(-0.5) == f"{MINUS}0.5 points"
    assert points(-0.01) == "±0.0 points"
    assert count(1, "class", "classes") == "1 class"
    assert count(12345, "image") == "12\u202f345 images"
    assert [duration(seconds) for seconds in (4.21, 59.99, 125, 3725)] == [
        "4.2 s",
        "60.0 s",
        "2 min 05 s",
        "1 h 02 min",
    ]
    assert [enumeration(list("abc")[:size]) for size in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert shortened("a  rather\nlong name", 11) == "a rather l…"
    assert method_name("soc") == "SoC"
    assert method_name("mine") == "mine"


def test_methods_keep_their_style_and_differ() -> None:
    assert len(set(METHOD_STYLES.values())) == len(METHOD_STYLES)
    assert all(hue in HUES for hue, _ in METHOD_STYLES.values())
    assert method_style("my own method") == method_style("my own method")
    assert run_styles(["soc", "supervised", "soc"]) == [("blue", "-"), ("black", "-"), ("blue", "--")]


@pytest.mark.parametrize("dark", [False, True])
def test_hues_differ_in_more_than_red_against_green(dark: bool) -> None:
    """Without the red-green axis (protan and deutan vision), lightness or blue-yellow must tell hues apart."""
    seen = {}
    for name, shades in HUES.items():
        red, green, blue = (int(shades[dark][place : place + 2], 16) for place in (1, 3, 5))
        seen[name] = np.array([0.3 * red + 0.6 * green + 0.1 * blue, blue - (red + green) / 2])
    for first, second in combinations(seen, 2):
        assert np.abs(seen[first] - seen[second]).max() > 15, (first, second)


def test_labels_are_as_short_as_keeps_runs_apart(tmp_path: Path) -> None:
    alone = read_run(write_run(tmp_path / "a", "soc"))
    other_seed = read_run(write_run(tmp_path / "b", "soc", seed=1))
    same_seed = read_run(write_run(tmp_path / "c", "soc", seed=1))
    baseline = read_run(write_run(tmp_path / "d", "supervised"))
    assert run_labels([alone, baseline]) == ["SoC", "Supervised"]
    assert run_labels([alone, other_seed]) == ["SoC, seed 0", "SoC, seed 1"]
    assert run_labels([alone, other_seed, same_seed]) == ["SoC, seed 0", "SoC (b)", "SoC (c)"]


def test_long_series_are_thinned_to_means() -> None:
    long = Series(np.arange(1, 1001), np.arange(1000.0))
    short = thinned(long, 10)
    assert short.steps.tolist() == list(range(100, 1001, 100))
    assert short.values[0] == pytest.approx(49.5)
    assert thinned(short, 10) is short


def test_a_tint_grows_with_the_value_and_leaves_zero_clear() -> None:
    picture = tinted(np.array([[0.0, 4.0], [1.0, 0.0]]), (1, 2, 3))
    assert picture[0, 1].tolist() == [1, 2, 3, 255]
    assert picture[1, 0, 3] == 128, "by the square root"
    assert picture[0, 0].tolist() == picture[1, 1].tolist() == [128, 128, 128, 50]
    assert tinted(np.zeros((3, 3)), (1, 2, 3))[0, 1, 3] == 0


def test_the_run_with_transitions_is_shown(tmp_path: Path) -> None:
    groups = make_groups(2, 3)
    baseline = read_run(write_run(tmp_path / "a", "supervised", groups=groups))
    untested = read_run(write_run(tmp_path / "b", "supervised", top1=None))
    soc = read_run(write_run(tmp_path / "c", groups=groups, transitions=planted_counts(groups)))
    assert choose_run([baseline, untested, soc]) == 2
    assert choose_run([baseline, untested]) == 0
    assert choose_run([untested]) is None
    assert arrange(soc, "SoC").kind == "clusters"
    assert sorted(arrange(soc, "SoC").order) == list(range(6))
    assert arrange(baseline, "").blocks == [[0, 1, 2], [3, 4, 5]]
    assert arrange(untested, "").order == list(range(6))


def test_the_number_of_clusters(tmp_path: Path) -> None:
    names = [str(place) for place in range(40)]
    grouped = read_run(write_run(tmp_path / "a", names=names, groups=make_groups(8, 5)))
    assert choose_k(grouped)[0] == 8
    assert choose_k(read_run(write_run(tmp_path / "b", names=names)))[0] == 10
    each_its_own = read_run(write_run(tmp_path / "c", names=names, groups=names))
    assert choose_k(each_its_own)[0] == 10
    assert choose_k(read_run(write_run(tmp_path / "d", names=["a", "b"])))[0] == 2


@pytest.mark.parametrize(
    ("method", "k"),
    [
        ({"map": "linear", "alpha": 4.0}, 12),
        ({"map": "exponential", "beta": 0.25}, 13),
        ({"map": "fixed", "k": 9, "alpha": 5.0}, 9),
        ({"map": "fixed", "k": 1}, 10),
    ],
)
def test_the_number_of_clusters_is_that_of_the_map(tmp_path: Path, method: dict[str, Any], k: int) -> None:
    """At full confidence; a map without clusters to show gives way to the paper's, and the page says so."""
    names = [str(place) for place in range(40)]
    run = read_run(write_run(tmp_path / "run", names=names, settings={"method": {"name": "soc", **method}}))
    assert choose_k(run)[0] == k
    assert ("paper" in choose_k(run)[1]) == (method.get("k") == 1)


def test_a_picture_is_a_small_square_of_the_middle() -> None:
    image = np.zeros((300, 500, 3), np.uint8)
    image[:, 100:400] = (200, 30, 30)
    uri = data_uri(image)
    picture = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))
    assert picture.size == (SIDE, SIDE)
    pixels = np.asarray(picture).reshape(-1, 3)
    assert np.abs(pixels.astype(int) - (200, 30, 30)).max() < 12


def test_pictures_keep_to_their_budget() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    many = {label: [image] * 9 for label in range(400)}
    assert sum(map(len, encode_examples(many, range(400)).values())) == BUDGET
    assert [len(found) for found in encode_examples(many, range(3)).values()] == [4, 4, 4]
    assert encode_examples({0: [], 1: [image]}, [0, 1, 2]).keys() == {1}
    assert encode_examples(None, [0]) == {}


def test_settings_side_by_side(tmp_path: Path) -> None:
    assert flat({"method": {"alpha": 5}, "ema": None, "crop": [0.5, 1], "nesterov": True}) == {
        "method.alpha": "5", "ema": MISSING, "crop": "0.5, 1", "nesterov": "yes",
    }  # fmt: skip
    runs = [read_run(write_run(tmp_path / method, method)) for method in ("soc", "supervised")]
    rows = {row.key: row for row in settings_rows(runs)}
    assert rows["method.alpha"].values == ["5.0", MISSING]
    assert rows["method.alpha"].differs
    assert not rows["backbone"].differs


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("folder:/home/ada/my birds", "folder:…/my birds"),
        ("/home/ada/weights.pt", "…/weights.pt"),
        (r"C:\Users\ada\birds", "…/birds"),
        ("~/cache", "…/cache"),
        ("semi_cub", "semi_cub"),
        ("weights.pt", "weights.pt"),
        ("0.5, 1", "0.5, 1"),
    ],
)
def test_settings_do_not_tell_where_files_lie(tmp_path: Path, value: str, shown: str) -> None:
    runs = [read_run(write_run(tmp_path / name, settings={"where": value + name})) for name in ("a", "b")]
    row = next(row for row in settings_rows(runs) if row.key == "where")
    assert row.values == [shown + "a", shown + "b"]
    same_name = [read_run(write_run(tmp_path / f"{name}2", settings={"where": f"/{name}/x"})) for name in ("a", "b")]
    row = next(row for row in settings_rows(same_name) if row.key == "where")
    assert row.values == ["…/x", "…/x"]
    assert row.differs


def test_the_line_about_time_tells_steps_apart_and_the_memory(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", settings={"labelled_first": 0.5}))
    run.result["peak_gpu_bytes"] = 3_210_000_000
    (line,) = time_lines([run])
    assert "100 ms a step with unlabelled images, 500 images a second" in line
    assert line.endswith("and at most 3.2 GB of GPU memory.")
    baseline = read_run(write_run(tmp_path / "other", "supervised", settings={"labelled_first": 0.5}))
    assert "100 ms a step, 500 images" in time_lines([baseline])[0], "which has no unlabelled images"
