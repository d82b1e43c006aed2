"""The lock of a run folder on file systems that have no locks, or NFS's; for the others see test_checkpoint.py."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from semifine.errors import UserError
from semifine.runs.folder import is_locked, locked


def answer_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, "as the system puts it")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_without_locks_the_training_goes_on_and_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(number, monkeypatch)
    said: list[str] = []
    with locked(tmp_path, said.append):
        assert not is_locked(tmp_path)
    (sentence,) = said
    assert f"The file system of {tmp_path} has no locks" in sentence


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_a_lock_that_another_machine_holds_is_respected(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(number, monkeypatch)
    with pytest.raises(UserError, match="Another training is running"), locked(tmp_path):
        pass
    assert is_locked(tmp_path)
