"""Parts of the report: formatting, colors, names, curves, matrices, photos and settings."""

from __future__ import annotations

import base64
import io
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semifine.methods.registry import method_display, method_names
from semifine.report.class_order import choose_k, choose_run, describe_groups, order_classes
from semifine.report.formatting import (
    MINUS,
    MISSING,
    count,
    decimal,
    distinguishing_digits,
    duration,
    join_words,
    percent,
    points,
    shorten,
    three_digits,
)
from semifine.report.names import data_labels, run_labels
from semifine.report.photos import MAX_PHOTOS, SIDE, encode_class_photos, to_data_uri
from semifine.report.run_settings import flatten, is_seed_or_runtime, settings_rows
from semifine.report.scores import group_runs, result_rows
from semifine.report.sections.curves import draw_curves, legend
from semifine.report.sections.matrices import draw_matrices, matrix_image
from semifine.report.sections.results import time_lines
from semifine.report.style import (
    DASHES,
    HUES,
    SPARE_HUES,
    axis_ticks,
    downsample,
    half_color_value,
    method_styles,
    run_styles,
)
from semifine.runs.run import Run, Series
from tests.runs.fake_runs import changed_run, make_groups, planted_counts, write_run

METHOD_STYLES = method_styles(method_names())


def test_formatting() -> None:
    assert percent(61.25) == "61.2\u202f%"
    assert percent(None) == decimal(None) == duration(None) == MISSING
    assert points(1.26) == "+1.3\u00a0points"
    assert points(-0.5) == f"{MINUS}0.5\u00a0points"
    assert points(-0.01) == "±0.0\u00a0points"
    assert points(4.404, digits=2) == "+4.40\u00a0points"
    assert [distinguishing_digits(4.404, other) for other in (4.6, 4.37, 4.4039, 4.404)] == [1, 2, 4, 1]
    assert [three_digits(value) for value in (74.21, 1234.5, 0.01234)] == ["74.2", "1230", "0.0123"]
    assert count(1, "class", "classes") == "1 class"
    assert count(12345, "image") == "12\u202f345 images"
    assert [duration(seconds) for seconds in (4.21, 59.99, 125, 3725)] == [
        "4.2\u00a0s",
        "60.0\u00a0s",
        "2\u00a0min 05\u00a0s",
        "1\u00a0h 02\u00a0min",
    ]
    assert [join_words(list("abc")[:size]) for size in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert shorten("a  rather\nlong name", 11) == "a rather l…"
    assert method_display("soc").title == "SoC"
    assert method_display("mine").title == "mine"


def test_methods_keep_their_style_and_differ() -> None:
    assert len(set(METHOD_STYLES.values())) == len(METHOD_STYLES)
    assert all(hue in HUES for hue, _ in METHOD_STYLES.values())
    assert run_styles(["my own method"]) == [("sky", "-")], "on every page of every process"
    assert run_styles(["soc", "supervised", "soc"]) == [("blue", "-"), ("black", "-"), ("blue", "--")]


def test_custom_methods_take_a_free_style() -> None:
    assert run_styles(["aligned"]) == [METHOD_STYLES["simmatch"]], "what it would take on a page of its own"
    for methods in (["simmatch", "aligned"], ["aligned", "simmatch"]):
        styles = dict(zip(methods, run_styles(methods), strict=True))
        assert styles["simmatch"] == METHOD_STYLES["simmatch"]
        assert styles["aligned"] == ("sky", "-"), "a hue of its own, whatever the order"
    taken = sum(hue in SPARE_HUES for hue, _ in METHOD_STYLES.values())
    many = [*METHOD_STYLES, *(f"mine {place}" for place in range(len(SPARE_HUES) * len(DASHES) - taken))]
    assert len(set(run_styles(many))) == len(many), "as long as there are pairs of hue and line style"
    assert len(run_styles([*many, "one more"])) == len(many) + 1
    assert run_styles(["self_training", "self_training", "moco"])[1] == ("sky", "-."), "not that of another method"


@pytest.mark.parametrize("dark", [False, True])
def test_hues_differ_without_the_red_green_axis(dark: bool) -> None:
    """Without the red-green axis (protan and deutan vision), lightness or blue-yellow must tell hues apart."""
    seen = {}
    for name, shades in HUES.items():
        red, green, blue = (int(shades[dark][place : place + 2], 16) for place in (1, 3, 5))
        seen[name] = np.array([0.3 * red + 0.6 * green + 0.1 * blue, blue - (red + green) / 2])
    for first, second in combinations(seen, 2):
        assert np.abs(seen[first] - seen[second]).max() > 15, (first, second)


def test_labels_are_short_and_unique(tmp_path: Path) -> None:
    alone = Run(write_run(tmp_path / "a", "soc"))
    other_seed = Run(write_run(tmp_path / "b", "soc", seed=1))
    same_seed = Run(write_run(tmp_path / "c", "soc", seed=1))
    baseline = Run(write_run(tmp_path / "d", "supervised"))
    assert run_labels([alone, baseline]) == ["SoC", "Supervised"]
    assert run_labels([alone, other_seed]) == ["SoC, seed 0", "SoC, seed 1"]
    assert run_labels([alone, other_seed, same_seed]) == ["SoC, seed 0", "SoC (b)", "SoC (c)"]


def test_labels_include_the_data_set_if_there_are_several(tmp_path: Path) -> None:
    def run(name: str, method: str = "soc", **more: Any) -> Run:
        return Run(write_run(tmp_path / name, method, **more))

    small = {"data": {"source": "synthetic", "species": 2}}
    eight, two = run("a", "supervised"), run("b", settings=small)
    elsewhere, again = changed_run(run("c"), data="folder:/home/ada/birds"), run("d", settings=small, seed=1)
    assert run_labels([eight, elsewhere]) == ["Supervised on synthetic", "SoC on birds"]
    labels = run_labels([eight, two, again])
    assert labels == [
        "Supervised on synthetic (species\u00a08)",
        "SoC on synthetic (species\u00a02), seed 0",
        "SoC on synthetic (species\u00a02), seed 1",
    ]
    assert [entry.label for entry in legend([eight, two, again], labels)] == labels
    assert [row.label for row in result_rows([eight, two, again])] == labels
    assert [group.label for group in group_runs([eight, two, again])] == [
        "Supervised on synthetic (species\u00a08)",
        "SoC on synthetic (species\u00a02)",
    ]


def test_equal_data_names_are_extended_by_the_fewest_settings(tmp_path: Path) -> None:
    data = [
        {"source": "synthetic", "genera": genera, "species": genera + 1, "side": side}
        for genera, side in ((2, 32), (4, 32), (4, 64))
    ]
    runs = [Run(write_run(tmp_path / str(place), settings={"data": one})) for place, one in enumerate(data)]
    assert data_labels(runs[:2]) == ["synthetic (genera\u00a02)", "synthetic (genera\u00a04)"]
    assert data_labels(runs)[1:] == [
        "synthetic (genera\u00a04, side\u00a032)",
        "synthetic (genera\u00a04, side\u00a064)",
    ]
    assert data_labels(runs[:1]) == ["synthetic"]


@pytest.mark.parametrize("top", [0.0, 1e-7, 0.9, 1.0, 3.0, 9.1, 15.0, 30.0, 55.0, 93.0, 100.0, 1234.0])
def test_ticks_end_above_the_data(top: float) -> None:
    ticks = axis_ticks(top)
    assert 5 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] >= top > ticks[-2] or top == 0
    assert np.allclose(np.diff(ticks), ticks[1])
    assert float(f"{ticks[1]:.2g}") == pytest.approx(ticks[1]), "a round number"


def test_percentages_end_at_a_hundred() -> None:
    assert axis_ticks(93.0) == [0, 25, 50, 75, 100]


def test_curves_end_at_a_tick(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", top1=None))
    run.series["loss"] = Series(np.array([1, 2]), np.array([9.1, 8.9]))
    loss = next(curve.svg for curve in draw_curves([run], ["SoC"]) if curve.title == "Loss")
    assert re.findall(r"text-anchor: end.*?>([\d.]+)</text>", loss) == ["0.0", "2.5", "5.0", "7.5", "10.0"]


def test_long_series_are_averaged() -> None:
    long = Series(np.arange(1, 1001), np.arange(1000.0))
    short = downsample(long, 10)
    assert short.steps.tolist() == list(range(100, 1001, 100))
    assert short.values[0] == pytest.approx(49.5)
    assert downsample(short, 10) is short


def test_opacity_grows_with_the_value_and_zero_is_transparent() -> None:
    picture = matrix_image(np.array([[0.0, 4.0], [1.0, 0.0]]), (1, 2, 3))
    assert picture[0, 1].tolist() == [1, 2, 3, 255]
    assert picture[1, 0, 3] == 128, "by the square root"
    assert picture[0, 0].tolist() == picture[1, 1].tolist() == [128, 128, 128, 50]
    assert matrix_image(np.zeros((3, 3)), (1, 2, 3))[0, 1, 3] == 0


def test_color_scales_have_integer_ticks(tmp_path: Path) -> None:
    counts = planted_counts(make_groups(2, 3))
    counts[0, 1], counts[1, 0] = 207, 0
    run = Run(write_run(tmp_path / "run", transitions=counts))
    changes, mistakes = draw_matrices(order_classes(run, "SoC"))
    assert changes.ticks == ("0", "52", "207 changes")
    assert changes.caption.endswith("Colors follow the square root.")
    assert mistakes.caption.endswith("Colors follow the square root.")
    assert [half_color_value(top) for top in (1, 3, 4, 9)] == [None, None, 1, 2]


@pytest.mark.parametrize(
    ("names", "groups", "message"),
    [
        (["Whip poor Will", "Nighthawk"], ["Will", "Nighthawk"], "the last words of the class names"),
        (["Parus major", "Parus ater"], ["Parus", "Parus"], "the first words of the class names"),
        (["great tit", "coal tit"], ["Paridae", "Paridae"], "as defined by the data set"),
        (["", "x"], ["", "x"], "the first words of the class names"),
    ],
)
def test_source_of_the_groups(tmp_path: Path, names: list[str], groups: list[str], message: str) -> None:
    assert describe_groups(Run(write_run(tmp_path / "run", names=names, groups=groups))) == message


def test_run_with_transitions_is_chosen(tmp_path: Path) -> None:
    groups = make_groups(2, 3)
    baseline = Run(write_run(tmp_path / "a", "supervised", groups=groups))
    untested = Run(write_run(tmp_path / "b", "supervised", top1=None))
    soc = Run(write_run(tmp_path / "c", groups=groups, transitions=planted_counts(groups)))
    assert choose_run([baseline, untested, soc]) == 2
    assert choose_run([baseline, untested]) == 0
    assert choose_run([untested]) == 0, "it has statistics of unlabeled images"
    (untested.path / "samples.parquet").unlink()
    assert choose_run([untested]) is None
    assert order_classes(soc, "SoC").kind == "clusters"
    assert sorted(order_classes(soc, "SoC").order) == list(range(6))
    assert order_classes(baseline, "").blocks == [[0, 1, 2], [3, 4, 5]]
    assert order_classes(untested, "").order == list(range(6))


def test_number_of_clusters(tmp_path: Path) -> None:
    names = [str(place) for place in range(40)]
    grouped = Run(write_run(tmp_path / "a", names=names, groups=make_groups(8, 5)))
    assert choose_k(grouped)[0] == 8
    assert choose_k(Run(write_run(tmp_path / "b", names=names)))[0] == 10
    each_its_own = Run(write_run(tmp_path / "c", names=names, groups=names))
    assert choose_k(each_its_own)[0] == 10
    assert choose_k(Run(write_run(tmp_path / "d", names=["a", "b"])))[0] == 2


@pytest.mark.parametrize(
    ("method", "k"),
    [
        ({"map": "linear", "alpha": 4.0}, 12),
        ({"map": "exponential", "beta": 0.25}, 13),
        ({"map": "fixed", "k": 9, "alpha": 5.0}, 9),
        ({"map": "fixed", "k": 1}, 10),
    ],
)
def test_number_of_clusters_follows_the_granularity_map(tmp_path: Path, method: dict[str, Any], k: int) -> None:
    """The k at full confidence; a map with k = 1 is replaced by the paper's map."""
    names = [str(place) for place in range(40)]
    run = Run(write_run(tmp_path / "run", names=names, settings={"method": {"name": "soc", **method}}))
    assert choose_k(run)[0] == k
    assert ("paper" in choose_k(run)[1]) == (method.get("k") == 1)


def test_photo_is_cropped_to_a_small_central_square() -> None:
    image = np.zeros((300, 500, 3), np.uint8)
    image[:, 100:400] = (200, 30, 30)
    uri = to_data_uri(image)
    picture = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))
    assert picture.size == (SIDE, SIDE)
    pixels = np.asarray(picture).reshape(-1, 3)
    assert np.abs(pixels.astype(int) - (200, 30, 30)).max() < 12


def test_number_of_photos_is_limited() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    many = {label: [image] * 9 for label in range(400)}
    assert sum(map(len, encode_class_photos(many, range(400)).values())) == MAX_PHOTOS
    assert [len(found) for found in encode_class_photos(many, range(3)).values()] == [4, 4, 4]
    assert encode_class_photos({0: [], 1: [image]}, [0, 1, 2]).keys() == {1}
    assert encode_class_photos({}, [0]) == {}


def test_settings_side_by_side(tmp_path: Path) -> None:
    assert flatten({"method": {"alpha": 5}, "ema": None, "crop": [0.5, 1], "nesterov": True}) == {
        "method.alpha": "5", "ema": MISSING, "crop": "0.5, 1", "nesterov": "yes",
    }  # fmt: skip
    runs = [Run(write_run(tmp_path / method, method)) for method in ("soc", "supervised")]
    rows = {row.key: row for row in settings_rows(runs)}
    assert rows["method.alpha"].values == ["5.0", MISSING]
    assert rows["method.alpha"].differs
    assert not rows["backbone"].differs


@pytest.mark.parametrize(("key", "expected"), [("seed", True), ("device", True), ("on_nonfinite", True), ("lr", False)])
def test_settings_in_which_repetitions_may_differ(key: str, expected: bool) -> None:
    assert is_seed_or_runtime(key) is expected


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
def test_settings_hide_folders(tmp_path: Path, value: str, shown: str) -> None:
    runs = [Run(write_run(tmp_path / name, settings={"where": value + name})) for name in ("a", "b")]
    row = next(row for row in settings_rows(runs) if row.key == "where")
    assert row.values == [shown + "a", shown + "b"]
    same_name = [Run(write_run(tmp_path / f"{name}2", settings={"where": f"/{name}/x"})) for name in ("a", "b")]
    row = next(row for row in settings_rows(same_name) if row.key == "where")
    assert row.values == ["…/x", "…/x"]
    assert row.differs


def test_time_line_names_the_kind_of_steps_and_the_memory(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", settings={"supervised_warmup": 0.5}))
    run.result["peak_gpu_bytes"] = 3_210_000_000
    (line,) = time_lines([run], ["SoC"])
    assert "100\u00a0ms per step with unlabeled images, 500 images per second" in line
    assert line.endswith("and 3.21\u00a0GB of GPU memory at the peak.")
    assert not re.search(r"\d (?:%|s|ms|min|GB)\b", line), "no line ends between a number and its unit"
    baseline = Run(write_run(tmp_path / "other", "supervised", settings={"supervised_warmup": 0.5}))
    (line,) = time_lines([baseline], ["Supervised"])
    assert "100\u00a0ms per step, 500 images" in line, "the supervised method has no unlabeled images"
