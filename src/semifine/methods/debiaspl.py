"""DebiasPL: FixMatch without the bias of the predictions toward some classes (Wang et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from semifine.fields import setting
from semifine.methods.fixmatch import FixMatch, FixMatchSettings


@dataclass(frozen=True)
class DebiasPLSettings(FixMatchSettings):
    align: float = setting(
        0.5, "power of the running mean prediction by which predictions are divided (lambda of the labels)", low=0
    )
    align_decay: float = setting(0.999, "decay of the running mean prediction (m)", low=0, high=1)
    adjust_unlabeled: float = setting(
        0.5, "strength of the logit adjustment in the loss of pseudo-labeled images (lambda of the loss)", low=0
    )


class DebiasPL(FixMatch):
    """loss = L_s + 1/(mu B) sum [max q >= tau] CE(qhat, f(strong(u)) + lambda log pbar).

    q = softmax(f(weak(u)) - lambda log pbar), and pbar is the running mean prediction on weak views. Both parts are
    levers: q is the prediction divided by pbar to the power lambda, and the margin loss is a logit adjustment by pbar.

    Not included: the contrastive loss CLD, which the paper adds on ImageNet. The batch of a step is in its pbar.
    """

    name = "debiaspl"
    title = "DebiasPL"
    color = "green"
    line_style = "--"
    summary = "FixMatch with debiased predictions and an adaptive margin for frequently predicted classes"
    Settings = DebiasPLSettings
