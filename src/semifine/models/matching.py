"""Tensors of another training, matched by name with those of a classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from semifine.errors import UserError
from semifine.models.classifier import Classifier

# A counter that files of old torch versions lack and that no training here reads.
UNCOUNTED = "num_batches_tracked"


@dataclass(frozen=True)
class LoadReport:
    """Which of the backbone's tensors were found; ``unexpected`` are those of the file that nobody took."""

    source: str
    head: bool
    matched: list[str]
    missing: list[str]
    wrong_shape: dict[str, dict[str, list[int]]]
    unexpected: list[str]

    @property
    def total(self) -> int:
        return len(self.matched) + len(self.missing) + len(self.wrong_shape)

    def as_dict(self) -> dict[str, Any]:
        """What ``weights.json`` holds."""
        lists = {name: getattr(self, name) for name in ("matched", "missing", "wrong_shape", "unexpected")}
        return {
            "source": self.source,
            "head": "kept" if self.head else "fresh",
            "counts": {name: len(names) for name, names in lists.items()},
            **lists,
        }

    def __str__(self) -> str:
        faults = [
            (len(self.missing), "missing"),
            (len(self.wrong_shape), "of another shape"),
            (len(self.unexpected), "of the file unused"),
        ]
        told = ", ".join(f"{count} {fault}" for count, fault in faults if count)
        head = "its classifier" if self.head else "a fresh classifier"
        shown = f"{len(self.matched)} of {self.total} backbone tensors from {self.source}"
        return f"{shown}{f' ({told})' if told else ''}, with {head}"


def take_weights(classifier: Classifier, state: Mapping[str, Tensor], source: str, keep_head: bool) -> LoadReport:
    """Puts the tensors of ``state`` into the classifier; nothing is changed where they do not fit."""
    own = classifier.backbone.state_dict()
    prefix = find_prefix(state, own)
    found = {name: state[prefix + name] for name in own if prefix + name in state}
    fitting = {name: value for name, value in found.items() if value.shape == own[name].shape}
    head = _read_head(classifier, state, prefix, source) if keep_head else {}
    heads = {name: tensors for name in classifier.heads if (tensors := _read_own_head(classifier, name, state))}
    used = {prefix + name for name in found} | set(head)
    used |= {f"heads.{name}.{key}" for name, tensors in heads.items() for key in tensors}
    report = LoadReport(
        source=source,
        head=bool(head),
        matched=[name for name in fitting if UNCOUNTED not in name],
        missing=[name for name in own if name not in found and UNCOUNTED not in name],
        wrong_shape={
            name: {"file": list(value.shape), "network": list(own[name].shape)}
            for name, value in found.items()
            if name not in fitting
        },
        unexpected=[name for name in state if name not in used],
    )
    _check_enough(report)
    classifier.backbone.load_state_dict(fitting, strict=False)
    for name, tensors in heads.items():
        classifier.heads[name].load_state_dict(tensors)
    if head:
        weight, bias = head.values()
        classifier.head.load_state_dict({"weight": weight, "bias": bias})
    return report


def _read_own_head(classifier: Classifier, name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A method's own head where one of our files has it: SimMatch goes on with the projection that MoCo learnt."""
    own = classifier.heads[name].state_dict()
    found = {key: state[f"heads.{name}.{key}"] for key in own if f"heads.{name}.{key}" in state}
    return found if {key: value.shape for key, value in found.items()} == {k: v.shape for k, v in own.items()} else {}


def find_prefix(names: Collection[str], own: Collection[str]) -> str:
    """What stands before the backbone's own names: ``module.encoder.`` and the like, found by counting.

    MoCo keeps two encoders of the same names, of which the query encoder is the one that learnt.
    """
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        endings = (".".join(parts[start:]) for start in range(len(parts)))
        counts.update(name.removesuffix(ending) for ending in endings if ending in own)
    return max(counts, key=lambda prefix: (counts[prefix], "encoder_k" not in prefix), default="")


def _read_head(classifier: Classifier, state: Mapping[str, Tensor], prefix: str, source: str) -> dict[str, Tensor]:
    """Weight and bias of the file's classifier, under the names they have there."""
    for layer in _head_names(classifier, prefix):
        head = {name: state[name] for name in (f"{layer}.weight", f"{layer}.bias") if name in state}
        if len(head) < 2:
            continue
        theirs, ours = (
            tuple(weight.shape) for weight in (head[f"{layer}.weight"], classifier.head.state_dict()["weight"])
        )
        if theirs != ours:
            raise UserError(
                f"The classifier in {source} has {_describe(theirs)}, this one {_describe(ours)}; "
                "take the backbone alone with --weights-head fresh."
            )
        return head
    raise UserError(f"There is no classifier in {source}; take the backbone alone with --weights-head fresh.")


def _head_names(classifier: Classifier, prefix: str) -> list[str]:
    """Where a file may have its classifier; what follows an encoder is a projection, which knows no classes."""
    if prefix.endswith(("encoder.", "encoder_q.", "encoder_k.")):
        return []
    timm_name = getattr(classifier.backbone, "pretrained_cfg", {}).get("classifier")
    name = timm_name if isinstance(timm_name, str) else "fc"
    return [prefix.removesuffix("backbone.") + "head", prefix + name]


def _describe(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} classes of {shape[1]} features" if len(shape) == 2 else f"the shape {shape}"


def _check_enough(report: LoadReport) -> None:
    if len(report.matched) * 2 >= report.total:
        return
    examples = []
    if report.missing:
        examples.append(f"it lacks {_some(report.missing)}")
    if report.wrong_shape:
        examples.append(f"other shapes have {_some(list(report.wrong_shape))}")
    if report.unexpected:
        examples.append(f"it has {_some(report.unexpected)}")
    raise UserError(
        f"Only {len(report.matched)} of {report.total} tensors of the backbone are in {report.source}: "
        f"{'; '.join(examples)}. Is it of another backbone, or does it name its tensors unlike timm?"
    )


def _some(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")
