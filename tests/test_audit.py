"""The audit of dependencies for vulnerabilities and licenses."""

from __future__ import annotations

import json
import subprocess
from email.message import Message
from importlib.metadata import PathDistribution
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from tests.scripts import load_script


@pytest.fixture
def audit() -> ModuleType:
    return load_script("audit")


def listed(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages})


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "message"),
    [
        ("", "/bin/python: No module named pip_audit", 1, "pip-audit failed: /bin/python: No module named pip_audit"),
        ("", "Traceback …\nKeyError: 'x'", 1, "pip-audit failed: KeyError: 'x'"),
        ("", "", 1, "pip-audit failed: no output"),
        ("", "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed", 0, "skipped"),
        (listed({"name": "a", "skip_reason": "not found"}), "", 0, "skipped"),
        (listed({"name": "a", "vulns": []}), "", 0, "1 packages, 0 vulnerabilities"),
        (listed({"name": "a", "vulns": [{"id": "CVE-1"}]}), "Found 1", 1, "vulnerability in a: CVE-1"),
    ],
)
def test_vulnerabilities(
    audit: ModuleType,
    stdout: str,
    stderr: str,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = subprocess.CompletedProcess([], int(bool(stderr)), stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert audit.check_vulnerabilities() == code
    assert message in capsys.readouterr().out


def package(license: str) -> PathDistribution:
    metadata = Message()
    metadata["License-Expression"] = license
    return cast(PathDistribution, SimpleNamespace(metadata=metadata))


@pytest.mark.parametrize(
    ("license", "name", "for_users", "code"),
    [
        ("MIT", "some-package", {"some-package"}, 0),
        ("GPL-2.0-only", "some-package", set(), 1),
        ("", "some-package", set(), 1),
        ("", "nvidia-cudnn-cu13", {"nvidia-cudnn-cu13"}, 0),
        ("GPL-2.0-only", "codespell", set(), 0),
        ("GPL-2.0-only", "codespell", {"codespell"}, 1),
    ],
)
def test_licenses(audit: ModuleType, license: str, name: str, for_users: set[str], code: int) -> None:
    """Programs under the GPL are accepted in development only."""
    assert audit.check_licenses({name: package(license)}, for_users) == code
