"""The complete report, for runs of all kinds."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from semifine import UserError
from semifine.config import resolve
from semifine.data.catalog import Split
from semifine.data.sources import load_catalog
from semifine.report import write_page
from semifine.report.photos import RunPhotos
from semifine.runs.run import Run
from semifine.training.sample_stats import write_sample_table
from tests.report.reading import PageReader, read_page
from tests.runs.fake_runs import make_groups, planted_counts, result_of, write_run

SECTIONS = [
    "summary", "help", "results", "curves", "matrices", "tree", "clusters", "labels", "images", "next", "data",
    "settings",
]  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "R&D 'quoted' \"twice\"",
    "$\\frac{1}{0}$ {{ 7 * 7 }} {% raw %}",
    "Großer Würger 鵙 🐦 שלום",
    "two\nlines --> ]]> #010101 https://example.org/x.js",
]


def photos(num_classes: int, side: int = 40, each: int = 2) -> dict[int, list[NDArray[np.uint8]]]:
    pixels = np.random.default_rng(0).integers(0, 256, (num_classes, each, side, side + 7, 3), np.uint8)
    return {label: list(images) for label, images in enumerate(pixels)}


def write_with_photos(runs: list[Path], out: Path, shown: dict[int, list[NDArray[Any]]], title: str = "Birds") -> Path:
    """Writes a report of runs with the given photos of their classes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunPhotos, "of_classes", lambda _: shown)
        return write_page(runs, out, title)


def assert_self_contained(page: PageReader) -> None:
    for attribute in ("src", "href", "xlink:href", "action", "poster", "data", "srcset"):
        for value in page.attributes(attribute):
            assert value.startswith(("data:image/", "data:text/csv", "#")), value[:80]
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"link", "iframe", "object", "embed", "form", "base"}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "page-data"},
        {},
    ]
    script = re.findall(r"<script>(.*?)</script>", page.html, re.DOTALL)[0]
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{own}'" == policy
    styles = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL) + page.attributes("style")
    assert not any("@import" in style or re.search(r"url\((?!#)", style) for style in styles)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    groups = make_groups(3, 4)
    return [
        write_run(root / "a", "supervised", groups=groups, top1=41.5, val=40.0, images_per_class=40),
        write_run(
            root / "b", "soc", groups=groups, top1=58.123, val=57.0, images_per_class=40,
            transitions=planted_counts(groups), unlabeled=300,
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def page(two_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> PageReader:
    out = tmp_path_factory.mktemp("page") / "new folder" / "index.html"
    assert write_with_photos(two_runs, out, photos(12), "Birds & <bees>") == out
    return read_page(out)


def shown_sections(page: PageReader) -> list[str]:
    return [attributes["id"] for tag, attributes in page.tags if tag == "section"]


def test_all_sections_are_present_and_linked(page: PageReader) -> None:
    assert shown_sections(page) == SECTIONS
    assert [value for value in page.attributes("href") if value[1:] in SECTIONS] == [f"#{name}" for name in SECTIONS]
    assert "Birds & <bees>" in page.text


def test_report_is_self_contained(page: PageReader) -> None:
    assert_self_contained(page)


def test_ids_are_unique_and_references_resolve(page: PageReader) -> None:
    ids = page.attributes("id")
    inside_drawings = {name for name in ids if name not in SECTIONS}
    assert len(set(ids) & set(SECTIONS)) == len(SECTIONS)
    assert set(re.findall(r"url\(#([\w-]+)\)", page.html)) <= inside_drawings
    for reference in page.attributes("xlink:href"):
        assert reference.startswith("data:") or reference[1:] in inside_drawings


def test_table_contains_the_exact_results(page: PageReader, two_runs: list[Path]) -> None:
    assert len(page.results) == 2
    for row, path in zip(page.results, two_runs, strict=True):
        result = result_of(path)
        assert row["top1"] == result["top1"]
        assert row["top5"] == result["top5"]
        assert row["selected_on_val"] == result["selected_on_val"]["top1"]
        assert row["best_on_test"] == result["best_on_test"]["top1"]
        for key in ("pseudo_label_accuracy", "candidates", "candidate_hit_rate"):
            assert row[key] == result["unlabeled"][key]
        assert row["seconds"] == result["seconds"]
    assert page.results[1]["agreement"] == 1.0
    assert "agreement" not in page.results[0]
    assert "Validation accuracy" in page.text, "beside that on test images"
    assert "too optimistic" in page.text


def test_each_run_has_a_line_about_its_time(page: PageReader) -> None:
    line = "2 min 10 s in total, 77 % steps, 16 % evaluation, 2 % checkpoints and 5 % start-up"
    speed = "100 ms per step, 500 images per second and 25 % of the step time waiting for batches"
    for label in ("Supervised", "SoC"):
        assert f"{label}: {line}; {speed}." in page.text


def test_summary_states_whether_unlabeled_images_helped(page: PageReader) -> None:
    assert "SoC is 16.6 points above supervised learning" in page.text
    assert "the unlabeled images helped" in page.text
    assert "Supervised and SoC: one seed." in page.text


def test_photos_and_drawings_have_descriptions(page: PageReader) -> None:
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len([picture for picture in pictures if picture["alt"].startswith("Example of class")]) == 24
    drawings = [attributes for tag, attributes in page.tags if tag == "svg" and "aria-hidden" not in attributes]
    assert len(drawings) == 12, "seven curves, two matrices, the tree, two of the labels of each class"
    assert all(drawing["role"] == "img" and len(drawing["aria-label"]) > 20 for drawing in drawings)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_drawings_use_colors_and_font_of_the_page(page: PageReader) -> None:
    assert "var(--hue-blue)" in page.html
    assert "currentColor" in page.html
    assert "DejaVu" not in page.html
    drawn = re.findall(r"<svg role.*?</svg>", page.html, re.DOTALL)
    assert len(drawn) == 12
    assert not any(re.search(r"(?:fill|stroke): #", drawing) for drawing in drawn)


def test_the_same_runs_give_the_same_bytes(two_runs: list[Path], page: PageReader, tmp_path: Path) -> None:
    again = write_with_photos(two_runs, tmp_path / "again.html", photos(12), "Birds & <bees>")
    assert again.read_text(encoding="utf-8") == page.html
    assert not list(tmp_path.glob(".*")), "no partial file stays"


def test_html_in_names_is_escaped(tmp_path: Path) -> None:
    names = [f"{name}{twin}" for name in HOSTILE for twin in ("", " II")]
    groups = [name for name in HOSTILE for _ in range(2)]
    run = write_run(
        tmp_path / "<b>run", names=names, groups=groups, transitions=planted_counts(groups),
        settings={"weights": "<i>file</i>.pt"},
    )  # fmt: skip
    page = read_page(write_with_photos([run, run], tmp_path / "page.html", photos(12), HOSTILE[0]))
    assert_self_contained(page)
    assert not {"i", "b"} & {tag for tag, _ in page.tags}
    assert "onerror" not in page.attributes("onerror")
    shown_names = {" ".join(text.split()) for text in page.texts}
    for name in names:
        assert " ".join(name.split()) in shown_names, name
    assert "SoC (<b>run)" in page.text
    assert "<i>file</i>.pt" in page.text


def test_single_supervised_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "supervised", groups=make_groups(2, 3))
    page = read_page(write_page([run], tmp_path / "page.html"))
    assert_self_contained(page)
    assert "ordered by their groups (as defined by the data set)" in page.text
    assert "Most confused pairs" in page.text
    assert "helped" not in page.text
    assert shown_sections(page) == ["summary", "results", "curves", "matrices", "clusters", "settings"]


def test_without_test_images_truth_groups_and_photos(tmp_path: Path) -> None:
    counts = planted_counts(make_groups(5, 4))
    names = [f"class {place}" for place in range(20)]
    run = write_run(
        tmp_path / "run", names=names, transitions=counts, top1=None, val=33.25, truth_known=False
    )  # fmt: skip
    page = read_page(write_page([run], tmp_path / "page.html"))
    assert page.results == [{"val": 33.25, "candidates": 3.2, "seconds": 123.4}]
    assert "no test images" in page.text
    table = page.html.split('id="results"')[1].split("</section>")[0]
    assert "Top-1" not in table, "no empty column"
    assert "Best on test" not in table
    assert "Pseudo-label" not in table
    assert "both matrices" not in page.text
    assert "form 6 clusters (the number that the method uses" in page.text
    assert "Validation accuracy" in page.text
    assert "Hit rate" not in page.text.split("Training curves")[1]
    assert not page.attributes("src")


def test_run_without_any_statistics(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "supervised", top1=None, truth_known=False)
    page = read_page(write_page([run], tmp_path / "page.html"))
    assert shown_sections(page) == ["summary", "results", "curves", "settings"], "no empty section"
    assert [value for value in page.attributes("href") if value[1:] in SECTIONS] == [
        f"#{name}" for name in shown_sections(page)
    ]
    assert "so its accuracy is unknown" in page.text


def test_zero_transitions_give_no_clusters(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", transitions=np.zeros((6, 6), np.int64))
    page = read_page(write_page([run], tmp_path / "page.html"))
    assert "Learned clusters" not in page.text
    assert "Most confused pairs" in page.text


def test_two_classes_are_enough(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", names=["a", "b"], transitions=np.array([[0, 3], [4, 0]]))
    page = read_page(write_with_photos([run], tmp_path / "page.html", photos(2)))
    assert "Classes without a cluster: 2 of 2" in page.text
    assert "3 + 4" in page.text


@pytest.mark.parametrize("num_groups", [60, 2])
def test_hundreds_of_classes_stay_below_fifteen_megabytes(tmp_path: Path, num_groups: int) -> None:
    groups = make_groups(num_groups, 300 // num_groups)
    names = [f"A species with a rather long name, number {place}" for place in range(300)]
    run = write_run(tmp_path / "run", names=names, groups=groups, transitions=planted_counts(groups))
    out = write_with_photos([run], tmp_path / "page.html", photos(300, side=200))
    assert out.stat().st_size < 15_000_000
    page = read_page(out)
    assert_self_contained(page)
    assert all(name in page.text for name in names), "every class is named, even where photos are not shown"
    drawings = re.findall(r"<svg role.*?</svg>", page.html, re.DOTALL)
    assert not any("A species" in drawing for drawing in drawings if "branch" not in drawing), "no room but in the tree"


def test_wrong_arguments_raise_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one run"):
        write_page([], tmp_path / "page.html")
    with pytest.raises(UserError, match="not a run folder"):
        write_page([tmp_path], tmp_path / "page.html")
    with pytest.raises(UserError, match=r"is a folder; .*index.html"):
        write_page([write_run(tmp_path / "run")], tmp_path)
    (tmp_path / "letter.html").write_text("Dear Ada")
    with pytest.raises(UserError, match=r"letter.html exists and is not a report of semifine"):
        write_page([tmp_path / "run"], tmp_path / "letter.html")
    assert (tmp_path / "letter.html").read_text() == "Dear Ada"


def test_importing_the_report_is_cheap() -> None:
    heavy = ("torch", "matplotlib", "pyarrow", "jinja2", "semifine.training")
    code = f"import sys, semifine.report; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_images_to_review_are_ranked_by_their_statistics(page: PageReader, two_runs: list[Path]) -> None:
    stats = Run(two_runs[1]).samples()
    uncertain = np.argsort(-stats["entropy_before"], kind="stable")[:12]
    section = page.html.split('id="gallery-uncertain"')[1].split("</details>")[0]
    assert re.findall(r'class="path" title="(.*?)"', section) == [stats["path"][place] for place in uncertain]
    wrong = np.flatnonzero((stats["truth"] < 12) & ~stats["correct"])
    wrong = wrong[np.argsort(-stats["confidence"][wrong], kind="stable")][:12]
    section = page.html.split('id="gallery-wrong"')[1].split("</details>")[0]
    assert re.findall(r'class="path" title="(.*?)"', section) == [stats["path"][place] for place in wrong]
    assert "No photos: The data set of the run in " in page.text
    assert "has changed its classes (missing: class 0, new: " in page.text


def test_candidates_are_sorted_by_probability(tmp_path: Path) -> None:
    probs = np.full((1, 8), 0.02, np.float32)
    probs[0, [6, 1, 7, 3, 4]] = 0.40, 0.10, 0.20, 0.15, 0.09
    run = write_run(
        tmp_path / "run", names=list("ABCDEFGH"), unlabeled=1, transitions=planted_counts(make_groups(4, 2))
    )
    table = pq.read_table(run / "samples.parquet").to_pydict()
    columns = {name: np.array(values) for name, values in table.items() if name != "candidates"}
    columns |= {"prediction": np.array([6]), "candidates": np.where(probs > 0.05, probs, 0)}
    write_sample_table(run / "samples.parquet", iter([columns]))
    assert Run(run).samples("candidates")["candidates"][0].tolist() == [6, 7, 3, 1, 4]
    assert "or H, D, B, E" in read_page(write_page([run], tmp_path / "page.html")).text


def test_list_to_label_next_is_a_csv_file_for_labels(page: PageReader, two_runs: list[Path]) -> None:
    link = next(value for value in page.attributes("href") if value.startswith("data:text/csv"))
    lines = list(csv.DictReader(io.StringIO(unquote(link.partition(",")[2]))))
    stats = Run(two_runs[1]).samples("path", "entropy_after")
    assert lines[0]["path"] == stats["path"][stats["entropy_after"].argmax()]
    assert len({line["path"] for line in lines}) == len(lines) > 50
    assert all(line["label"] == "" and line["prediction"] in line["candidates"] for line in lines)


def test_images_of_other_classes_and_data_problems_are_reported(page: PageReader) -> None:
    outside = page.text.split("Unlabeled images of known and of other classes")[1]
    assert "SoC of known classes 294 images" in outside
    assert "SoC of other classes 6 images" in outside
    assert "1 image has exact copies in unlabeled (a/1.jpg = b/<1>.jpg)." in page.text
    assert "5 labeled images per class" in page.text
    assert "5 to 5" not in page.text
    assert "24 validation images" in page.text


def test_photos_come_from_the_data_set_of_the_run(tmp_path: Path) -> None:
    """The synthetic data set is always available."""
    data = {"source": "synthetic", "genera": 2, "species": 2, "unlabeled_per_class": 5}
    settings = resolve([{f"data.{key}": value for key, value in data.items()}])
    catalog = load_catalog(settings.data, settings.data_settings)
    groups = list(catalog.class_groups or ())
    run = write_run(
        tmp_path / "run", names=catalog.class_names, groups=groups, transitions=planted_counts(groups),
        settings={"data": data}, unlabeled=20,
    )  # fmt: skip
    samples = pq.read_table(run / "samples.parquet")
    paths = [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)]
    pq.write_table(samples.set_column(1, "path", [paths]), run / "samples.parquet")
    page = read_page(write_page([run], tmp_path / "page.html"))
    alts = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert sum(alt.startswith("Example of") for alt in alts) == 4 * 4
    assert sum(alt.startswith("Unlabeled image") for alt in alts) >= 12
    assert "No photos" not in page.text


def test_requested_number_of_clusters(two_runs: list[Path], tmp_path: Path) -> None:
    page = read_page(write_page(two_runs, tmp_path / "page.html", num_clusters=4))
    assert "form 4 clusters (as requested)" in page.text
    with pytest.raises(UserError, match="--clusters is 13, but must be between 1 and the number of classes, 12"):
        write_page(two_runs, tmp_path / "page.html", num_clusters=13)
