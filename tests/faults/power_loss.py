"""A model of power failures: records what a command does to a folder, and yields every state that a disk may keep.

``Recorder`` observes the folder before and after each system call that syncs, renames, creates or removes something.
The states follow the rules of POSIX, which guarantee less than common file systems:

- The content of a file is kept if the file was synced. Otherwise any part of it may be missing, or be zeros, because
  some file systems store the length of a file before its content.
- An entry of a folder is kept if the folder was synced. Otherwise any of its changes may be missing, also an earlier
  one than a change that is kept. A rename is one change.
- Syncing a file does not sync the entry of the file in its folder, nor the folder in its parent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CALLS = ("fsync", "replace", "rename", "unlink", "remove", "rmdir", "mkdir", "symlink", "truncate")
"""Functions of ``os`` between which the folder is observed. ``fsync`` decides what is durable."""

LARGE = 100_000
"""Size in bytes from which the files of states are links to one copy, which must not be changed in place."""

ZEROS = -1.0
"""Stands for content of which the length is kept, but not the bytes."""
Entries = dict[str, int]
"""Names in a folder with the numbers of their nodes."""
Tree = dict[str, bytes]
"""Files by path. Links are ``-> target``. Folders end in a slash."""


@dataclass
class Disk:
    """Files and folders at one moment, by the number of their node.

    Args:
        content: Current content of files.
        synced: Content of files when they were last synced.
        links: Targets of symbolic links.
        entries: Versions of the entries of each folder. The first one is durable, the last one is current.
    """

    content: dict[int, bytes] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, bytes] = field(default_factory=dict)
    entries: dict[int, list[Entries]] = field(default_factory=dict)

    def copy(self) -> Disk:
        versions = {node: list(entries) for node, entries in self.entries.items()}
        return Disk(dict(self.content), dict(self.synced), dict(self.links), versions)


@dataclass(frozen=True)
class State:
    """What a power failure may leave.

    Args:
        tree: The files.
        done: Names of the promises that were made before, see :meth:`Recorder.promise`.
        after: Number of observed system calls before the failure.
    """

    tree: Tree
    done: tuple[str, ...]
    after: int

    def view(self, start: str) -> frozenset[tuple[str, bytes]]:
        """Returns the files whose paths start with ``start``, and hidden folders without their content.

        States with equal views need to be checked once.
        """
        shown = {_up_to_hidden(path): content for path, content in self.tree.items() if path.startswith(start)}
        return frozenset((path, b"" if path.endswith("/") else content) for path, content in shown.items())

    def write(self, folder: Path) -> Path:
        """Writes the files into an empty or new folder, which replaces the state that was written there before."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, content in self.tree.items():
            target = folder / path
            if path.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith(b"-> "):
                target.symlink_to(os.fsdecode(content[3:]))
            elif len(content) < LARGE:
                target.write_bytes(content)
            else:  # many states contain the same checkpoint
                written = folder.with_name(f"content-{hashlib.blake2b(content, digest_size=8).hexdigest()}")
                if not written.exists():
                    written.write_bytes(content)
                os.link(written, target)
        return folder


class Recorder:
    """Records a command that writes to a folder.

    Args:
        folder: The folder, which counts as durable with its present content.

    Example:
        >>> folder = Path("photos")
        >>> folder.mkdir()
        >>> with Recorder(folder) as recorder:
        ...     _ = (folder / "1.txt").write_text("abcd")
        >>> [state.tree for state in recorder.states()]
        [{}, {'1.txt': b''}, {'1.txt': b'ab'}, {'1.txt': b'abcd'}, {'1.txt': b'\\x00\\x00\\x00\\x00'}]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.whole: dict[str, set[bytes]] = {}
        """Contents that each file had under its name."""
        self._disk = Disk()
        self._nodes: dict[int, int] = {}
        self._count = 0
        self._unchanged: dict[int, tuple[int, int]] = {}
        self._moments: list[tuple[Disk, tuple[str, ...]]] = []
        self._patch = pytest.MonkeyPatch()
        self._is_observing = False

    def __enter__(self) -> Recorder:
        self._observe()
        self._disk.synced = dict(self._disk.content)
        self._disk.entries = {node: versions[-1:] for node, versions in self._disk.entries.items()}
        for name in CALLS:
            self._patch.setattr(os, name, self._wrap(name, getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._record_moment()

    def promise(self, name: str) -> None:
        """Records that the command has reported something, which must survive from now on."""
        self._record_moment()
        self.done.append(name)
        self._record_moment()

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            if self._is_observing:
                return call(*arguments, **options)
            self._record_moment()
            if name == "fsync":  # only recorded, because the disk of the tests may be slow
                self._sync(os.fstat(arguments[0]))
                return None
            result = call(*arguments, **options)
            self._observe()
            return result

        return observed

    def _record_moment(self) -> None:
        self._observe()
        self._moments.append((self._disk.copy(), tuple(self.done)))

    def _sync(self, status: os.stat_result) -> None:
        node = self._nodes.get(status.st_ino)
        if node in self._disk.entries:
            del self._disk.entries[node][:-1]
        elif node is not None:
            self._disk.synced[node] = self._disk.content[node]

    def _observe(self) -> None:
        self._is_observing = True
        seen: dict[int, int] = {}
        self._walk(self.folder, "", seen)
        for inode in self._nodes.keys() - seen.keys():  # the system may give the number to another file
            self._unchanged.pop(self._nodes[inode], None)
        self._nodes = seen
        self._is_observing = False

    def _walk(self, path: Path, name: str, seen: dict[int, int]) -> int:
        status = path.lstat()
        node = self._nodes.get(status.st_ino, -1)
        if node < 0:
            node = self._count = self._count + 1
        seen[status.st_ino] = node
        if stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(path))
            entries = {entry: self._walk(path / entry, f"{name}{entry}/", seen) for entry in names}
            versions = self._disk.entries.setdefault(node, [{}])
            if versions[-1] != entries:
                versions.append(entries)
        elif stat.S_ISLNK(status.st_mode):
            self._disk.links[node] = b"-> " + os.fsencode(os.readlink(path))
        else:
            version = status.st_mtime_ns, status.st_size
            if self._unchanged.get(node) != version:
                self._disk.content[node] = path.read_bytes()
                self._unchanged[node] = version
            self.whole.setdefault(name.rstrip("/"), set()).add(self._disk.content[node])
        return node

    def states(self) -> Iterator[State]:
        """Yields every distinct state that a power failure at any moment may leave, in the order of the moments."""
        found: set[tuple[Any, ...]] = set()
        for moment, (disk, done) in enumerate(self._moments):
            for tree in _possible_trees(disk):
                key = (done, *sorted((path, hash(content)) for path, content in tree.items()))
                if key not in found:
                    found.add(key)
                    yield State(tree, done, moment)


def _possible_trees(disk: Disk) -> Iterator[Tree]:
    root = next(iter(sorted(disk.entries)))
    for entries in _possible_entries(disk.entries):
        for kept in (0.0, 0.5, 1.0, ZEROS):
            yield dict(_tree(disk, entries, kept, root, ""))


def _possible_entries(versions: dict[int, list[Entries]]) -> Iterator[dict[int, Entries]]:
    """All changes lost, all kept, the first ones of a folder kept, and one change lost while later ones are kept."""
    durable = {node: entries[0] for node, entries in versions.items()}
    current = {node: entries[-1] for node, entries in versions.items()}
    yield durable
    for node, changes in versions.items():
        for number in range(1, len(changes)):
            if number < len(changes) - 1:
                yield {**current, node: changes[number]}
                yield {**durable, node: changes[number]}
            yield {**current, node: _without_change(changes, number)}
    yield current


def _without_change(versions: list[Entries], lost: int) -> Entries:
    """Returns the entries with all changes except one."""
    entries = dict(versions[0])
    for number in range(1, len(versions)):
        before, after = versions[number - 1], versions[number]
        if number != lost:
            for name in before.keys() - after.keys():
                entries.pop(name, None)
            entries |= {name: node for name, node in after.items() if before.get(name) != node}
    return entries


def _tree(disk: Disk, entries: dict[int, Entries], kept: float, node: int, path: str) -> Iterator[tuple[str, bytes]]:
    for name, child in entries[node].items():
        if child in entries:
            files = list(_tree(disk, entries, kept, child, f"{path}{name}/"))
            yield from files or [(f"{path}{name}/", b"")]
        elif child in disk.links:
            yield f"{path}{name}", disk.links[child]
        else:
            yield f"{path}{name}", _kept_part(disk.synced.get(child, b""), disk.content[child], kept)


def _kept_part(synced: bytes, current: bytes, kept: float) -> bytes:
    """Returns the synced content and a part of the change since then."""
    common = len(synced) if current.startswith(synced) else 0
    if kept == 0:
        return synced
    if kept == ZEROS:
        return current[:common] + bytes(len(current) - common)
    return current[: common + round(kept * (len(current) - common))]


def _up_to_hidden(path: str) -> str:
    """Shortens a path in a hidden folder to the hidden folder."""
    parts = path.split("/")
    hidden = next((index for index, part in enumerate(parts[:-1]) if part.startswith(".")), None)
    return path if hidden is None else "/".join(parts[: hidden + 1]) + "/"


def is_hidden(path: str) -> bool:
    """Whether a file is hidden, or in a hidden folder, as all incomplete files are."""
    return any(part.startswith(".") for part in path.split("/"))


def assert_whole(recorder: Recorder, state: State, *, appended: tuple[str, ...] = ()) -> None:
    """Checks that every file under its own name is complete.

    Args:
        recorder: The recorder of the state.
        state: The state.
        appended: Ends of the names of files that may be incomplete, because the program appends to them.
    """
    for path, content in state.tree.items():
        if not path.endswith(("/", *appended)) and not is_hidden(path) and not content.startswith(b"-> "):
            assert content in recorder.whole[path], f"{path} is incomplete after call {state.after}"
