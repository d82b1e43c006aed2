"""The benchmark of the soft labels splits the cost of a step into tracking, clustering and selection."""

import importlib.util
import sys

import torch

from tests.conftest import ROOT


def load_benchmark(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_time_and_memory_are_split(monkeypatch, capsys):
    soc_core = load_benchmark("soc_core")
    arguments = "soc_core --classes 12 --window 6 --samples 40 --batch 8 --steps 3 --warmup 1 --reference-steps 0"
    monkeypatch.setattr(sys, "argv", arguments.split())
    options = soc_core.parse()
    cpu = torch.device("cpu")
    row = soc_core.measure(cpu, soc_core.full_window(12, options), (12, "all", True), options)
    assert set(row.parts_ms) == {"tracking", "clustering", "selection"}
    assert all(milliseconds > 0 for milliseconds in row.parts_ms.values())
    tracking = (6 * 8 + 40 + 12 * 12) * 4  # the window, the last predictions and the counts
    assert abs(row.tracking_mb * 2**20 - tracking) < 100
    assert row.clustering_mb > 0
    assert row.tracking_mb + row.clustering_mb == row.state_mb
    soc_core.print_row(soc_core.HEADING)
    soc_core.print_measurement(row)
    heading, numbers = capsys.readouterr().out.splitlines()
    assert heading.count("|") == numbers.count("|")
