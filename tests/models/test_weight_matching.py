"""Names are matched whatever stands before them, and the report tells all."""

from __future__ import annotations

import json

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from semifine.errors import UserError
from semifine.models.classifier import Classifier, create_classifier
from semifine.models.pretrained import LoadReport, find_prefix, load_matching_weights
from tests.models.layouts import BACKBONE, CLASSES, named, small_classifier

SOURCE, TARGET = small_classifier(0), small_classifier(1)
NAMES = sorted(SOURCE.backbone.state_dict())
COUNTED = [name for name in NAMES if "num_batches_tracked" not in name]
part = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@given(st.lists(part, max_size=4), st.sampled_from(["", "queue", "fc.weight", "layer1.0.bn1.weight2"]))
def test_any_prefix_is_found(parts: list[str], extra: str) -> None:
    prefix = "".join(f"{part}." for part in parts)
    assert find_prefix([prefix + name for name in NAMES] + [extra], set(NAMES)) == prefix


@pytest.mark.parametrize("order", [("q", "k"), ("k", "q")])
def test_the_query_encoder_is_preferred(order: tuple[str, str]) -> None:
    names = [f"module.encoder_{which}.{name}" for which in order for name in NAMES]
    assert find_prefix(names, set(NAMES)) == "module.encoder_q."


def test_strange_names_have_no_prefix() -> None:
    assert find_prefix(["a", "b.c"], {"d"}) == find_prefix([], {"d"}) == ""


@settings(deadline=None, max_examples=40)
@given(dropped=st.sets(st.sampled_from(COUNTED)), reshaped=st.sets(st.sampled_from(COUNTED)))
def test_the_report_accounts_for_every_tensor(dropped: set[str], reshaped: set[str]) -> None:
    state = {f"module.{name}": value for name, value in SOURCE.backbone.state_dict().items() if name not in dropped}
    for name in reshaped - dropped:
        state[f"module.{name}"] = torch.ones(1, 2, 3)
    fitting = set(COUNTED) - dropped - reshaped
    if len(fitting) * 2 < len(COUNTED):
        with pytest.raises(UserError, match=f"Only {len(fitting)} of {len(COUNTED)} tensors"):
            load_matching_weights(TARGET, state, "here", keep_head=False)
        return
    report = load_matching_weights(TARGET, {**state, "queue": torch.ones(1)}, "here", keep_head=False)
    assert set(report.matched) == fitting
    assert set(report.missing) == dropped
    assert set(report.wrong_shape) == reshaped - dropped
    assert report.unexpected == ["queue"]
    assert report.total == len(COUNTED)


def test_the_summary_lists_only_differences() -> None:
    report = LoadReport("x.pt", True, ["a", "b"], [], {}, [])
    assert str(report) == "2 of 2 backbone tensors from x.pt, with its classifier"
    report = LoadReport("x.pt", False, ["a", "b"], ["c"], {"d": {"file": [1], "network": [2]}}, ["queue", "fc.bias"])
    assert str(report) == (
        "2 of 4 backbone tensors from x.pt (1 missing, 1 with another shape, 2 unused tensors in the file), "
        "with a fresh classifier"
    )


def test_the_full_lists_are_plain_json() -> None:
    report = load_matching_weights(small_classifier(0), named(small_classifier(1), head=9), "x.pt", keep_head=False)
    written = json.loads(json.dumps(report.as_dict()))
    assert written["counts"] == {"matched": len(COUNTED), "missing": 0, "wrong_shape": 0, "unexpected": 2}
    assert (written["source"], written["head"], sorted(written["matched"])) == ("x.pt", "fresh", COUNTED)
    assert written["unexpected"] == ["fc.weight", "fc.bias"]


def test_what_a_methods_own_head_takes_is_not_unused() -> None:
    def with_projection(seed: int) -> Classifier:
        torch.manual_seed(seed)
        heads = lambda width: nn.ModuleDict({"projection": nn.Linear(width, 8)})  # noqa: E731
        return create_classifier(BACKBONE, CLASSES, 32, heads)

    source, target = with_projection(0), with_projection(1)
    report = load_matching_weights(target, source.state_dict(), "x.safetensors", keep_head=False)
    torch.testing.assert_close(target.heads.state_dict(), source.heads.state_dict())
    assert report.unexpected == ["head.weight", "head.bias"]


def test_a_head_of_another_size_names_both_sizes() -> None:
    with pytest.raises(UserError, match="has 8142 classes of 96 features, this one 6 classes of 96 features"):
        load_matching_weights(small_classifier(0), named(small_classifier(1), head=8142), "x.pt", keep_head=True)


@pytest.mark.parametrize(("backbone", "head"), [("convnext_atto", "head.fc"), ("tf_efficientnet_lite0", "classifier")])
def test_the_head_is_found_under_timms_name(backbone: str, head: str) -> None:
    theirs = timm.create_model(backbone, num_classes=CLASSES).state_dict()
    ours = create_classifier(backbone, CLASSES, 32)
    assert load_matching_weights(ours, theirs, "x.pt", keep_head=True).unexpected == []
    torch.testing.assert_close(ours.head.weight, theirs[f"{head}.weight"])


def test_torchvisions_resnet_is_timms() -> None:
    theirs = torchvision.models.resnet18().state_dict()
    report = load_matching_weights(create_classifier("resnet18", 3, 32), theirs, "x.pt", keep_head=False)
    assert (len(report.matched), report.total, report.unexpected) == (100, 100, ["fc.weight", "fc.bias"])


@pytest.mark.parametrize(
    ("theirs", "backbone"),
    [("mobilenet_v3_small", "mobilenetv3_small_100"), ("resnet18", "tf_efficientnet_lite0"), ("resnet18", "resnet50")],
)
def test_other_names_and_other_networks_are_refused_with_examples(theirs: str, backbone: str) -> None:
    state = torchvision.models.get_model(theirs).state_dict()
    with pytest.raises(UserError, match=r"tensors of the backbone are in x\.pt: .*'.*Is it a file of another backbone"):
        load_matching_weights(create_classifier(backbone, 3, 32), state, "x.pt", keep_head=False)


def test_half_precision_is_widened() -> None:
    source, target = small_classifier(0), small_classifier(1)
    load_matching_weights(
        target, {name: value.half() for name, value in named(source).items()}, "x.pt", keep_head=False
    )
    assert target.backbone.conv1[0].weight.dtype == torch.float32
    torch.testing.assert_close(target.backbone.conv1[0].weight, source.backbone.conv1[0].weight, atol=1e-3, rtol=0)
