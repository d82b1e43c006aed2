"""Exact copies are found by size and content, and their groups are merged."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from semifine.data.splits import HEAD_BYTES, find_copies, merge_groups


def found(folder: Path, contents: dict[str, bytes], sought: set[str]) -> list[set[str]]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    names = list(contents)
    places = find_copies([str(folder / name) for name in names], np.array([name in sought for name in names]))
    return [{names[place] for place in group} for group in places]


def test_files_of_equal_content_are_copies(tmp_path: Path) -> None:
    long = bytes(HEAD_BYTES)
    contents = {"a": b"one", "b": b"two", "c": b"one", "d": long + b"x", "e": long + b"y", "f": long + b"x", "g": b"o"}
    assert found(tmp_path, contents, sought=set(contents)) == [{"a", "c"}, {"d", "f"}]


def test_only_copies_of_relevant_files_are_found(tmp_path: Path) -> None:
    contents = {"a": b"one", "b": b"one", "c": b"two", "d": b"two"}
    assert found(tmp_path, contents, sought={"d"}) == [{"c", "d"}]


def test_files_without_content_have_no_copies(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "also empty").touch()
    (tmp_path / "folder").mkdir()
    files = [
        str(tmp_path / name) for name in ("pipe", "pipe", "empty", "also empty", "gone", "gone", "folder", "nu\0l")
    ]
    assert find_copies(files, np.ones(len(files), np.bool_)) == []


def test_content_of_unchanged_files_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: (read.append(file.name), digest(file, kind))[1])
    contents = {"a": b"same", "b": b"same", "c": b"of another size"}
    assert found(tmp_path, contents, sought={"a"}) == [{"a", "b"}]
    files = [str(tmp_path / name) for name in contents]
    assert find_copies(files, np.ones(3, np.bool_)) == [[0, 1]]
    assert sorted(Path(name).name for name in read) == ["a", "b"]
    (tmp_path / "b").write_bytes(b"else")
    assert find_copies(files, np.ones(3, np.bool_)) == []


def test_linked_groups_are_merged() -> None:
    groups = np.array([0, 0, 1, 2, 3, 3, 4])
    assert merge_groups(groups, [[1, 3], [3, 5]]).tolist() == [0, 0, 1, 0, 0, 0, 4]
    assert merge_groups(groups, [[4, 5]]).tolist() == groups.tolist()
    assert merge_groups(groups, []) is groups


@pytest.mark.parametrize("seed", range(5))
def test_merged_groups_are_connected_components(seed: int) -> None:
    """Compares with a search from row to row."""
    random = np.random.default_rng(seed)
    groups = random.integers(0, 12, 20)
    together = [random.choice(20, 2, replace=False).tolist() for _ in range(5)]
    joined = merge_groups(groups, together)
    for start in range(20):
        reached = {start}
        while True:
            further = {row for row in range(20) if any(groups[row] == groups[other] for other in reached)}
            further |= {row for pair in together if set(pair) & further for row in pair}
            if further == reached:
                break
            reached = further
        assert reached == set(np.flatnonzero(joined == joined[start]).tolist())
