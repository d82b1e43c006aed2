"""Summary of the evaluations of a run, and changes of clusters between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semifine.runs.folder import RunFolder
from semifine.training.evaluate import ClusterHistory
from semifine.training.fit import fit, summarize_evaluations
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def test_results_are_named_for_how_they_were_selected() -> None:
    rows = [(1, 50.0, 40.0, 80.0), (2, 70.0, 55.0, 85.0), (3, 60.0, 60.0, 82.0)]
    evaluations = [
        {"step": step, "val_top1": val, "val_top5": 99.0, "test_top1": top1, "test_top5": top5}
        for step, val, top1, top5 in rows
    ]
    result = summarize_evaluations(evaluations)
    assert (result["top1"], result["top5"]) == (60.0, 82.0), "the last, never the best on test"
    assert result["selected_on_val"] == {"step": 2, "top1": 55.0, "top5": 85.0}
    assert (result["best_on_test"]["top1"], result["best_on_test"]["top5"]) == (60.0, 85.0)


def test_results_without_validation_or_test_images() -> None:
    assert "selected_on_val" not in summarize_evaluations([{"step": 1, "test_top1": 1.0, "test_top5": 2.0}])
    assert summarize_evaluations([{"step": 1, "val_top1": 1.0, "val_top5": 2.0}])["top1"] is None
    assert summarize_evaluations([]) == {}


Facts = dict[str, torch.Tensor]


def stats(*clusterings: list[list[int]]) -> Facts:
    """Clusterings as lists of clusters, whose first class is the medoid."""
    width = max(map(len, clusterings))
    classes = sum(map(len, clusterings[0]))
    clusters = torch.empty(len(clusterings), classes, dtype=torch.int32)
    medoids = torch.zeros(len(clusterings), width, dtype=torch.int32)
    for row, clustering in enumerate(clusterings):
        for number, members in enumerate(clustering):
            clusters[row, members] = number
            medoids[row, number] = members[0]
    return {"clusters": clusters, "medoids": medoids}


def plain_changes(before: Facts, now: Facts) -> dict[str, float]:
    """Class by class: its companions, and its medoid."""
    count = {"cluster_changes": 0, "medoid_changes": 0}
    rows, classes = before["clusters"].shape
    for row in range(rows):
        for c in range(classes):
            then_own, now_own = (stats["clusters"][row] == stats["clusters"][row, c] for stats in (before, now))
            count["cluster_changes"] += not torch.equal(then_own, now_own)
            then_medoid, now_medoid = (
                int(stats["medoids"][row, int(stats["clusters"][row, c])]) for stats in (before, now)
            )
            count["medoid_changes"] += then_medoid != now_medoid
    return {name: value / rows for name, value in count.items()}


@pytest.mark.parametrize(
    ("now", "clusters", "medoids"),
    [
        ([[0, 1, 2], [3, 4]], 0, 0),
        ([[3, 4], [0, 1, 2]], 0, 0),  # the same clusters in another order
        ([[1, 0, 2], [3, 4]], 0, 3),  # another medoid of the same members
        ([[0, 1], [3, 4, 2]], 5, 1),  # a class went over: both clusters have other members
        ([[0, 1, 2, 3, 4]], 5, 2),
    ],
)
def test_known_clusters(now: list[list[int]], clusters: int, medoids: int) -> None:
    begun = [[0, 1, 2], [3, 4]]
    history = ClusterHistory(stats(begun))
    assert history.update(stats(begun)) == {}, "there is nothing to compare the first with"
    assert history.update(stats(now)) == {"cluster_changes": clusters, "medoid_changes": medoids}
    assert history.update(stats(now)) == {"cluster_changes": 0, "medoid_changes": 0}


def test_changes_equal_a_plain_comparison_and_go_on_from_a_checkpoint() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Facts:
        medoids = torch.stack([torch.randperm(9, generator=generator)[:4] for _ in range(3)])
        clusters = torch.randint(4, (3, 9), generator=generator)
        return {"medoids": medoids, "clusters": clusters.scatter(1, medoids, torch.arange(4).expand(3, 4))}

    before = draw()
    history = ClusterHistory(before)
    history.update(before)
    for _ in range(10):
        now = draw()
        resumed = ClusterHistory(now)
        resumed.load_state_dict(history.state_dict())
        assert history.update(now) == resumed.update(now) == pytest.approx(plain_changes(before, now))
        before = now


def test_a_run_of_soc_records_them_from_the_second_evaluation_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fit(tiny_settings("soc", evaluate_every=4), folder.path, display=Display(quiet=True))
    records = [record for record in folder.read_metrics() if record["kind"] == "evaluation"]
    assert "cluster_changes" not in records[0]
    assert all(0 <= record["cluster_changes"] <= 6 for record in records[1:])
    assert any(record["medoid_changes"] for record in records[1:])


def test_other_methods_have_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fit(tiny_settings("fixmatch", evaluate_every=6), folder.path, display=Display(quiet=True))
    assert not any("cluster_changes" in record for record in folder.read_metrics())
