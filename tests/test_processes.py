"""Processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semifine.processes import PARENT, child_environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the id of the parent does not change on Windows")
CHILD = """
import semifine.processes, signal, sys, time
{before}
semifine.processes.end_with_parent()
print("!", flush=True)
time.sleep(60)
print("not ended")
"""
PARENT_OF_CHILD = """
import subprocess, sys
from semifine.processes import child_environment
subprocess.call([sys.executable, "-c", sys.argv[1]], env=child_environment())
"""


def start(before: str = "", environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD.format(before=before)]
    return subprocess.Popen(command, env=environment or child_environment(), stdout=subprocess.PIPE)


def test_a_child_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT_OF_CHILD, CHILD.format(before="")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"!\n", "the child runs"
        parent.kill()
        assert parent.stdout.read() == b"", "the pipe is at its end when the child, which shares it, has ended"


def test_a_child_whose_parent_has_ended_before_it_starts_to_watch() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with start(environment={**child_environment(), PARENT: str(ended.pid)}) as child:
        assert child.wait() == -signal.SIGTERM


def test_a_child_that_does_not_end_is_killed() -> None:
    before = "semifine.processes.GRACE_SECONDS = 0.1; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with start(before, {**child_environment(), PARENT: "0"}) as child:
        assert child.wait() == -signal.SIGKILL


def test_a_process_without_the_variable_continues() -> None:
    with start(environment={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"!\n"
        child.terminate()


def test_the_variable_is_not_inherited_by_grandchildren() -> None:
    program = "import os; from semifine.processes import *; end_with_parent(); print(PARENT in os.environ)"
    assert subprocess.check_output([sys.executable, "-c", program], env=child_environment()) == b"False\n"


def test_children_do_not_import_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("open('executed', 'w').close()")
    command = [sys.executable, "-m", "semifine", "--version"]
    subprocess.run(command, cwd=tmp_path, env=child_environment(), check=True, capture_output=True)
    assert not (tmp_path / "executed").exists()
    subprocess.run(command, cwd=tmp_path, env=dict(os.environ), check=False, capture_output=True)
    assert (tmp_path / "executed").exists(), "this test can fail"
