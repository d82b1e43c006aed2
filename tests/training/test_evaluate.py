"""Summary of the evaluations of a run, and changes of clusters between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semifine.data.catalog import Split
from semifine.methods.base import DataInfo
from semifine.methods.soc import SoC
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run
from semifine.soft_labels import k_medoids
from semifine.training.evaluate import ClusterHistory
from semifine.training.fit import fit
from semifine.training.progress import Display
from semifine.training.result import summarize_evaluations
from tests.conftest import tiny_settings


def test_summary_names_how_results_were_selected() -> None:
    rows = [(1, 50.0, 40.0, 80.0), (2, 70.0, 55.0, 85.0), (3, 60.0, 60.0, 82.0)]
    evaluations = [
        {"step": step, "val_top1": val, "val_top5": 99.0, "test_top1": top1, "test_top5": top5}
        for step, val, top1, top5 in rows
    ]
    result = summarize_evaluations(evaluations)
    assert (result["top1"], result["top5"]) == (60.0, 82.0), "the last evaluation, not the best on the test set"
    assert result["selected_on_val"] == {"step": 2, "top1": 55.0, "top5": 85.0}
    assert (result["best_on_test"]["top1"], result["best_on_test"]["top5"]) == (60.0, 85.0)


def test_summary_without_validation_or_test_images() -> None:
    assert "selected_on_val" not in summarize_evaluations([{"step": 1, "test_top1": 1.0, "test_top5": 2.0}])
    assert summarize_evaluations([{"step": 1, "val_top1": 1.0, "val_top5": 2.0}])["top1"] is None
    assert summarize_evaluations([]) == {}


ClassStats = dict[str, torch.Tensor]


def stats(*clusterings: list[list[int]]) -> ClassStats:
    """Returns class statistics of clusterings, given as lists of clusters whose first class is the medoid."""
    width = max(map(len, clusterings))
    classes = sum(map(len, clusterings[0]))
    clusters = torch.empty(len(clusterings), classes, dtype=torch.int32)
    medoids = torch.zeros(len(clusterings), width, dtype=torch.int32)
    for row, clustering in enumerate(clusterings):
        for number, members in enumerate(clustering):
            clusters[row, members] = number
            medoids[row, number] = members[0]
    return {"clusters": clusters, "medoids": medoids}


def plain_changes(before: ClassStats, now: ClassStats) -> dict[str, float]:
    """Compares the members and the medoid of the cluster of each class."""
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
        ([[0, 1], [3, 4, 2]], 5, 1),  # a class moved: both clusters have other members
        ([[0, 1, 2, 3, 4]], 5, 2),
    ],
)
def test_cluster_changes_of_known_clusterings(now: list[list[int]], clusters: int, medoids: int) -> None:
    begun = [[0, 1, 2], [3, 4]]
    history = ClusterHistory(stats(begun))
    assert history.update(stats(begun)) == {}, "the first clustering has no predecessor"
    assert history.update(stats(now)) == {"cluster_changes": clusters, "medoid_changes": medoids}
    assert history.update(stats(now)) == {"cluster_changes": 0, "medoid_changes": 0}


def test_cluster_changes_equal_a_plain_comparison_also_after_resume() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> ClassStats:
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


def test_soc_records_cluster_changes_from_the_second_evaluation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fit(tiny_settings("soc", evaluate_every=4), folder.path, display=Display(quiet=True))
    records = [record for record in folder.read_metrics() if record["kind"] == "evaluation"]
    assert "cluster_changes" not in records[0]
    assert all(0 <= record["cluster_changes"] <= 6 for record in records[1:])
    assert any(record["medoid_changes"] for record in records[1:])


@pytest.mark.parametrize("similarity", ["transitions", "labeled_features"])
def test_statistics_and_predictions_use_clusterings_that_are_up_to_date(similarity: str, tmp_path: Path) -> None:
    settings = tiny_settings("soc", iterations=12, lr=0.1, method__alpha=1.5, method__similarity=similarity)
    fit(settings, tmp_path / "run", display=Display(quiet=True))
    run = Run(tmp_path / "run")
    catalog = run.catalog
    method = SoC(
        settings.method_settings,
        DataInfo(
            catalog.num_classes,
            num_labeled=len(catalog.rows(Split.LABELED)),
            num_unlabeled=len(catalog.rows(Split.UNLABELED)),
            feature_dim=run.load_network("last").feature_dim,
        ),
    )
    method.load_state_dict(torch.load(tmp_path / "run/checkpoints/last/training.pt", weights_only=True)["method"])
    selector = method.selector
    is_old = selector.refreshed < selector.step - 1
    counts = selector.counts if similarity == "transitions" else method.centroids.similarity()
    expected = k_medoids(counts, selector.medoids).assignment[is_old]
    assert not torch.equal(expected, selector.assignment[is_old].long()), "no clustering is old"
    clusters = torch.from_numpy(run.class_stats["clusters"]).long()
    assert torch.equal(clusters[is_old], expected)
    samples = run.samples("k", "prediction", "z_obj2")
    for k, prediction, size in zip(samples["k"], samples["prediction"], samples["z_obj2"], strict=True):
        cluster = clusters[k - selector.k_min]
        assert size == (cluster == cluster[prediction]).sum()


def test_statistics_of_each_evaluation_use_clusterings_that_are_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, renewed = [], SoC.renewed
    monkeypatch.setattr(SoC, "renewed", lambda method: steps.append(int(method.selector.step)) or renewed(method))
    settings = tiny_settings("soc", iterations=4, evaluate_every=2, keep_sample_stats="every")
    fit(settings, tmp_path / "run", display=Display(quiet=True))
    assert steps == [2, 4, 4], "two evaluations and the end of the run"


def test_methods_without_clusters_record_no_changes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fit(tiny_settings("fixmatch", evaluate_every=6), folder.path, display=Display(quiet=True))
    assert not any("cluster_changes" in record for record in folder.read_metrics())
