"""What a run's model says about the images of its data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semifine.analysis.runs import read_run
from semifine.data.catalog import Catalog, Split
from semifine.data.store import ImageStore
from semifine.errors import UserError
from semifine.inference.calibration import softmax
from semifine.inference.run import Run, load
from semifine.studio.confusion_map import ConfusionMap, confusion_map
from semifine.studio.ordering import cluster_by_cluster, most_worth, uncertainty
from semifine.studio.resemblance import Features, Places, comparable

MOST_CANDIDATES = 9  # one for each number key
FEWEST_CANDIDATES = 3


@dataclass(frozen=True, eq=False)
class Insight:
    """Columns over the U unlabelled images; a place is a position in them, a row one in the catalog."""

    run: Path
    result: dict[str, Any]
    catalog: Catalog
    store: ImageStore
    rows: Places
    """(U,) their rows in the catalog, each of another path."""
    probs: NDArray[np.float32]
    """(U, K), calibrated where the run has validation images."""
    num_candidates: NDArray[np.int64]
    """(U,) how many classes the image may be of: the surer the model, the fewer."""
    features: Features
    """(U, D) comparable."""
    known_rows: Places
    """(L,) rows of the images that came with a label."""
    known_features: Features
    """(L, D) comparable."""
    doubt: NDArray[np.float64]
    map: ConfusionMap
    orders: dict[str, Places]
    """The places in each order that the queue can have."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.catalog.class_names

    @cached_property
    def prediction(self) -> NDArray[np.int64]:
        return np.asarray(self.probs.argmax(axis=1), np.int64)

    def short_list(self, place: int) -> list[int]:
        """The candidates to choose from, the most probable first.

        As many as SoC's cluster of the prediction has, within bounds: a single one would be no choice. They are the
        most probable classes rather than the cluster itself, which more often lacks the true class.
        """
        length = int(np.clip(self.num_candidates[place], FEWEST_CANDIDATES, MOST_CANDIDATES))
        return [int(c) for c in np.argsort(-self.probs[place], kind="stable")[:length]]


def gain_insight(path: Path, device: Literal["auto", "cpu", "cuda"]) -> Insight:
    """Runs the network once over all labelled and unlabelled images of the run's data set."""
    run = load(path, device=device)
    facts = read_run(path)
    catalog = run.dataset.catalog
    rows = first_of_each_path(catalog, catalog.rows(Split.UNLABELLED))
    if not len(rows):
        raise UserError(f"{catalog.name} has no unlabelled images: there is nothing to label in {path}.")
    features, logits = _look(run, rows)
    probs = run.calibration.probabilities(logits).astype(np.float32)
    known_rows = catalog.rows(Split.LABELLED)
    known_features, _ = _look(run, known_rows)
    centre = features.mean(axis=0)
    features, known_features = comparable(features, centre), comparable(known_features, centre)
    doubt = uncertainty(probs)
    confused = confusion_map(facts, probs, features)
    return Insight(
        run=path,
        result=facts.result,
        catalog=catalog,
        store=run.dataset.store,
        rows=rows,
        probs=probs,
        # SoC chooses clusters by the confidence that training saw, which is not calibrated.
        num_candidates=run.candidates(softmax(logits)).sum(axis=1),
        features=features,
        known_rows=known_rows,
        known_features=known_features,
        doubt=doubt,
        map=confused,
        orders={
            "worth": most_worth(doubt, features, known_features),
            "cluster": cluster_by_cluster(doubt, confused.cluster_of[probs.argmax(axis=1)]),
        },
    )


def first_of_each_path(catalog: Catalog, rows: Places) -> Places:
    """Without the rows that name an image once more: a table may list one twice, and it needs one answer."""
    _, first = np.unique([str(catalog.paths[row]) for row in rows], return_index=True)
    return rows[np.sort(first)]


def _look(run: Run, rows: Places) -> tuple[Features, NDArray[np.float32]]:
    batches = list(run.scores(rows))
    return np.concatenate([b.features for b in batches]), np.concatenate([b.logits for b in batches])
