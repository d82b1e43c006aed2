"""The check of known holes fails where it cannot look, unless there is no network."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages})


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "said"),
    [
        ("", "/bin/python: No module named pip_audit", 1, "does not work: /bin/python: No module named pip_audit"),
        ("", "Traceback …\nKeyError: 'x'", 1, "does not work: KeyError: 'x'"),
        ("", "", 1, "it said nothing"),
        ("", "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed", 0, "skipped"),
        (listed({"name": "a", "skip_reason": "not found"}), "", 0, "skipped"),
        (listed({"name": "a", "vulns": []}), "", 0, "1 packages, 0 holes"),
        (listed({"name": "a", "vulns": [{"id": "CVE-1"}]}), "Found 1", 1, "known hole in a: CVE-1"),
    ],
)
def test_known_holes(
    audit: ModuleType,
    stdout: str,
    stderr: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = subprocess.CompletedProcess([], int(bool(stderr)), stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert audit.check_known_holes() == code
    assert said in capsys.readouterr().out
