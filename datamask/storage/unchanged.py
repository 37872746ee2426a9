"""Guard local files that a library opens by itself: they must be as planning saw them, throughout.

Files that this package reads itself are compared by `source.opening`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from datamask.errors import InputError
from datamask.storage.local import sha256_of

State = tuple[int, int, int]
"""The size of a file in bytes, and when its content and its inode last changed, in nanoseconds."""

LFS = b"version https://git-lfs"
"""The beginning of what git checks out in place of a file if git-lfs is not installed."""


DIGITS = 32
"""Hexadecimal digits of a digest."""


def state_of(facts: os.stat_result) -> State:
    """Return values that change with the file, even if its modification time is set back."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def not_as_planned(path: object, shard: int | None = None) -> InputError:
    """Return the error about a file that has changed since planning; *shard* for a source file."""
    remedy = "relaunch, so that it is planned again"
    if shard is not None:
        remedy = "plan a new run in another folder"
    problem = f"has changed since the run was planned; restore it, or {remedy}"
    return InputError(problem, path=path, shard=shard)


def sha256_at(path: str) -> str:
    """Return the SHA-256 of a file, computed once per process while the file is unchanged."""
    return _sha256_in(path, state_of(os.stat(path)))


def content_digest(path: str) -> str:
    """Return 32 hexadecimal digits that identify the content of a local file."""
    return sha256_at(path)[:DIGITS]


@functools.lru_cache(maxsize=4096)
def _sha256_in(path: str, state: State) -> str:
    return sha256_of(Path(path))[0]


@contextlib.contextmanager
def pinned(path: str, planned: str | None, digest_of: Callable[[str], str]) -> Iterator[str]:
    """Guard a block that reads a local file or folder; yields its digest.

    Args:
        path: of the file or folder.
        planned: its digest when the run was planned; None if there is none to compare with.
        digest_of: computes the digest of a path.

    Raises:
        InputError: the digest is not the planned one, or a file has changed within the block.
    """
    before = _states(path)
    digest = digest_of(path)
    if planned not in (None, digest):
        raise not_as_planned(path)
    yield digest
    if _states(path) != before:
        raise not_as_planned(path)


def _states(path: str) -> dict[str, State]:
    """The states of a file, or of all files in a folder."""
    paths = [path]
    if os.path.isdir(path):
        paths = [str(file) for file in Path(path).rglob("*") if file.is_file()]
    return {name: state_of(os.stat(name)) for name in paths}


def check_pointer(beginning: bytes, path: str, shard: int | None = None) -> None:
    """Raise InputError if a file begins as a pointer of git-lfs does."""
    if bytes(beginning).startswith(LFS):
        problem = "a pointer of git-lfs, not the file; install git-lfs and run `git lfs pull` there"
        raise InputError(problem, path=path, shard=shard)


def check_local(path: str, name: str) -> None:
    """`check_pointer` for a local file, which messages call *name*."""
    with open(path, "rb") as file:
        check_pointer(file.read(len(LFS)), name)


class HashedReader(io.RawIOBase):
    """Bytes of a file, hashed as they are read; once it has ended for a reader, it stays so."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._hash, self._ended = raw, hashlib.sha256(), False

    def readable(self) -> bool:
        """Return True, as a reader's wrapper asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return their number, 0 at the end."""
        # A file that is being written can end early and go on later: no reader got the rest.
        block = b"" if self._ended else self._raw.read(len(buffer))
        self._ended = not block
        self._hash.update(block)
        buffer[: len(block)] = block
        return len(block)

    def digest(self) -> str:
        """Read the rest of the file and return the digest of all of it."""
        while not self._ended and (block := self._raw.read(2**20)):
            self._hash.update(block)
        return self._hash.hexdigest()[:DIGITS]
