"""The interface of training methods: settings, required views, and a step that computes the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.models.forward import Networks


@dataclass(frozen=True)
class DataInfo:
    """Properties of the training data and the network that are available when a method is created.

    Labels of unlabeled images are not included.
    """

    num_classes: int
    """Number of classes K."""
    num_labeled: int
    """Number of labeled images N."""
    num_unlabeled: int
    """Number of unlabeled images M."""
    seed: int = 0
    """Seed for random draws of the method."""
    label: Tensor | None = None
    """(N,) class of each labeled image."""
    unlabeled_batch: int = 1
    """Number of unlabeled images in a step, summed over all ranks."""
    feature_dim: int = 0
    """Dimension of the pooled features of the backbone."""
    votes: Tensor | None = None
    """(M, V) class that each of the V networks of :meth:`Method.voters` predicts for each unlabeled image; -1: none."""


@dataclass(frozen=True)
class Progress:
    """Number of completed training steps, and the total number.

    Example:
        >>> progress = Progress(step=50, total=200)
        >>> progress.step / progress.total
        0.25
    """

    step: int
    """Number of completed steps."""
    total: int
    """Number of steps of the whole run."""


@dataclass(frozen=True)
class Mixing:
    """Pairs of images of a batch that are mixed, and the weight of the first image of each pair.

    Mixup blends the images. CutMix pastes a box of the second image into the first one.

    Example:
        >>> box = torch.tensor([0, 1, 0, 2])  # the upper row of 2 x 2 pixels
        >>> mixing = Mixing(torch.tensor(0.5), torch.tensor([1, 0]), box, torch.tensor(1.0))
        >>> mixing.images(torch.tensor([[[[1., 1.], [1., 1.]]], [[[2., 2.], [2., 2.]]]]))[0]
        tensor([[[2., 2.],
                 [1., 1.]]])
    """

    weight: Tensor
    """() weight of the label of the first image."""
    index: Tensor
    """(B,) second image of each pair."""
    box: Tensor | None = None
    """(4,) first and last row (exclusive), first and last column (exclusive) that show the second image; None without
    CutMix."""
    blend: Tensor | None = None
    """() weight of the first image outside the box; None if it is ``weight``."""

    def tensors(self) -> list[Tensor]:
        """Returns all tensors in a fixed order."""
        return [value for value in (self.weight, self.index, self.box, self.blend) if value is not None]

    def clone(self) -> Mixing:
        """Returns a copy that shares no memory."""
        return Mixing(*(value.clone() for value in self.tensors()))

    def images(self, images: Tensor) -> Tensor:
        """Mixes images (B, ...); with a box (B, C, H, W)."""
        others = images[self.index]
        blended = torch.lerp(others, images, self.weight if self.blend is None else self.blend)
        if self.box is None:
            return blended
        top, bottom, left, right = self.box.unbind()
        row, column = (torch.arange(side, device=images.device) for side in images.shape[-2:])
        inside = ((row >= top) & (row < bottom))[:, None] & (column >= left) & (column < right)
        return torch.where(inside, others, blended)

    def loss(self, function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Tensor:
        """Returns the weighted loss of the logits of mixed images with both targets."""
        first, second = function(logits, target), function(logits, target[self.index])
        return torch.lerp(second, first, self.weight)


@dataclass(frozen=True)
class Batch:
    """The data of one training step, on the device.

    Example:
        >>> images = torch.rand(2, 3, 8, 8)
        >>> batch = Batch({"weak": images}, label=torch.tensor([0, 1]))
        >>> batch.labeled_loss(torch.tensor([[9.0, 0.0], [0.0, 9.0]])).item() < 0.001
        True
    """

    labeled: Mapping[str, Tensor]
    """Views of the labeled images by name, each (B, 3, S, S)."""
    label: Tensor
    """(B,) class of each labeled image."""
    unlabeled: Mapping[str, Tensor] = field(default_factory=dict)
    """Views of the unlabeled images by name, each (B_u, 3, S, S)."""
    index: Tensor | None = None
    """(B_u,) indices of the unlabeled images in the unlabeled set, 0..M-1."""
    labeled_index: Tensor | None = None
    """(B,) indices of the labeled images in the labeled set, 0..N-1."""
    labeled_mixing: Mixing | None = None
    """Pairs of labeled images to mix; None without mixup."""
    unlabeled_mixing: Mixing | None = None
    """Pairs of unlabeled images to mix; None without mixup."""

    def tensors(self) -> list[Tensor]:
        """Returns all tensors in a fixed order."""
        columns = (self.label, self.index, self.labeled_index)
        mixings = (mixing for mixing in (self.labeled_mixing, self.unlabeled_mixing) if mixing is not None)
        return [
            *self.labeled.values(),
            *self.unlabeled.values(),
            *(column for column in columns if column is not None),
            *(tensor for mixing in mixings for tensor in mixing.tensors()),
        ]

    def clone(self) -> Batch:
        """Returns a copy that shares no memory with this batch."""
        index, labeled_index = (None if c is None else c.clone() for c in (self.index, self.labeled_index))
        labeled, unlabeled = (None if m is None else m.clone() for m in (self.labeled_mixing, self.unlabeled_mixing))
        return Batch(
            {name: view.clone() for name, view in self.labeled.items()},
            self.label.clone(),
            {name: view.clone() for name, view in self.unlabeled.items()},
            index,
            labeled_index,
            labeled,
            unlabeled,
        )

    def labeled_images(self, view: str) -> Tensor:
        """Returns a view of the labeled images, mixed if the batch has a mixing."""
        images = self.labeled[view]
        return images if self.labeled_mixing is None else self.labeled_mixing.images(images)

    def labeled_loss(self, logits: Tensor) -> Tensor:
        """Returns the cross-entropy of the logits (B, K) of :meth:`labeled_images`."""
        if self.labeled_mixing is None:
            return supervised_cross_entropy(logits, self.label)
        return self.labeled_mixing.loss(supervised_cross_entropy, logits, self.label)

    def unlabeled_images(self, view: str) -> Tensor:
        """Returns a view of the unlabeled images, mixed if the batch has a mixing."""
        images = self.unlabeled[view]
        return images if self.unlabeled_mixing is None else self.unlabeled_mixing.images(images)

    def unlabeled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Returns the cross-entropy of the logits of :meth:`unlabeled_images` with soft labels (B, K)."""
        if self.unlabeled_mixing is None:
            return soft_cross_entropy(logits, target)
        return self.unlabeled_mixing.loss(soft_cross_entropy, logits, target)


@dataclass(frozen=True)
class PseudoLabels:
    """Pseudo-labels of a batch of unlabeled images.

    Example:
        >>> probs = torch.tensor([[0.6, 0.3, 0.1]])
        >>> PseudoLabels(probs, target=torch.tensor([[0.5, 0.5, 0.0]]), accepted=torch.ones(1)).target.argmax().item()
        0
    """

    probs: Tensor
    """(B, K) predicted probabilities."""
    target: Tensor
    """(B, K) soft or one-hot labels. Classes with nonzero probability are the candidates."""
    accepted: Tensor
    """(B,) weight of the label in the loss: 1 if it is used, else 0. SoftMatch uses values between them."""
    k: Tensor | None = None
    """(B,) number of clusters that SoC selects for each image."""
    counted: Tensor | None = None
    """(B,) bool, whether the image contributes to the thresholds of FlexMatch."""


@dataclass(frozen=True)
class StepResult:
    """Result of a training step.

    Example:
        >>> loss = torch.tensor(0.5, requires_grad=True)
        >>> StepResult(loss, {"loss": loss.detach()}).metrics
        {'loss': tensor(0.5000)}
    """

    loss: Tensor
    """Scalar to minimize."""
    metrics: dict[str, Tensor]
    """Detached scalars to log, by name."""
    pseudo_labels: PseudoLabels | None = None
    """Pseudo-labels used in the loss."""


Group = Literal["semi_supervised", "baseline", "reference", "soc"]
"""Role of a method in reports.

``baseline`` trains on labeled images only, and other methods are compared with it. ``reference`` also uses hidden
labels (the oracle). ``soc`` is the method of the paper. All others are ``semi_supervised``.
"""


@dataclass(frozen=True)
class NoSettings:
    """Settings of a method that has none.

    Example:
        >>> NoSettings()
        NoSettings()
    """


class Method(nn.Module):
    """Base class of all methods.

    Subclasses implement :meth:`forward`. Register all state as persistent buffers: checkpoints save nothing else.

    Args:
        settings: Instance of ``Settings``.
        info: Properties of the training data and the network.

    Example::

        >>> class LabelsOnly(Method):
        ...     name = "labels_only"
        ...     summary = "cross-entropy on the labeled images"
        ...
        ...     def forward(self, networks, batch, progress):
        ...         (labeled,) = networks(batch.labeled["weak"])
        ...         loss = nn.functional.cross_entropy(labeled.logits, batch.label)
        ...         return StepResult(loss, {"loss": loss.detach()})
        >>> LabelsOnly(NoSettings(), DataInfo(num_classes=3, num_labeled=9, num_unlabeled=0)).title
        'labels_only'
    """

    name: ClassVar[str]
    """Name on the command line."""
    summary: ClassVar[str]
    """One line for ``semifine list methods`` and the documentation."""
    title: ClassVar[str]
    """Name in reports, such as "FixMatch". Default: ``name``. Title, color, line style and group are not inherited."""
    color: ClassVar[str | None] = None
    """Color in figures, a key of ``semifine.report.style.HUES``. None: selected from the name of the method."""
    line_style: ClassVar[str] = "-"
    """Matplotlib line style in figures."""
    group: ClassVar[Group] = "semi_supervised"
    Settings: ClassVar[type] = NoSettings
    """Frozen dataclass of the settings."""
    labeled_views: tuple[str, ...] = ("weak",)
    """Names of the views of labeled images in a batch."""
    unlabeled_views: tuple[str, ...] = ()
    """Names of the views of unlabeled images in a batch. Set them in ``__init__`` if they depend on the settings."""
    trains_on_truth: ClassVar[bool] = False
    """Whether the unlabeled images are added to the labeled set with their hidden labels. Only for the oracle."""
    trains_classifier: ClassVar[bool] = True
    """Whether the method trains a classifier. If not, no accuracy is measured."""
    supports_frozen_stages: ClassVar[bool] = True
    """Whether the networks may take activations of frozen stages instead of images."""
    supports_mixup: ClassVar[bool] = False
    """Whether :meth:`forward` mixes images if the batch has a :class:`Mixing`."""
    takes_steps: ClassVar[bool] = True
    """Whether the method trains the network. The probe does not."""
    needs_ema: ClassVar[bool] = False
    """Whether :meth:`forward` uses the averaged network. If so, ``ema=0`` is an error."""
    evaluates_ema: ClassVar[bool] = True
    """Whether the averaged network is evaluated instead of the student, unless ``ema=0``."""
    cuda_graph_safe: ClassVar[bool] = False
    """Whether a step can be captured in a CUDA graph: it always runs the same operations, and no Python branch depends
    on ``progress`` or on tensor values."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Resets the attributes for reports, so that a subclass of another method is displayed differently."""
        super().__init_subclass__(**kwargs)
        defined = vars(cls)
        cls.title = defined.get("title", getattr(cls, "name", cls.__name__))
        cls.color = defined.get("color")
        cls.line_style = defined.get("line_style", "-")
        cls.group = defined.get("group", "semi_supervised")

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__()
        self.settings = settings
        self.info = info

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:  # noqa: ARG003
        """Returns additional heads on the pooled features. ``Output.heads`` has their outputs under the same names."""
        return nn.ModuleDict()

    @classmethod
    def class_heads(cls, settings: Any, feature_dim: int, num_classes: int) -> nn.ModuleDict:  # noqa: ARG003
        """Returns additional heads with an output for each class, used like :meth:`heads`."""
        return nn.ModuleDict()

    @classmethod
    def create_heads(cls, settings: Any, num_classes: int, feature_dim: int) -> nn.ModuleDict:
        """Returns all additional heads, of :meth:`heads` and of :meth:`class_heads`."""
        heads = cls.heads(settings, feature_dim)
        heads.update(dict(cls.class_heads(settings, feature_dim, num_classes).items()))
        return heads

    @classmethod
    def frozen_network(cls, settings: Any) -> str | None:  # noqa: ARG003
        """Returns the weights file or run folder of the network for ``Networks.forward_frozen``, or None."""
        return None

    @classmethod
    def voters(cls, settings: Any) -> tuple[str, ...]:  # noqa: ARG003
        """Returns the run folders of the networks whose predictions are in ``DataInfo.votes``."""
        return ()

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        """Computes the loss of a training step.

        Args:
            networks: The student, the averaged network and the frozen network.
            batch: Views and labels.
            progress: Completed and total number of steps.

        Returns:
            Loss, metrics and pseudo-labels.
        """
        raise NotImplementedError

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        """Returns the pseudo-labels for (B, K) predicted probabilities without changing the state.

        Evaluation and reports use them. Default: the one-hot predicted class, always accepted.
        """
        return hard_pseudo_labels(probs, threshold=0.0)

    def renewed(self) -> Method:
        """Returns the method for statistics and predictions: everything that pseudo-labels depend on is up to date.

        This method does not change, so that evaluations have no effect on training. Default: this method.
        """
        return self

    def labels_by_k(self, probs: Tensor, limit: int) -> Iterator[tuple[int, Tensor]]:  # noqa: ARG002
        """Yields up to ``limit`` numbers of clusters k, each with the (B, K) labels for that k. Default: none."""
        return iter(())

    def notes(self) -> list[str]:
        """Returns messages to print before training starts."""
        return []

    def class_stats(self) -> dict[str, Tensor]:
        """Returns statistics of the classes by name, which are saved for reports."""
        return {}


def hard_pseudo_labels(probs: Tensor, threshold: float | Tensor) -> PseudoLabels:
    """Returns one-hot labels of the most probable class, accepted if its probability is at least the threshold.

    Args:
        probs: (B, K) predicted probabilities.
        threshold: One threshold, or (B,) thresholds.

    Example:
        >>> hard_pseudo_labels(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), threshold=0.65).accepted
        tensor([1., 0.])
    """
    confidence, prediction = probs.max(dim=1)
    return PseudoLabels(
        probs=probs,
        target=one_hot(prediction, probs.shape[1]).to(probs.dtype),
        accepted=(confidence >= threshold).to(probs.dtype),
    )


def soft_pseudo_labels(probs: Tensor, threshold: float) -> PseudoLabels:
    """Returns the probabilities as soft labels, accepted if the largest is at least the threshold.

    Args:
        probs: (B, K) predicted probabilities.
        threshold: Smallest confidence of an accepted label.

    Example:
        >>> soft_pseudo_labels(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), threshold=0.65).accepted
        tensor([1., 0.])
    """
    return PseudoLabels(probs, probs, accepted=(probs.amax(dim=1) >= threshold).to(probs.dtype))


def predicted_probabilities(logits: Tensor) -> Tensor:
    """Returns softmax probabilities in float32, detached. Shapes: (B, K) -> (B, K).

    Example:
        >>> predicted_probabilities(torch.zeros(1, 2, requires_grad=True))
        tensor([[0.5000, 0.5000]])
    """
    return torch.softmax(logits.detach().float(), dim=1)
