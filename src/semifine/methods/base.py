"""What a method is: settings, the views it needs, and one step that gives a loss and named numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from semifine.models.forward import Networks


@dataclass(frozen=True)
class DataInfo:
    """What a method may know beforehand: sizes, and the labels of labeled images, never of others."""

    num_classes: int
    num_labeled: int
    num_unlabeled: int
    seed: int = 0
    label: Tensor | None = None
    """(N,) classes of the labeled images."""
    unlabeled_batch: int = 1
    """Unlabeled images a step, of all ranks together."""
    feature_dim: int = 0
    """Length of the backbone's pooled features."""


@dataclass(frozen=True)
class Progress:
    """Where training stands: the number of finished steps, and of all steps."""

    step: int
    total: int


@dataclass(frozen=True)
class Batch:
    """One step's data on the device: views by name, each (B, 3, S, S).

    ``index`` numbers the unlabeled images of the batch within the unlabeled set, 0..M-1, and
    ``labeled_index`` the labeled ones within the labeled set, 0..N-1.
    """

    labeled: Mapping[str, Tensor]
    label: Tensor
    unlabeled: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None
    labeled_index: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        columns = (self.label, self.index, self.labeled_index)
        return [*self.labeled.values(), *self.unlabeled.values(), *(c for c in columns if c is not None)]

    def clone(self) -> Batch:
        """A batch of the same shapes with memory of its own."""
        return Batch(
            {name: view.clone() for name, view in self.labeled.items()},
            self.label.clone(),
            {name: view.clone() for name, view in self.unlabeled.items()},
            *(None if column is None else column.clone() for column in (self.index, self.labeled_index)),
        )


@dataclass(frozen=True)
class PseudoLabels:
    """What a method makes of (B, K) predicted probabilities on unlabeled images."""

    probs: Tensor
    target: Tensor
    """(B, K) soft or one-hot labels; the classes above 0 are the candidates."""
    accepted: Tensor
    """(B,) 1 where the label trains the network, else 0."""
    k: Tensor | None = None
    """(B,) number of clusters that SoC chose for each image."""
    counted: Tensor | None = None
    """(B,) whether the image is among those that FlexMatch's thresholds depend on."""


@dataclass(frozen=True)
class StepResult:
    """The loss to descend, metrics to log (detached scalars), and the pseudo-labels that were used."""

    loss: Tensor
    metrics: dict[str, Tensor]
    pseudo_labels: PseudoLabels | None = None


Group = Literal["semi_supervised", "baseline", "reference", "soc"]
"""How reports compare a method: the baseline that others are measured against (labeled images only), a reference that
is not semi-supervised (the oracle), the paper's own method, or any other method."""


@dataclass(frozen=True)
class NoSettings:
    """For a method without settings of its own."""


class Method(nn.Module):
    """Base of all methods. State that must survive a restart is a persistent buffer, nothing else."""

    name: ClassVar[str]
    summary: ClassVar[str]
    title: ClassVar[str]
    """Name in reports, such as "FixMatch"; the default is ``name``. Titles, colors and groups are not inherited."""
    color: ClassVar[str | None] = None
    """A hue of ``semifine.report.style.HUES``; None takes a spare one."""
    line_style: ClassVar[str] = "-"
    group: ClassVar[Group] = "semi_supervised"
    Settings: ClassVar[type] = NoSettings
    labeled_views: tuple[str, ...] = ("weak",)
    unlabeled_views: tuple[str, ...] = ()
    """The views a batch has; a method whose settings choose them sets its own when it is made."""
    trains_on_truth: ClassVar[bool] = False
    """Only the oracle: the true labels of unlabeled images join the labeled set."""
    trains_classifier: ClassVar[bool] = True
    """Whether there is a classifier at the end, whose accuracy can be measured."""
    needs_ema: ClassVar[bool] = False
    """Whether a step asks the averaged network, so that there must be one."""
    evaluates_ema: ClassVar[bool] = True
    """Whether the averaged network, where there is one, is the result; else the student is."""
    cuda_graph_safe: ClassVar[bool] = False
    """Whether a step is the same operations every time, so that a CUDA graph can hold it: no Python decision
    depends on progress or on values."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Resets what reports show, so that a method derived from another one does not look like it."""
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        cls.title = own.get("title", getattr(cls, "name", cls.__name__))
        cls.color = own.get("color")
        cls.line_style = own.get("line_style", "-")
        cls.group = own.get("group", "semi_supervised")

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__()
        self.settings = settings
        self.info = info

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:  # noqa: ARG003
        """Heads of the method's own on the pooled features; a step finds what they give in ``Output.heads``."""
        return nn.ModuleDict()

    @classmethod
    def frozen_network(cls, settings: Any) -> str | None:  # noqa: ARG003
        """The file or run folder of a trained network that steps ask through ``Networks.forward_frozen``."""
        return None

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        raise NotImplementedError

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        """The labels this method would give, without a change of its state; here the prediction itself."""
        return hard_pseudo_labels(probs, threshold=0.0)

    def labels_by_k(self, probs: Tensor, limit: int) -> Iterator[tuple[int, Tensor]]:  # noqa: ARG002
        """At most ``limit`` numbers of clusters with the (B, K) labels that each would give; here there are none."""
        return iter(())

    def notes(self) -> list[str]:
        """What a person should know about how this run will be done."""
        return []

    def class_stats(self) -> dict[str, Tensor]:
        """What the method has learned about classes, kept for reports."""
        return {}


def hard_pseudo_labels(probs: Tensor, threshold: float | Tensor) -> PseudoLabels:
    """One-hot labels of the most probable class, accepted where its probability reaches the (B,) threshold."""
    confidence, prediction = probs.max(dim=1)
    return PseudoLabels(
        probs=probs,
        target=one_hot(prediction, probs.shape[1]).to(probs.dtype),
        accepted=(confidence >= threshold).to(probs.dtype),
    )


def soft_pseudo_labels(probs: Tensor, threshold: float) -> PseudoLabels:
    """The probabilities as they are, accepted where the largest reaches the threshold."""
    return PseudoLabels(probs, probs, accepted=(probs.amax(dim=1) >= threshold).to(probs.dtype))


def predicted_probabilities(logits: Tensor) -> Tensor:
    """softmax in float32, cut from the graph: no gradient flows through a label."""
    return torch.softmax(logits.detach().float(), dim=1)
