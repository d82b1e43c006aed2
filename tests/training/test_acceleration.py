"""torch.compile and CUDA graphs: when they are used, and what happens if they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.compile_fx
from safetensors.torch import load_file
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.methods.fixmatch import FixMatch
from semifine.training.acceleration import CompiledCall, choose_acceleration, compile_network
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class VaryingFixMatch(FixMatch):
    """A method whose operations differ between steps."""

    name = "varying"
    cuda_graph_safe = False


def settings(**more: object):
    return tiny_settings("fixmatch", **more).train


def test_long_gpu_run_uses_compile_and_cuda_graphs() -> None:
    chosen = choose_acceleration(settings(iterations=20_000), FixMatch, CUDA, "bf16", 1)
    assert chosen.compiled
    assert chosen.cuda_graphs
    assert chosen.notes == []


def test_short_gpu_run_uses_cuda_graphs_only() -> None:
    chosen = choose_acceleration(settings(iterations=500), FixMatch, CUDA, "bf16", 1)
    assert not chosen.compiled
    assert chosen.cuda_graphs


@pytest.mark.parametrize(
    ("method", "precision", "world_size", "reason"),
    [
        (VaryingFixMatch, "bf16", 1, "differ"),
        (FixMatch, "fp16", 1, "fp16"),
        (FixMatch, "bf16", 2, "several processes"),
    ],
)
def test_obstacle_to_cuda_graphs_is_noted(method: type, precision: str, world_size: int, reason: str) -> None:
    chosen = choose_acceleration(settings(iterations=500), method, CUDA, precision, world_size)
    assert not chosen.cuda_graphs
    (note,) = chosen.notes
    assert reason in note


def test_off_disables_acceleration_without_notes() -> None:
    wanted = settings(iterations=20_000, compile="off", cuda_graphs="off")
    chosen = choose_acceleration(wanted, FixMatch, CUDA, "bf16", 1)
    assert (chosen.compiled, chosen.cuda_graphs, chosen.notes) == (False, False, [])


def test_cuda_graphs_need_a_gpu() -> None:
    with pytest.raises(UserError, match="cuda_graphs is on, but the run is on the CPU"):
        choose_acceleration(settings(cuda_graphs="on"), FixMatch, CPU, "fp32", 1)


Break = Callable[[type[Exception]], None]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Makes the compiler fail."""

    def fail_with(kind: type[Exception]) -> None:
        def fail(*_: object, **__: object) -> None:
            raise kind("No working C++ compiler found\nand more")

        monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", fail)

    return fail_with


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())


def state_after(trained: nn.Module, images: Tensor) -> dict[str, Tensor]:
    trained(images).sum().backward()
    gradients = {f"gradient of {name}": value.grad for name, value in trained.named_parameters()}
    return {**trained.state_dict(), **gradients}


@pytest.mark.parametrize("kind", [RuntimeError, ImportError, torch._dynamo.exc.Unsupported])
def test_compiler_failure_falls_back_to_eager(kind: type[Exception], broken: Break) -> None:
    broken(kind)
    messages: list[str] = []
    images, compiled = torch.randn(5, 4), network()
    compile_network(compiled, messages.append)
    torch.testing.assert_close(state_after(compiled, images), state_after(network(), images), rtol=0, atol=0)
    compiled(images)
    assert messages == [
        "The network cannot be compiled (No working C++ compiler found); training continues without torch.compile."
    ]


def test_backward_compiler_failure_falls_back_in_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("No backward")

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_backward", fail)
    messages: list[str] = []
    images, compiled = torch.randn(5, 4), network()
    compile_network(compiled, messages.append)
    torch.testing.assert_close(state_after(compiled, images), state_after(network(), images), rtol=0, atol=0)
    assert messages == ["The network cannot be compiled (No backward); training continues without torch.compile."]


def test_other_errors_of_a_compiled_network_are_raised() -> None:
    """Errors of the device are not compiler failures."""
    messages: list[str] = []
    compiled = network()
    answers = iter([torch.OutOfMemoryError("CUDA out of memory"), torch.ones(3), ValueError("in mid-run")])

    def answer(_: Tensor) -> Tensor:
        if isinstance(given := next(answers), Exception):
            raise given
        return given

    compiled._compiled_call_impl = answer
    compiled._compiled_call_impl = CompiledCall(compiled, messages.append)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(torch.ones(2, 4))
    assert torch.equal(compiled(torch.ones(2, 4)), torch.ones(3))
    with pytest.raises(ValueError, match="in mid-run"):
        compiled(torch.ones(2, 4))
    assert messages == []


def test_run_with_failing_compiler_equals_eager_run(tmp_path: Path, broken: Break) -> None:
    broken(RuntimeError)
    for name, wanted in (("compiled", "on"), ("plain", "off")):
        fit(tiny_settings(compile=wanted, iterations=4), tmp_path / name, display=Display(quiet=True))
    weights = [
        load_file(tmp_path / name / "checkpoints" / "last" / "model.safetensors") for name in ("compiled", "plain")
    ]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    log = [json.loads(line) for line in (tmp_path / "compiled" / "log.jsonl").read_text().splitlines()]
    assert sum("cannot be compiled" in record["text"] for record in log) == 1
