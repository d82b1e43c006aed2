"""Simulates labeling with the true labels, and measures the share of photos that are labeled correctly.

The features are those of a pretrained network without training. After every step, the live classifier of the studio is
fitted again and predicts the photos without an answer; answered photos count as correct. The true labels serve only as
answers and for measurement. The way of labeling is one of:

- random: single answers in random order,
- static: single answers in the order of the queue before the first answer, as in a studio whose model does not learn,
- live: single answers in the order of the live queue,
- grid: pages of photos of one predicted class; each photo is looked at, the wrong ones are answered one by one.

    python benchmarks/live_labeling.py PATH_TO_SEMI_CUB --out benchmarks/results/live-labeling.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from provenance import provenance
from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.features.live import LiveClassifier
from semifine.features.pretrained import pretrained_evaluator
from semifine.studio.coverage import COVERAGE_POWER, SHARPNESS, rank_by_coverage
from semifine.studio.plain import GROUP_COMPONENTS, group_photos, typical_first
from semifine.studio.snapshot import (
    Features,
    Indices,
    center_and_normalize,
    greedy_k_center,
    margin_uncertainty,
    rank_by_acquisition,
)

BACKBONE, IMAGE_SIZE, STORED_SIDE = "tf_efficientnet_lite0", 224, 256
ANSWER_SECONDS = 3.075
"""A single answer: 3 s for a person, 75 ms for the page."""
TILE_SECONDS = 1.5
"""A look at one photo of a grid."""
PAGE = 24
GOALS = (0.5, 0.6, 0.7, 0.75, 0.8)
WAYS = ("random", "static", "live", "grid", "uncertain", "margin-k-center", "typical-uncertain", "hybrid", "groups")


@dataclass
class Simulation:
    """The photos, the answers so far, and the costs."""

    features: Features
    """Normalized features of the labeled and the unlabeled photos."""
    labeled: NDArray[np.int64]
    """Classes of the labeled photos."""
    truth: NDArray[np.int64]
    """Classes of the unlabeled photos."""
    random: np.random.Generator
    is_answered: NDArray[np.bool_] = field(init=False)
    probs: NDArray[np.float32] = field(init=False)
    answers: int = 0
    seconds: float = 0.0
    fit_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.classifier = LiveClassifier(self.features)
        self.is_answered = np.zeros(len(self.truth), np.bool_)
        self.num_classes = int(self.truth.max()) + 1
        components = self.classifier.features.numpy()
        self.components = center_and_normalize(components, components.mean(axis=0))[len(self.labeled) :]
        self.fit_ = None
        self.refit()

    def refit(self) -> None:
        """Fits the classifier on all labels and predicts all unlabeled photos."""
        answered = np.flatnonzero(self.is_answered)
        rows = np.concatenate([np.arange(len(self.labeled)), answered + len(self.labeled)])
        label = np.concatenate([self.labeled, self.truth[answered]])
        if not len(rows):
            self.probs = np.full((len(self.truth), self.num_classes), 1 / self.num_classes, np.float32)
            return
        started = time.perf_counter()
        self.fit_ = self.classifier.fit(rows, label, self.num_classes, self.fit_)
        seen = np.bincount(label, minlength=self.num_classes) > 0
        self.probs = self.classifier.predict(self.fit_, seen)[len(self.labeled) :]
        self.fit_seconds.append(time.perf_counter() - started)

    @property
    def prediction(self) -> NDArray[np.int64]:
        return self.probs.argmax(axis=1)

    @property
    def confidence(self) -> NDArray[np.float32]:
        return np.where(self.is_answered, 1, self.probs.max(axis=1)).astype(np.float32)

    def share_correct(self) -> float:
        """Returns the share of photos that are labeled correctly: answered, or predicted as their class."""
        has_model = self.fit_ is not None
        return float((self.is_answered | (has_model & (self.prediction == self.truth))).mean())

    def answer(self, indices: Indices) -> None:
        """Answers photos one by one."""
        self.is_answered[indices] = True
        self.answers += len(indices)
        self.seconds += ANSWER_SECONDS * len(indices)

    def confirm(self, indices: Indices) -> None:
        """Looks at the photos of one page, confirms the class of most of them, and answers the others one by one."""
        wrong = indices[self.truth[indices] != self.prediction[indices[0]]]
        self.answer(wrong)
        self.is_answered[indices] = True
        self.answers += 1
        self.seconds += TILE_SECONDS * len(indices)

    def waiting(self, order: Indices, count: int) -> Indices:
        """Returns the first photos of an order without an answer."""
        return order[~self.is_answered[order]][:count]

    def labeled_features(self) -> Features:
        return np.concatenate(
            [self.features[: len(self.labeled)], self.features[len(self.labeled) :][self.is_answered]]
        )


def first_order(simulation: Simulation) -> Indices:
    """Returns the order of the queue before the first answer."""
    unlabeled = simulation.features[len(simulation.labeled) :]
    if not len(simulation.labeled):
        return typical_first(unlabeled, group_photos(simulation.classifier.features.numpy()[:, :GROUP_COMPONENTS]))
    return rank_by_acquisition(margin_uncertainty(simulation.probs), unlabeled, simulation.labeled_features())


def choose(simulation: Simulation, way: str, order: Indices, batch: int) -> Indices:
    """Returns the next photos for single answers."""
    s, waiting = simulation, np.flatnonzero(~simulation.is_answered)
    if way == "random":
        return s.random.permutation(waiting)[:batch]
    if way == "static" or s.fit_ is None:
        return s.waiting(order, batch)
    if way == "uncertain":
        return s.waiting(np.argsort(s.confidence, kind="stable"), batch)
    if way == "margin-k-center":
        uncertainty = margin_uncertainty(s.probs)
        pool = waiting[np.argsort(-uncertainty[waiting], kind="stable")][:2000]
        features = s.features[len(s.labeled) :][pool]
        return pool[greedy_k_center(uncertainty[pool], features, s.labeled_features(), batch)]
    if way == "typical-uncertain":
        cosine = s.components @ s.components.T
        density = np.sort(cosine, axis=1)[:, -21:-1].mean(axis=1)
        density = (density - density.min()) / (density.max() - density.min())
        return s.waiting(np.argsort(-(1 - s.confidence) * density, kind="stable"), batch)
    return s.waiting(rank_by_coverage(s.confidence, s.components, s.is_answered), batch)


def confirm_pages(simulation: Simulation, batch: int) -> None:
    """Confirms the pages of predicted classes whose photos are uncertain and surrounded by uncertain photos."""
    s = simulation
    uncertainty = np.where(s.is_answered, 0, 1 - s.confidence)
    around = np.exp(SHARPNESS * (s.components @ s.components.T - 1)) @ uncertainty
    score = np.maximum(around, 0) ** COVERAGE_POWER * uncertainty
    done = 0
    while done < batch and not s.is_answered.all():
        waiting = np.flatnonzero(~s.is_answered)
        of_class = [waiting[s.prediction[waiting] == c] for c in np.unique(s.prediction[waiting])]
        pages = [rows[np.argsort(-score[rows], kind="stable")[:PAGE]] for rows in of_class]
        page = max(pages, key=lambda rows: float(score[rows].sum()))
        s.confirm(page)
        done += len(page)


def name_groups(simulation: Simulation) -> None:
    """Looks at all photos group by group, and names the most frequent class of a group if it has two photos or more."""
    s = simulation
    group = group_photos(s.classifier.features.numpy()[len(s.labeled) :, :GROUP_COMPONENTS])
    for number in range(int(group.max()) + 1):
        members = np.flatnonzero(group == number)
        counts = np.bincount(s.truth[members])
        s.seconds += TILE_SECONDS * len(members)
        if counts.max(initial=0) >= 2:
            s.is_answered[members[s.truth[members] == counts.argmax()]] = True
            s.answers += 1
            s.seconds += ANSWER_SECONDS


HYBRID_SHARE = 0.5
"""Share of correct photos from which the way ``hybrid`` confirms pages."""


def simulate(simulation: Simulation, way: str, batch: int, goal: float) -> Iterator[dict[str, Any]]:
    """Labels until the goal is reached; yields the share of correct photos after each refit."""
    order = first_order(simulation)
    while True:
        share = simulation.share_correct()
        minutes = round(simulation.seconds / 60, 2)
        photos = int(simulation.is_answered.sum())
        yield {"answers": simulation.answers, "minutes": minutes, "photos": photos, "share": round(share, 4)}
        if share >= goal or simulation.is_answered.all():
            return
        if way == "groups" and simulation.fit_ is None:
            name_groups(simulation)
        elif way in ("grid", "groups") or (way == "hybrid" and share >= HYBRID_SHARE):
            if simulation.fit_ is None:
                simulation.answer(simulation.waiting(order, batch))
            else:
                confirm_pages(simulation, batch)
        else:
            simulation.answer(choose(simulation, way, order, batch))
        simulation.refit()


def compute_features(path: str, cache: Path | None) -> tuple[Features, NDArray[np.int64], NDArray[np.int64]]:
    """Returns normalized features of labeled and unlabeled photos, and the classes of both."""
    dataset = Dataset.open(f"semi_cub:{path}")
    store = dataset.open_store(STORED_SIDE, cache_dir=cache)
    evaluator = pretrained_evaluator(
        store, BACKBONE, IMAGE_SIZE, STORED_SIDE, device=torch.device("cpu"), cache=cache, progress=print
    )
    catalog = dataset.catalog
    labeled, unlabeled = catalog.rows(Split.LABELED), catalog.rows(Split.UNLABELED)
    features = evaluator.features(np.concatenate([labeled, unlabeled]))
    return center_and_normalize(features, features.mean(axis=0)), catalog.label[labeled], catalog.truth[unlabeled]


def first_reaching(history: list[dict[str, Any]], goal: float) -> dict[str, Any] | None:
    return next((entry for entry in history if entry["share"] >= goal), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", help="folder of Semi-CUB")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--starts", nargs="+", choices=("none", "labels"), default=["none", "labels"])
    parser.add_argument("--batch", type=int, default=20, help="answers between two refits")
    parser.add_argument("--seeds", type=int, default=1, help="orders of the way random")
    parser.add_argument("--cache", type=Path, help="folder of decoded images and features")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    features, labeled, truth = compute_features(options.data, options.cache)
    results = []
    for start in options.starts:
        used = features if start == "labels" else features[len(labeled) :]
        known = labeled if start == "labels" else labeled[:0]
        for way in options.ways:
            for seed in range(options.seeds if way == "random" else 1):
                simulation = Simulation(used, known, truth, np.random.default_rng(seed))
                history = list(simulate(simulation, way, options.batch, max(GOALS)))
                reached = {str(goal): first_reaching(history, goal) for goal in GOALS}
                fit = float(np.median(simulation.fit_seconds))
                results.append(
                    {"start": start, "way": way, "seed": seed, "reached": reached, "fit_seconds": round(fit, 3)}
                )
                print(start, way, seed, reached[str(max(GOALS))], f"fit {fit:.2f} s", flush=True)
    counts = {"labeled": len(labeled), "unlabeled": len(truth), "classes": int(truth.max()) + 1}
    record = {**provenance("cpu"), "images": counts, "batch": options.batch, "results": results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
