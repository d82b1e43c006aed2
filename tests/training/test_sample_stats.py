"""Statistics of unlabeled images and their table."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from semifine.data.catalog import Split
from semifine.methods.base import DataInfo, PseudoLabels
from semifine.methods.fixmatch import FixMatch, FixMatchSettings
from semifine.methods.soc import SoC, SoCSettings
from semifine.training.evaluate import EntropySweep
from semifine.training.sample_stats import (
    Columns,
    collect_sample_stats,
    entropy,
    sample_stats,
    summarize,
    write_sample_table,
)
from tests.conftest import open_dataset, tiny_settings


def example() -> dict[str, torch.Tensor]:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    target = torch.tensor([[0.625, 0.375, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    pseudo = PseudoLabels(probs, target, torch.ones(3), torch.tensor([2, 3, 2]))
    return sample_stats(pseudo, torch.tensor([1, 0, 5]))


def test_sample_stats_follow_their_definitions() -> None:
    stats = example()
    assert stats["prediction"].tolist() == [0, 2, 0]
    assert stats["correct"].tolist() == [False, False, False]
    assert stats["hit"].tolist() == [True, False, False], "an out-of-class image is never hit"
    torch.testing.assert_close(stats["z_obj1"], torch.tensor([0.3, 0.0, 0.0]))
    assert stats["z_obj2"].tolist() == [2, 1, 2]
    torch.testing.assert_close(stats["kept_mass"], torch.tensor([0.8, 0.7, 0.8]))
    torch.testing.assert_close(stats["entropy_after"][1], torch.tensor(0.0))


def test_sample_stats_of_all_images_come_in_batches_with_paths() -> None:
    catalog = open_dataset(tiny_settings()).catalog
    rows = catalog.rows(Split.UNLABELED)
    probs = torch.softmax(torch.randn(len(rows), catalog.num_classes), dim=1)
    info = DataInfo(catalog.num_classes, num_labeled=1, num_unlabeled=len(rows))
    evaluator = SimpleNamespace(predict=lambda _network, rows: iter(probs.split(len(rows) - 3)))
    changes = np.arange(len(rows)) * 7
    batches = list(
        collect_sample_stats(catalog, evaluator, nn.Identity(), FixMatch(FixMatchSettings(), info), changes)  # type: ignore[arg-type]
    )
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert [len(batch["index"]) for batch in batches] == [len(rows) - 3, 3]
    assert whole["index"].tolist() == list(range(len(rows)))
    assert whole["path"].tolist() == [catalog.paths[row] for row in rows]
    assert whole["truth"].tolist() == catalog.truth[rows].tolist()
    assert whole["prediction"].tolist() == probs.argmax(dim=1).tolist()
    assert whole["changes"].tolist() == changes.tolist()
    assert whole["candidates"].sum(axis=1).tolist() == whole["z_obj2"].tolist()


def test_entropy_in_nats_with_zeros() -> None:
    torch.testing.assert_close(entropy(torch.tensor([0.5, 0.5, 0.0])), torch.tensor(math.log(2)))


def test_summary_uses_in_class_images_for_accuracies_only() -> None:
    means = summarize({name: value.numpy() for name, value in example().items()}, num_classes=3)
    assert means["images"] == 3
    assert means["candidate_hit_rate"] == 50.0
    assert math.isclose(means["candidates"], 5 / 3)


def test_summary_separates_in_class_and_out_of_class_images() -> None:
    means = summarize({name: value.numpy() for name, value in example().items()}, num_classes=3)
    assert (means["in_class"]["images"], means["out_of_class"]["images"]) == (2, 1)
    assert means["in_class"]["candidate_hit_rate"] == 50.0
    assert "candidate_hit_rate" not in means["out_of_class"]
    assert means["out_of_class"]["candidates"] == 2
    assert means["k"] == {"2": 2, "3": 1}
    assert means["within_lemma"] == 1.0


def test_summary_without_any_truth() -> None:
    stats = {name: value.numpy() for name, value in example().items()}
    stats["truth"][:] = -1
    assert "pseudo_label_accuracy" not in summarize(stats, num_classes=3)


def test_entropy_sweep_equals_a_plain_mean_over_all_images() -> None:
    method = SoC(SoCSettings(alpha=1.5), DataInfo(num_classes=6, num_labeled=6, num_unlabeled=40, seed=0))
    torch.manual_seed(0)
    for _ in range(20):
        method.selector(torch.softmax(3 * torch.randn(8, 6), dim=1), torch.randperm(40)[:8])
    probs = torch.softmax(2 * torch.randn(30, 6), dim=1)
    sweep = EntropySweep()
    sweep.update(method, probs[:13])
    sweep.update(method, probs[13:])
    table = sweep.table()
    assert table is not None
    assert table[:, 0].tolist() == list(range(2, method.selector.k_max + 1))
    for k, mean, spread, images in table.tolist():
        values = []
        for row in probs:
            cluster = method.selector.clusters(int(k))
            kept = row * (cluster == cluster[row.argmax()])
            values.append(float(entropy(kept / kept.sum())))
        assert mean == pytest.approx(sum(values) / 30, rel=1e-5)
        assert spread == pytest.approx(torch.tensor(values).std(correction=0).item(), rel=1e-4)
        assert images == 30
    assert table[-1, 1] < table[0, 1], "more clusters give labels of lower entropy"
    assert len(list(method.labels_by_k(probs, limit=2))) <= 2


def test_entropy_sweep_is_empty_without_clusters() -> None:
    sweep = EntropySweep()
    info = DataInfo(num_classes=3, num_labeled=3, num_unlabeled=3)
    sweep.update(FixMatch(FixMatchSettings(), info), torch.full((2, 3), 1 / 3))
    assert sweep.table() is None


def batch(start: int, target: np.ndarray) -> Columns:
    index = np.arange(start, start + len(target))
    return {
        "index": index,
        "path": np.array([f"é/{i}.jpg" for i in index], dtype=object),
        "hit": index % 2 == 0,
        "candidates": target,
    }


def test_candidates_are_stored_as_lists_by_probability(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shares = ((4, 0.5), (1, 1.0), (3, 0.0), (5, 0.2))
    targets = [random.random((size, 9)) * (random.random((size, 9)) < share) for size, share in shares]
    starts = np.cumsum([0, *map(len, targets)])
    batches = [batch(start, target) for start, target in zip(starts, targets, strict=False)]
    numeric = write_sample_table(tmp_path / "new" / "samples.parquet", iter(batches))
    table = pq.read_table(tmp_path / "new" / "samples.parquet")
    expected = [sorted(np.flatnonzero(row), key=lambda i: -row[i]) for target in targets for row in target]
    assert table.column("candidates").to_pylist() == expected
    assert table.schema.field("candidates").type == pa.list_(pa.int32())
    assert table.column("path").to_pylist() == [f"é/{i}.jpg" for i in range(13)]
    assert numeric is not None
    assert {name: column.tolist() for name, column in numeric.items()} == table.select(["index", "hit"]).to_pydict()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["samples.parquet"]


def test_no_table_without_images(tmp_path: Path) -> None:
    assert write_sample_table(tmp_path / "samples.parquet", iter(())) is None
    assert not (tmp_path / "samples.parquet").exists()
