"""Files of other projects, damaged files and malicious files."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from semifine.errors import UserError
from semifine.models.pretrained import load_weights_file, read_state_dict
from tests.models.layouts import ALL, CLASSES, WITH_OUR_HEAD, WITHOUT_OUR_HEAD, named, small_classifier


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "torch before 1.6"])
@pytest.mark.parametrize("layout", ALL)
def test_the_right_backbone_is_taken_from_each_layout(layout: str, zipped: bool, tmp_path: Path) -> None:
    source, other, target = (small_classifier(seed) for seed in range(3))
    path = tmp_path / "weights.pth.tar"
    torch.save(ALL[layout](source, other), path, _use_new_zipfile_serialization=zipped)
    head_before = target.head.weight.clone()
    report = load_weights_file(target, path, keep_head=False)
    assert (len(report.matched), report.missing, report.wrong_shape, report.head) == (report.total, [], {}, False)
    for name, value in target.backbone.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, source.backbone.state_dict()[name], msg=name)
    torch.testing.assert_close(target.head.weight, head_before)


@pytest.mark.parametrize("layout", WITH_OUR_HEAD)
def test_keep_head_loads_the_head(layout: str, tmp_path: Path) -> None:
    source, other, target = (small_classifier(seed) for seed in range(3))
    torch.save(WITH_OUR_HEAD[layout](source, other), tmp_path / "weights.pt")
    assert load_weights_file(target, tmp_path / "weights.pt", keep_head=True).head
    torch.testing.assert_close(target.state_dict(), source.state_dict())


@pytest.mark.parametrize("layout", WITHOUT_OUR_HEAD)
def test_a_head_of_other_classes_and_a_projection_are_not_kept(layout: str, tmp_path: Path) -> None:
    source, other, target = (small_classifier(seed) for seed in range(3))
    torch.save(WITHOUT_OUR_HEAD[layout](source, other), tmp_path / "weights.pt")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(UserError, match="--weights-head fresh"):
        load_weights_file(target, tmp_path / "weights.pt", keep_head=True)
    torch.testing.assert_close(target.state_dict(), before, msg="an error must not change the network")


def test_safetensors_of_timm_and_of_ours(tmp_path: Path) -> None:
    source, target = small_classifier(0), small_classifier(1)
    for state in (named(source, head=CLASSES), source.state_dict()):
        save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "model.safetensors")
        assert load_weights_file(target, tmp_path / "model.safetensors", keep_head=True).head
        torch.testing.assert_close(target.state_dict(), source.state_dict())


class Malicious:
    """Pickles as a call that leaves a file behind."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("position", ["instead", "beside", "inside"])
@pytest.mark.parametrize(
    "malicious",
    [
        Malicious(os.system, "touch executed"),
        Malicious(subprocess.call, ["touch", "executed"]),
        Malicious(eval, "open('executed', 'w')"),
        Malicious(open, "executed", "w"),
        Malicious(getattr, "", "upper"),
    ],
    ids=["os.system", "subprocess", "eval", "open", "getattr"],
)
def test_code_in_a_file_is_not_run(
    malicious: Malicious, position: str, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tensors: dict[str, Any] = {"fc.weight": torch.ones(2)}
    content: dict[str, Any] = {
        "instead": {"state_dict": malicious},
        "beside": {"state_dict": tensors, "opt": malicious},
        "inside": {"state_dict": {**tensors, "fc.bias": malicious}},
    }
    torch.save(content[position], "weights.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match="cannot be read: it contains"):
        read_state_dict(Path("weights.pt"))
    assert not Path("executed").exists()


def test_a_bare_pickle_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights.pkl").write_bytes(pickle.dumps(Malicious(os.system, "touch executed"), protocol=2))
    with pytest.raises(UserError, match="cannot be read"):
        read_state_dict(Path("weights.pkl"))
    assert not Path("executed").exists()


def test_a_pickled_network_raises_an_error_with_its_class(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "weights.pt")
    with pytest.raises(UserError, match=r"it contains 'torch\.nn\.modules\.linear\.Linear'"):
        read_state_dict(tmp_path / "weights.pt")


def test_ignored_classes_are_allowed_only_while_reading(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "opt": argparse.Namespace(a=1)}, tmp_path / "weights.pt")
    assert list(read_state_dict(tmp_path / "weights.pt")) == ["w"]
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "weights.pt", weights_only=True)


@pytest.mark.parametrize("content", [{"epoch": 3, "lr": 0.1}, [torch.ones(2)], {}, "text", {"state_dict": {}}])
def test_a_file_without_tensors_raises_an_error_with_its_keys(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="no state dict" + (", only the keys epoch, lr" if "epoch" in content else "")):
        read_state_dict(tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["missing.pt", "damaged.pt", "damaged.safetensors", "empty.pt", "empty.safetensors"])
def test_missing_and_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    if "missing" not in name:
        (tmp_path / name).write_bytes(b"not weights" if "damaged" in name else b"")
    with pytest.raises(UserError, match=name):
        read_state_dict(tmp_path / name)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    state = {"conv1.weight": torch.ones(30), "bn1.bias": torch.zeros(3)}
    torch.save({"state_dict": state}, folder / "zip.pt")
    torch.save({"state_dict": state}, folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, folder / "new.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(["zip.pt", "old.pt", "new.safetensors"]), share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_an_error_wherever_it_was_cut(
    name: str, share: float, whole_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = whole_files[name]
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match="cannot be read"):
        read_state_dict(path)


def test_a_compressed_file_is_not_unpacked(tmp_path: Path) -> None:
    """A small file could become larger than the memory."""
    torch.save({"head.weight": torch.zeros(1000, 1000)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as archive,
        zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for member in archive.infolist():
            small.writestr(member.filename, archive.read(member))
    assert (tmp_path / "small.pt").stat().st_size < 100_000
    assert read_state_dict(tmp_path / "w.pt")["head.weight"].shape == (1000, 1000)
    with pytest.raises(UserError, match=r"small.pt cannot be read"):
        read_state_dict(tmp_path / "small.pt")
