"""Sentences of the summary and verdicts about the unlabeled images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from semifine.cli.main import main
from semifine.config import resolve, write_settings
from semifine.report.scores import Comparison, Score, chance_margin, result_rows
from semifine.report.sections.summary import Summary, summarize
from semifine.report.sections.verdicts import VerdictBox, compare_runs
from semifine.runs.run import Run
from tests.runs.fake_runs import changed_run, make_groups, planted_counts, write_run


def summary_of(tmp_path: Path, *runs: dict[str, Any]) -> Summary:
    stats = [Run(write_run(tmp_path / f"run {place}", **run)) for place, run in enumerate(runs)]
    return summarize(stats, result_rows(stats))


def test_a_clear_difference(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {"method": "supervised", "top1": 40.0, "images_per_class": 100},
        {"method": "soc", "top1": 60.0, "images_per_class": 100},
    )
    assert summary.paragraphs[0].endswith("random guessing gives 16.7\u202f%.")
    assert "SoC is 20.0 points above supervised learning" in summary.paragraphs[1]
    assert [tile.difference for tile in summary.tiles] == ["", "+20.0\u00a0points vs. supervised"]


def test_lower_accuracy_than_the_baseline(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {"method": "supervised", "top1": 60.0, "images_per_class": 100},
        {"method": "fixmatch", "top1": 40.0, "images_per_class": 100},
    )
    assert "FixMatch is 20.0 points below supervised learning" in summary.paragraphs[1]
    assert "did not help" in summary.paragraphs[1]


def test_insignificant_difference_is_inconclusive(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {"method": "supervised", "top1": 58.0}, {"method": "soc", "top1": 61.0})
    assert "differ by +3.0\u00a0points" in summary.paragraphs[1]
    assert "inconclusive" in summary.paragraphs[1]
    assert "above" not in summary.paragraphs[1]
    assert summary.tiles[1].difference.endswith("vs. supervised, within the margin of chance")


def test_seeds_are_averaged(tmp_path: Path) -> None:
    runs = [{"method": method, "seed": seed, "top1": top1, "images_per_class": 300}
            for method, top1s in (("supervised", (40.0, 42.0)), ("soc", (60.0, 63.0, 66.0)))
            for seed, top1 in enumerate(top1s)]  # fmt: skip
    summary = summary_of(tmp_path, *runs)
    assert [(tile.label, tile.value) for tile in summary.tiles] == [
        ("Supervised", "41.0\u202f%"),
        ("SoC", "63.0\u202f%"),
    ]
    assert "(±3.0 over runs)" in summary.paragraphs[0]
    assert "SoC is 22.0 points above" in summary.paragraphs[1]
    assert not any("one seed" in note for note in summary.notes)


def test_runs_with_other_settings_are_not_averaged(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {"top1": 60.0, "settings": {"method": {"name": "soc", "alpha": 5.0}}},
        {"top1": 64.0, "settings": {"method": {"name": "soc", "alpha": 2.5}}},
    )
    assert [tile.label for tile in summary.tiles] == ["SoC (run 0)", "SoC (run 1)"]


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {"method": "supervised", "top1": 20.0},
        {"method": "soc", "top1": 80.0, "settings": {"data": {"source": "synthetic", "species": 2}}},
    )
    assert not any("points" in paragraph for paragraph in summary.paragraphs)
    assert [tile.difference for tile in summary.tiles] == ["", ""]
    assert [tile.label for tile in summary.tiles] == [
        "Supervised on synthetic (species\u00a08)",
        "SoC on synthetic (species\u00a02)",
    ]
    assert "The data set \u201csynthetic (species\u00a02)\u201d has" in " ".join(summary.paragraphs)


def test_differences_besides_the_method_are_listed(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {"method": "supervised", "settings": {"backbone": "resnet50", "iterations": 10, "device": "cuda"}},
        {"method": "soc"},
    )
    assert "The runs differ in more than the method: iterations and backbone." in summary.notes


def test_sentences_about_labels_and_groups(tmp_path: Path) -> None:
    groups = make_groups(3, 4)
    summary = summary_of(tmp_path, {"groups": groups, "transitions": planted_counts(groups)})
    last = summary.paragraphs[-1]
    assert "SoC keeps 3.2 candidate classes per unlabeled image on average" in last
    assert "for 84.5\u202f% of the images" in last
    assert (
        "agree with the groups (as defined by the data set), which are not used in training, with an adjusted Rand "
        "index of 1.00" in last
    )


def test_sentence_about_the_number_of_images(tmp_path: Path) -> None:
    stats = Run(write_run(tmp_path / "run"))
    stats.result["images"] = {"labeled": 80, "unlabeled": 4000, "test": 60}
    stats.result["unreadable"] = ["broken.jpg"]
    summary = summarize([stats], result_rows([stats]))
    assert "6 classes, 80 labeled images, 4\u202f000 unlabeled images and 60 test images" in summary.paragraphs[0]
    assert "and 60 test images" in summary.paragraphs[0]
    assert "1 image could not be read and was left out." in summary.notes


def test_chance_margin_shrinks_with_images() -> None:
    scores = [Score("a", "a", "blue", "test", [50.0]), Score("b", "b", "blue", "test", [50.0])]
    assert chance_margin(scores, 96) == pytest.approx(1.96 * 50**0.5)
    assert chance_margin(scores, 9_996) == pytest.approx(chance_margin(scores, 96) / 10)
    nothing_right = [Score("a", "a", "blue", "test", [0.0]), Score("b", "b", "blue", "test", [0.0])]
    assert chance_margin(nothing_right, 10) > 20, "ten mistakes do not prove that all would be"


def boxes_of(tmp_path: Path, *runs: dict[str, Any]) -> tuple[Summary, VerdictBox]:
    stats = [Run(write_run(tmp_path / f"run {place}", **run)) for place, run in enumerate(runs)]
    return summarize(stats, result_rows(stats)), compare_runs(stats, result_rows(stats))


@pytest.mark.parametrize(
    ("supervised", "soc", "images", "word", "said"),
    [
        (0.0, 100 / 15, 15, "inconclusive", "On 15 validation images, the 95 % margin of error is about"),
        (20.0, 60.0, 400, "yes", "SoC is 40.0 points above supervised learning"),
        (60.0, 20.0, 400, "no", "the unlabeled images did not help"),
        (20.0, 60.0, None, "inconclusive", "The margin of error is unknown"),
    ],
)
def test_summary_and_box_agree_on_validation_images(
    tmp_path: Path, supervised: float, soc: float, images: int | None, word: str, said: str
) -> None:
    common = {"top1": None, "val_images": images}
    summary, box = boxes_of(
        tmp_path, {"method": "supervised", "val": supervised, **common}, {"method": "soc", "val": soc, **common}
    )
    assert box.verdicts[0].word == word
    assert said in summary.paragraphs[1]
    assert ("inconclusive" in summary.paragraphs[1]) == (word == "inconclusive")
    if images:
        assert box.verdicts[0].margin.endswith(f" on {images} validation images")


def test_difference_and_margin_never_look_equal(tmp_path: Path) -> None:
    """Rounded to one decimal, 4.404 points and a margin of 4.36 would contradict the verdict."""
    runs = [
        {"method": method, "top1": None, "val": val, "val_images": 1000}
        for method, val in (("supervised", 45.0), ("soc", 49.404))
    ]
    summary, box = boxes_of(tmp_path, *runs)
    (verdict,) = box.verdicts
    assert (verdict.word, verdict.difference) == ("probably", "+4.40\u00a0points")
    assert verdict.margin.startswith("±4.36 ")
    assert "significant at the 5 % level, but not at the 1 % level" in verdict.sentence
    assert "SoC is 4.40 points above" in summary.paragraphs[1]
    assert "probably helped" in summary.paragraphs[1]


@pytest.mark.parametrize(
    ("margins", "word"),
    [(0.99, "inconclusive"), (1.01, "probably"), (1.3, "probably"), (1.33, "yes"), (-1.01, "probably not")],
)
def test_verdict_by_difference_in_margins(margins: float, word: str) -> None:
    baseline = Score("supervised", "Supervised", "black", "test", [50.0], images=10_000)
    margin = chance_margin((baseline, baseline), 10_000)
    score = Score("soc", "SoC", "blue", "test", [50.0 + margins * margin], images=10_000)
    assert Comparison(score, baseline).verdict == word


def test_runs_without_a_baseline_are_listed(tmp_path: Path) -> None:
    def data(species: int) -> dict[str, Any]:
        return {"data": {"source": "synthetic", "species": species}}

    _, box = boxes_of(
        tmp_path,
        {"method": "supervised", "top1": 40.0, "images_per_class": 200},
        {"method": "soc", "top1": 80.0, "images_per_class": 200},
        {"method": "aligned", "settings": data(2)},
        {"method": "fixmatch", "settings": data(2)},
        {"method": "fixmatch", "settings": data(3)},
        {"method": "fixmatch", "settings": data(4), "top1": None},
    )
    assert [(verdict.label, verdict.word) for verdict in box.verdicts] == [("SoC on synthetic (species\u00a08)", "yes")]
    message = [advice.text.partition(":")[0] for advice in box.advice]
    on = "on synthetic (species\u00a0{})".format
    assert message == [f"aligned {on(2)} and FixMatch {on(2)}", f"FixMatch {on(3)}", f"FixMatch {on(4)}"]
    assert ["run 2" in box.advice[0].command, "run 4" in box.advice[1].command] == [True, True]
    assert "no test or validation images" in box.advice[2].text
    assert box.advice[2].command == ""


def test_unequal_budgets_are_reported_by_data_set(tmp_path: Path) -> None:
    settings = {"data": {"source": "synthetic", "species": 2}}
    _, box = boxes_of(
        tmp_path,
        {"method": "supervised"},
        {"method": "soc"},
        {"method": "supervised", "settings": {**settings, "iterations": 10}},
        {"method": "soc", "settings": settings},
    )
    assert box.unequal == ["the runs on synthetic (species\u00a02) differ in iterations"]


def test_number_of_test_images_without_a_confusion_matrix(tmp_path: Path) -> None:
    """A run folder may lack classes.safetensors, which contains the confusion matrix."""
    stats = [Run(write_run(tmp_path / method, method, top1=60.0)) for method in ("supervised", "soc")]
    stats = [changed_run(run, confusion=None, result={**run.result, "images": {"test": 1000}}) for run in stats]
    assert compare_runs(stats, result_rows(stats)).verdicts[0].margin.endswith("on 1\u202f000 test images")
    assert "and 1\u202f000 test images" in summarize(stats, result_rows(stats)).paragraphs[0]


def test_suggested_command_trains_a_supervised_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parses the command like a shell, for a folder with a space and settings of another method."""
    settings = resolve(
        [
            {
                "method.name": "soc", "method.alpha": 4.0, "data.genera": 2, "data.species": 2, "iterations": 2,
                "image_size": 16, "batch_size": 4, "mu": 1, "loggers": "none", "cache": str(tmp_path / "cache"),
            }
        ]
    )  # fmt: skip
    run = Run(write_run(tmp_path / "my runs" / "soc's"))
    write_settings(settings, run.path / "settings.yaml")
    box = compare_runs([run], result_rows([run]))
    (advice,) = box.advice
    assert advice.text.startswith("SoC: this report has no supervised run")
    assert advice.text.endswith("Train one:")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(advice.command)
    assert program == "semifine"
    assert main([*arguments, "--quiet"]) == 0
    trained = Run(tmp_path / "my runs" / "soc's-supervised")
    assert (trained.method, trained.result["iterations"]) == ("supervised", 2)
    assert "supervised" in capsys.readouterr().out


def test_own_photos_are_named_without_their_path(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run"))
    names = {
        "folder:/home/ada/my birds": "my birds",
        "table:/x/birds.csv": "birds.csv",
        "semi_cub:/data/cub": "semi_cub",
    }
    for data, name in names.items():
        named = changed_run(run, data=data)
        assert f"The data set \u201c{name}\u201d has" in summarize([named], result_rows([named])).paragraphs[0]
