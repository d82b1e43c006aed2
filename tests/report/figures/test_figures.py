"""The figures of synthetic runs show the numbers of the runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.contour import ContourSet
from PIL import Image

from semifine import UserError
from semifine.cli.main import main
from semifine.report.figures import write_figures
from semifine.report.figures.accuracy import accuracy_interval, draw_cost, draw_results, draw_training
from semifine.report.figures.soft_labels import (
    draw_entropies,
    draw_entropy_by_k,
    draw_matrices,
    draw_objectives,
    known_samples,
)
from semifine.report.figures.style import paper_style
from semifine.report.scores import group_runs
from semifine.report.style import HUES
from semifine.runs.run import Run, Series
from tests.runs.fake_runs import changed_run, make_groups, planted_counts, write_run

NAMES = {
    "fig1-training", "fig4-objectives", "fig5-entropies", "fig5-entropy-by-k", "fig6-matrices", "tables-results",
    "cost",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    groups = make_groups(4, 5)
    common = {"groups": groups, "images_per_class": 20, "unlabeled": 500}
    return [
        Run(write_run(root / "supervised", "supervised", top1=40.0, **common)),
        Run(write_run(root / "fixmatch", "fixmatch", top1=50.0, **common)),
        *(
            Run(write_run(root / f"soc {s}", seed=s, top1=t, transitions=planted_counts(groups), **common))
            for s, t in ((0, 60.0), (1, 62.0), (2, 64.0))
        ),
    ]


def test_all_figures_as_png_and_pdf(runs: list[Run], tmp_path: Path) -> None:
    logged: list[str] = []
    written = write_figures(runs, tmp_path / "figures", logged.append)
    assert {path.stem for path in written} == NAMES
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {path.name for path in written}
    assert len(written) == 2 * len(NAMES)
    assert logged == []
    for path in written:
        if path.suffix == ".png":
            assert np.asarray(Image.open(path).convert("L")).std() > 5, f"{path} is not empty"
        else:
            assert path.read_bytes().startswith(b"%PDF")
            assert path.stat().st_size < 500_000


def test_missing_figures_are_logged_with_a_reason(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", "supervised", top1=None, truth_known=False))
    logged: list[str] = []
    (tmp_path / "run" / "samples.parquet").unlink()
    written = write_figures([run], tmp_path / "figures", logged.append)
    assert {path.stem for path in written} == {"cost"}
    assert len(logged) == len(NAMES) - 1
    assert "no tables-results: no run has test images" in logged
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; give a folder for --figures"):
        write_figures([run], tmp_path / "file")


def test_files_of_others_are_not_replaced(runs: list[Run], tmp_path: Path) -> None:
    write_figures(runs, tmp_path / "figures")
    again = write_figures(runs, tmp_path / "figures")
    assert again, "figures of ours are drawn anew"
    mine = again[-1]
    mine.write_bytes(b"a drawing of my own")
    before = again[0].stat().st_mtime_ns
    with pytest.raises(UserError, match=f"{mine.name} exists and is not a figure of semifine"):
        write_figures(runs, tmp_path / "figures")
    assert mine.read_bytes() == b"a drawing of my own"
    assert again[0].stat().st_mtime_ns == before, "nothing is drawn where not all can be"


def test_seeds_become_one_line_and_one_bar(runs: list[Run]) -> None:
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("Supervised", 1), ("FixMatch", 1), ("SoC", 3)]
    with paper_style():
        figure = draw_training(groups)
        assert figure is not None
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        np.testing.assert_allclose(lines["SoC"].get_ydata()[-1], 62.0, atol=1e-6)
        bars = draw_results(groups)
        assert bars is not None
        assert [patch.get_width() for patch in bars.axes[0].patches] == [40.0, 50.0, 62.0]
        cost = draw_cost(groups)
        assert cost is not None
        assert [patch.get_width() for patch in cost.axes[0].patches] == pytest.approx([100.0] * 3), "steps alone"
    interval = accuracy_interval(groups[2].runs, "top1")
    assert interval.high - interval.mean == pytest.approx(4.302653 * 2 / 3**0.5)
    alone = accuracy_interval(groups[1].runs, "top1")
    assert alone.low < 50 < alone.high, "one seed: what the 400 test images leave open"


def test_cost_shows_gpu_memory(runs: list[Run]) -> None:
    on_gpu = [changed_run(run, result={**run.result, "peak_gpu_bytes": 2.5e9}) for run in runs[2:]]
    with paper_style():
        figure = draw_cost(group_runs([runs[0], *on_gpu]))
        alone = draw_cost(group_runs(runs))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == [
        "Time of a training step (ms)",
        "Peak GPU memory (GB)",
    ]
    assert [patch.get_width() for patch in figure.axes[1].patches] == [2.5], "none for the run that has none"
    assert alone is not None
    assert len(alone.axes) == 1


def test_cost_of_a_single_run_has_no_error_bar(runs: list[Run]) -> None:
    seeds = [
        changed_run(run, series={}, result={**run.result, "time": {"steps": 100.0 + run.seed}}) for run in runs[2:]
    ]
    with paper_style():
        figure = draw_cost(group_runs([runs[0], *seeds]))
    assert figure is not None
    assert len(figure.axes[0].patches) == 2
    assert len(figure.axes[0].containers) == 3, "two bars, and the interval over seeds of one"


def drawn_lines(axes: Axes) -> list[tuple[str, str]]:
    """Returns the color and the line style of each set of contour lines, in the order of drawing."""
    contours = [part for part in axes.collections if isinstance(part, ContourSet) and not part.filled]
    return [(to_hex(part.get_edgecolor()[0]), str(part.linestyles)) for part in contours]


def test_objectives_of_variants_differ_in_color_and_line_and_are_compared_with_plain_soc(tmp_path: Path) -> None:
    variants = [{"alpha": 2.0}, {"map": "fixed", "k": 3}, {}, {"similarity": "labeled_features"}]
    made = [
        Run(write_run(tmp_path / f"soc {place}", settings={"method": {"name": "soc", **more}}, unlabeled=60))
        for place, more in enumerate(variants)
    ]
    made.append(Run(write_run(tmp_path / "fixmatch", "fixmatch", unlabeled=60)))
    groups = group_runs(made)
    with paper_style():
        figure = draw_objectives(groups)
    assert figure is not None
    plain = groups[2].label
    others = [group.label for group in groups if group.label != plain]
    assert [axes.get_title().replace("\n", " ") for axes in figure.axes] == [f"{plain} and {other}" for other in others]
    pairs = [drawn_lines(axes) for axes in figure.axes]
    assert len({pair[0] for pair in pairs}) == 1, "plain SoC looks the same in each panel"
    drawn = [pairs[0][0], *(pair[1] for pair in pairs)]
    assert len({color for color, _ in drawn}) == len(groups)
    assert len({line for _, line in drawn[:4]}) == 4, "four runs of SoC"
    assert drawn[0][0] == HUES["blue"][0]
    legend = [(to_hex(line.get_color()), line.get_linestyle()) for line in figure.legends[0].get_lines()]
    assert legend == drawn


def test_color_scales_of_the_matrices(runs: list[Run]) -> None:
    with paper_style():
        figure = draw_matrices(runs)
    assert figure is not None
    assert figure.get_supxlabel() == "Colors follow the square root"
    assert runs[2].transitions is not None
    assert runs[2].confusion is not None
    scales = figure.axes[2:]
    assert [scale.get_xlabel() for scale in scales] == ["changes", "images"]
    for scale, matrix in zip(scales, (runs[2].transitions, runs[2].confusion), strict=True):
        top = (matrix - np.diag(np.diag(matrix))).max()
        assert scale.get_xticks().tolist() == [0, round(top / 4), top]
        picture = figure.axes[scales.index(scale)].images[0]
        assert picture.norm(top / 4) == pytest.approx(0.5), "half the color"


def test_long_names_are_not_cut(runs: list[Run]) -> None:
    """Labels that include the data set are long."""
    moved = changed_run(runs[1], data="folder:/home/ada/a folder with a rather long name of its own")
    groups = group_runs([runs[0], moved, *runs[2:]])
    assert [group.label for group in groups][1:] == [
        "FixMatch on a folder with a rather long name of its own",
        "SoC on synthetic",
    ]
    with paper_style():
        for draw in (draw_training, draw_objectives, draw_entropies, draw_results, draw_cost):
            figure = draw(groups)
            assert figure is not None
            figure.canvas.draw()
            width = figure.bbox.width
            shown = [*figure.legends, *(axes.title for axes in figure.axes)]
            boxes = [artist.get_window_extent() for artist in shown]
            assert all(box.x0 >= 0 and box.x1 <= width for box in boxes), draw.__name__


def test_entropy_figure_has_a_point_per_image(runs: list[Run]) -> None:
    with paper_style():
        figure = draw_entropies(group_runs(runs))
        by_k = draw_entropy_by_k(group_runs(runs))
    assert figure is not None
    assert by_k is not None
    stats = runs[2].samples("entropy_before", "entropy_after", "k")
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    np.testing.assert_allclose(offsets, np.stack([stats["entropy_before"], stats["entropy_after"]], axis=1), rtol=1e-6)
    below = 100 * np.mean(stats["entropy_after"] < stats["entropy_before"] - 1e-6)
    assert figure.axes[0].texts[0].get_text().startswith(f"{below:.1f}\u202f%")
    line = by_k.axes[0].lines[0]
    means = [stats["entropy_after"][stats["k"] == k].mean() for k in np.unique(stats["k"])]
    np.testing.assert_allclose(line.get_ydata(), means, rtol=1e-5)


def test_each_group_has_a_panel(tmp_path: Path) -> None:
    """Also if there are more groups than panels in a row."""
    methods = ("soc", "fixmatch", "flexmatch", "pseudo_label", "simmatch", "curriculum", "self_training")
    groups = group_runs([Run(write_run(tmp_path / method, method, unlabeled=60)) for method in methods])
    with paper_style():
        entropies, objectives = draw_entropies(groups), draw_objectives(groups)
    assert entropies is not None
    assert [axes.get_title() for axes in entropies.axes] == [group.label for group in groups]
    assert objectives is not None
    assert [axes.get_title() for axes in objectives.axes] == [f"SoC and {group.label}" for group in groups[1:]]
    ends = {(axes.get_xlim(), axes.get_ylim()) for axes in entropies.axes}
    assert len(ends) == 1, "all on one scale"


def test_hard_labels_are_visible_and_explained(runs: list[Run]) -> None:
    with paper_style():
        figure = draw_entropies(group_runs(runs))
    assert figure is not None
    soc, fixmatch = figure.axes
    assert fixmatch.get_ylim()[0] < 0, "points at 0 are clear of the axis"
    assert "each label is one\nclass: entropy 0" in fixmatch.texts[0].get_text()
    assert "each label" not in soc.texts[0].get_text()


def test_training_panels_share_the_x_axis_and_mark_the_last_step(runs: list[Run]) -> None:
    second_half = Series(np.array([600, 1000]), np.ones(2))
    late = changed_run(runs[2], series={**runs[2].series, "pseudo_label_accuracy": second_half})
    with paper_style():
        figure = draw_training(group_runs([runs[0], late]))
    assert figure is not None
    assert [axes.get_xlim()[0] for axes in figure.axes] == [0, 0]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    ends = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]
    assert len(ends) == 3
    assert not any(line.get_clip_on() for line in ends)


def test_objectives_exclude_images_of_other_classes(runs: list[Run]) -> None:
    assert len(known_samples(runs[2])["z_obj1"]) == 490


def test_command_writes_report_and_figures(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    arguments = ["report", str(runs[0].path), str(runs[2].path), "--out", str(out), "--figures", str(tmp_path / "f")]
    assert main([*arguments, "--title", "My birds"]) == 0
    assert "<h1>My birds</h1>" in out.read_text(encoding="utf-8")
    assert "Figures: 14 files" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
