"""Reports of runs with a probe: the choice, the margins, the labels to check, and no empty section."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
import pytest

from semifine.config import resolve
from semifine.data.catalog import Split
from semifine.data.label_check import check_labels, write_label_check
from semifine.data.sources import load_catalog
from semifine.report import write_page
from semifine.runs.analysis import wilson_interval
from semifine.runs.run import Run
from tests.report.reading import PageReader, read_page
from tests.runs.fake_runs import write_run

DATA = {"source": "synthetic", "genera": 2, "species": 2, "unlabeled_per_class": 5}
NUM_LABELED = 20
PROBE = {"top1": 70.0, "top5": 95.0, "strength": 30.0, "self_trained": True,
         "cross_validation": {"top1": 75.0, "images": NUM_LABELED, "low": 53.1, "high": 88.8}}  # fmt: skip
COMPARISON = {"images": 24, "top1": [70.8, 75.0, 75.0, 75.0, 75.0], "loss": [0.9, 0.7, 0.8, 0.9, 1.0]}
IMAGES = {"labeled": NUM_LABELED, "unlabeled": 20, "val": 0, "test": 40}


def write_probed_run(path: Path, method: str, top1: float | None, result: dict[str, Any]) -> Path:
    """Writes a run on photos that exist, whose first labeled image has a wrong label, with uncertain predictions."""
    settings = resolve([{f"data.{key}": value for key, value in DATA.items()}])
    catalog = load_catalog(settings.data, settings.data_settings)
    run = write_run(
        path, method, names=catalog.class_names, top1=top1, settings={"data": DATA}, unlabeled=20, result=result
    )
    samples = pq.read_table(run / "samples.parquet")
    paths = [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)]
    samples = samples.set_column(1, "path", [paths])
    hard = samples.column_names.index("entropy_after")
    samples = samples.set_column(hard, "entropy_after", [np.zeros(20)])
    pq.write_table(samples, run / "samples.parquet")
    rows = catalog.rows(Split.LABELED)[:NUM_LABELED]
    label = catalog.label[rows]
    probs = np.full((NUM_LABELED, 4), 0.1)
    probs[np.arange(NUM_LABELED), label] = 0.7
    probs[0] = np.roll([0.85, 0.05, 0.05, 0.05], (label[0] + 1) % 4)
    write_label_check(
        run / "label_check.csv",
        check_labels([str(catalog.paths[row]) for row in rows], probs, label),
        catalog.class_names,
    )
    return run


def report_of(run: Path) -> PageReader:
    return read_page(write_page([run], run.parent / "page.html"))


def sections_of(page: PageReader) -> list[str]:
    return [attributes["id"] for tag, attributes in page.tags if tag == "section"]


@pytest.fixture(scope="module")
def probe_page(tmp_path_factory: pytest.TempPathFactory) -> PageReader:
    """A probe on own photos without test images."""
    result = {"images": {**IMAGES, "test": 0}, "iterations": 0, "time": {"probe": 7.0}, "chosen": "probe",
              "probe": {**PROBE, "top1": None}}  # fmt: skip
    run = write_probed_run(tmp_path_factory.mktemp("runs") / "run", "probe", None, result)
    (run / "metrics.jsonl").unlink()
    return report_of(run)


@pytest.fixture(scope="module")
def trained_page(tmp_path_factory: pytest.TempPathFactory) -> PageReader:
    result = {"images": IMAGES, "chosen": "interpolated", "weight": 0.25, "probe": PROBE,
              "trained": {"top1": 75.0, "top5": 97.5}, "comparison": COMPARISON}  # fmt: skip
    return report_of(write_probed_run(tmp_path_factory.mktemp("runs") / "run", "supervised", 72.5, result))


def test_report_of_a_probe_has_no_empty_section(probe_page: PageReader) -> None:
    expected = ["summary", "results", "probe", "matrices", "clusters", "images", "next", "check", "data", "settings"]
    assert sections_of(probe_page) == expected
    assert "empty" not in probe_page.attributes("class")
    assert (
        "In cross-validation of the probe over the labeled images, top-1 accuracy is 75.0 % (95 % interval 53.1 to"
        in (probe_page.text)
    )
    assert "Errors on labeled images in cross-validation of the probe" in probe_page.text
    assert "7.0 s in total, 100 % probe" in probe_page.text
    assert "this run took no training steps" in probe_page.text


def test_hard_labels_rank_images_by_the_prediction(probe_page: PageReader) -> None:
    link = next(value for value in probe_page.attributes("href") if value.startswith("data:text/csv"))
    assert len(list(csv.DictReader(io.StringIO(unquote(link.partition(",")[2]))))) == 20
    assert "Images with the highest prediction entropy." in probe_page.text


def test_suspect_labels_are_shown_with_photos(probe_page: PageReader) -> None:
    section = probe_page.html.split('<section id="check">')[1].split("</section>")[0]
    assert "1 of 20 labels contradict the probe" in section
    assert section.count("<figure") == section.count('<img src="data:image/jpeg') == 1


def test_a_single_run_knows_its_margin(trained_page: PageReader) -> None:
    interval = wilson_interval(72.5, 40)
    text = f"{interval.low:.1f} to {interval.high:.1f}"
    summary, results = (
        trained_page.html.split(f'<section id="{name}">')[1].split("</section>")[0] for name in ("summary", "results")
    )
    assert summary.count(text) == 2, "in the tile and in the sentence"
    assert text in results


def test_choice_is_shown_without_a_verdict_within_chance(trained_page: PageReader) -> None:
    text = trained_page.text.split("Probe and training")[1]
    assert "because it has the lowest loss on 24 images (labels held out for a trial)" in text
    assert "training changed the accuracy by +4.2 points, within the 95 % margin of chance" in text
    assert "On the test images, training changed the accuracy by +5.0 points, within the 95 % margin" in text
    assert "Weights between them (0.25)" in text


def test_run_without_a_probe_has_no_such_section(tmp_path: Path) -> None:
    page = report_of(write_run(tmp_path / "run"))
    assert not {"probe", "check"} & set(sections_of(page))
    assert Run(tmp_path / "run").label_check is None
