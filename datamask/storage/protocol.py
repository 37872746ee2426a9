"""What a run needs of the place where its files live, on a disk or in an object store.

Files are named by their path within the run, such as `selection/00017.parquet`. What works with a
file works on a local path: `fetch` gives that of the version that counts, `put` makes a finished
file that version. A file is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

UNCHECKED = ("run.json", "work_records/", "logs/", "sweep/")
"""Names, or how they begin, of small files without a checksum."""

ReadFingerprint = Callable[[Path | IO[bytes]], str]
"""Reads the fingerprint in a file, or in an open Parquet file, or raises CorruptFileError."""


class Storage(Protocol):
    """The files of one run."""

    @property
    def root(self) -> Path:
        """The local folder that stands for the run; local paths are below it."""

    @property
    def address(self) -> str:
        """What users call the run: its folder or its URL."""

    def fetch(self, name: str) -> Path:
        """The local path of a file; nothing is there if the run has no such file.

        Raises:
            CorruptFileError: its bytes are not those that were written.
        """

    def put(self, temporary: Path, name: str) -> None:
        """Make a local file the run's file of that name, its checksum first; the file is moved."""

    def list(self, folder: str, pattern: str = "*") -> list[str]:
        """The names of the files directly in a folder that fit a glob, sorted."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def set_aside(self, name: str) -> None:
        """Append `.corrupt` to a file's name, if it is there."""

    def fingerprints(self, names: Iterable[str]) -> dict[str, str]:
        """The fingerprints of those files that are there now and readable, by name."""

    def sha256(self, name: str) -> tuple[str, int]:
        """The SHA-256 of a file's bytes, all of them read where the run lives, and their number.

        Raises:
            FileNotFoundError: it is not there.
        """

    def noted_sha256(self, name: str) -> str:
        """The SHA-256 that was noted when a file was put; empty if none was."""

    def lock(self, name: str, *, shared: bool | None = None) -> AbstractContextManager[object]:
        """Hold a lock of the run.

        Args:
            name: of the lock.
            shared: None: alone, waiting for its holder. True: together with others, waiting
                for who holds it alone. False: alone, without waiting for who shares it.

        Raises:
            RunError: *shared* is False, and a living process holds it.
        """

    def in_use(self, most_bytes: int, *, whole_run: bool) -> AbstractContextManager[object]:
        """While a unit of work goes on, what it fetched stays on this machine.

        Args:
            most_bytes: how many bytes may stay afterwards of files that can be fetched again.
            whole_run: it looks at every shard.
        """

    def free_bytes(self) -> float:
        """How much can still be put, as far as that is limited."""


def checksum_name(name: str) -> str:
    """Where the SHA-256 of a file is kept, in the format of `sha256sum`."""
    return f"checksums/{name}.sha256"
