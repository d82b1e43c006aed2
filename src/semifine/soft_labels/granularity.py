"""Maps from confidence to the number of clusters k: higher confidence gives more clusters, fewer candidate classes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

MapName = Literal["linear", "exponential", "fixed"]
Rounding = Literal["paper", "official"]

# Tolerance for bounds that users compute in floating point, such as alpha = K / (K - 2).
_TOLERANCE = 1e-9


def linear_k(confidence: Tensor, num_classes: int, alpha: float, rounding: Rounding = "paper") -> Tensor:
    """k = ceil((conf / alpha + 2 / K) K - 1/2), computed as 2 + ceil(conf (K / alpha) - 1/2) in float64.

    In floating point, the first form is off by one at some half-integers. ``rounding="official"`` is the rounding of
    the official code, 2 + round(conf * round(K / alpha)) with halves to even. Shapes: (any) -> (any) int64.

    Example::

        >>> linear_k(torch.tensor([0.0, 0.5, 1.0]), num_classes=200, alpha=5.0)
        tensor([ 2, 22, 42])
    """
    conf = confidence.double()
    if rounding == "official":
        return 2 + (conf * round(num_classes / alpha)).round().long()
    return 2 + (conf * (num_classes / alpha) - 0.5).ceil().long()


def exponential_k(confidence: Tensor, num_classes: int, beta: float) -> Tensor:
    """k = 2 + ceil(K (exp(beta conf) - 1) - 1/2) in float64 (Variant 2 of the paper). Shapes: (any) -> (any) int64.

    Example::

        >>> exponential_k(torch.tensor([0.0, 0.5, 1.0]), num_classes=200, beta=math.log(1.2))
        tensor([ 2, 21, 42])
    """
    conf = confidence.double()
    return 2 + (num_classes * torch.expm1(beta * conf) - 0.5).ceil().long()


@dataclass(frozen=True)
class Granularity:
    """Map from confidence to the number of clusters k, with validated settings.

    Args:
        num_classes: Number of classes K. With two classes k is always 2, except for ``map="fixed"``.
        map: "linear" (uses ``alpha`` and ``rounding``), "exponential" (``beta``) or "fixed" (``k``).
        alpha: Divisor of the linear map, at least K / (K - 2).
        beta: Exponent of the exponential map, at most ln(2 - 2/K).
        k: Number of clusters of the fixed map. 1 gives plain soft labels, K gives hard labels.
        rounding: Rounding of the linear map, see :func:`linear_k`.

    Example::

        >>> granularity = Granularity(num_classes=200)
        >>> granularity(torch.tensor([0.3, 0.99]))
        tensor([14, 42])
        >>> granularity.k_min, granularity.k_max
        (2, 42)
    """

    num_classes: int
    map: MapName = "linear"
    alpha: float = 5.0
    beta: float = math.log(1.2)
    k: int | None = None
    rounding: Rounding = "paper"

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {self.num_classes}.")
        check_choice("map", self.map, get_args(MapName))
        check_choice("rounding", self.rounding, get_args(Rounding))
        check = {"linear": self._check_alpha, "exponential": self._check_beta, "fixed": self._check_k}
        check[self.map]()

    def __call__(self, confidence: Tensor) -> Tensor:
        """Returns k of each sample. Shapes: (any) confidences in [0, 1] -> (any) int64 in k_min..k_max."""
        if self.map == "fixed":
            return torch.full_like(confidence, self.k_min, dtype=torch.int64)
        # Rounded probabilities can exceed 1, and NaN must not be used as an index.
        return self._unclamped(confidence).clamp(self.k_min, self.k_max)

    @property
    def k_min(self) -> int:
        """The smallest k, for confidence 0."""
        if self.map == "fixed":
            assert self.k is not None
            return self.k
        return 2

    @cached_property
    def k_max(self) -> int:
        """The largest k, for confidence 1."""
        if self.map == "fixed":
            return self.k_min
        certain = torch.ones((), dtype=torch.float64)
        return min(int(self._unclamped(certain)), self.num_classes)

    def min_confidences(self) -> Tensor:
        """Returns (k_max - k_min + 1,) the smallest confidence of each k, float64, found by bisection."""
        k = torch.arange(self.k_min, self.k_max + 1)
        low, high = torch.zeros(len(k), dtype=torch.float64), torch.ones(len(k), dtype=torch.float64)
        for _ in range(64):
            middle = (low + high) / 2
            is_enough = self(middle) >= k
            low, high = torch.where(is_enough, low, middle), torch.where(is_enough, middle, high)
        high[0] = 0.0
        return high

    def _unclamped(self, confidence: Tensor) -> Tensor:
        if self.map == "linear":
            return linear_k(confidence, self.num_classes, self.alpha, self.rounding)
        return exponential_k(confidence, self.num_classes, self.beta)

    def _check_alpha(self) -> None:
        if not self.alpha > 0:  # also rejects NaN
            raise ValueError(f"alpha must be above 0, got {self.alpha}.")
        if self.num_classes == 2:
            return
        smallest = self.num_classes / (self.num_classes - 2)
        if self.alpha < smallest * (1 - _TOLERANCE):
            raise ValueError(
                f"alpha must be at least K / (K - 2) = {smallest:.6g} for {self.num_classes} classes, "
                f"so that k is between 2 and {self.num_classes}; got {self.alpha}."
            )

    def _check_beta(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta must be above 0, got {self.beta}.")
        if self.num_classes == 2:
            return
        largest = math.log(2 - 2 / self.num_classes)
        if self.beta > largest * (1 + _TOLERANCE):
            raise ValueError(
                f"beta must be at most ln(2 - 2/K) = {largest:.6g} for {self.num_classes} classes, "
                f"so that k is between 2 and {self.num_classes}; got {self.beta}."
            )

    def _check_k(self) -> None:
        if self.k is None or not 1 <= self.k <= self.num_classes:
            raise ValueError(
                f"k must be an integer between 1 and {self.num_classes} for map='fixed' "
                f"(1: plain soft labels, {self.num_classes}: hard labels); got {self.k}."
            )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError if the value of a setting is not one of its choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
