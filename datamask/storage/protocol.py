"""The storage of a run's files, on a disk or in an object store.

Files are named by their path within the run, such as `selection/00017.parquet`. Code works on local
paths: `fetch` gives the path of a file's current version, and `put` makes a finished local file the
current version. A file exists whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol

UNCHECKED = ("run.json", "records/", "logs/", "sweep/")
"""Names, or prefixes of names, of small files without a checksum."""

ReadFingerprint = Callable[[Path | str | IO[bytes]], str]
"""Reads the fingerprint in a file, or in an open Parquet file, or raises CorruptFileError."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is on record of an output.

    Args:
        sha256: of the output and of the files that are made with it, by name.
        work: of the unit that made it (`runs.records.WorkRecord`); empty if nothing is known.
    """

    sha256: dict[str, str] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: bytes) -> Record:
        """The record in a file; an empty one if the file is damaged."""
        try:
            content = json.loads(text)
            return cls(dict(content["sha256"]), dict(content["work"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls()

    def with_sha256(self, name: str, sha256: str) -> Record:
        """The record with the SHA-256 of a file."""
        return replace(self, sha256={**self.sha256, name: sha256})

    @property
    def text(self) -> str:
        """The content of a record's file."""
        return json.dumps(asdict(self), sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a storage needs to know of the files that it stores.

    Args:
        fingerprint_in: reads the fingerprint in a file.
        owner_of: from the name of a file that was written with another to the name of that;
            empty for a file on its own.
    """

    fingerprint_in: ReadFingerprint
    owner_of: Callable[[str], str]

    def record_name(self, name: str) -> str:
        """The name of the record of a file."""
        return f"records/{self.owner_of(name) or name}.json"


class Storage(Protocol):
    """The files of one run."""

    @property
    def root(self) -> Path:
        """The local folder that contains all local paths."""

    @property
    def address(self) -> str:
        """The run's folder or URL."""

    def fetch(self, name: str) -> Path:
        """The local path of a file; no file is there if the run has none of this name.

        A process compares each version of a file with its noted SHA-256 once.

        Raises:
            CorruptFileError: its bytes are not those that were written. In a folder, it is set
                aside.
        """

    def put(self, temporary: Path, name: str) -> None:
        """Move a local file to the run's file of that name; its SHA-256 is on record first."""

    def list(self, folder: str, pattern: str = "*") -> list[str]:
        """The names of the files directly in a folder that fit a glob, sorted."""

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""

    def set_aside(self, name: str) -> None:
        """Append `.corrupt` to a file's name if it exists."""

    def fingerprints(self, names: Iterable[str]) -> dict[str, str]:
        """The fingerprints of those files that now exist and are readable, by name."""

    def sha256(self, name: str) -> tuple[str, int]:
        """The SHA-256 and the number of a file's bytes, read from the storage itself.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def noted_sha256(self, name: str) -> str:
        """The SHA-256 recorded when the file was put; empty if none was."""

    def record(self, name: str) -> Record:
        """What is on record of a file now; empty if nothing is, or if the record is damaged."""

    def record_name(self, name: str) -> str:
        """The name of the file with the record of a file."""

    def lock(self, name: str, *, shared: bool | None = None) -> AbstractContextManager[object]:
        """Hold a lock of the run.

        Args:
            name: of the lock.
            shared: None: exclusive, waits for every holder. True: shared, waits for an exclusive
                holder. False: exclusive, does not wait for shared holders.

        Raises:
            RunError: *shared* is False, and a living process holds it.
        """

    def in_use(self, most_bytes: int, *, whole_run: bool) -> AbstractContextManager[object]:
        """Keep fetched files on this machine during a unit of work, and then *most_bytes* of them.

        *whole_run*: whether the work reads every shard.
        """

    def free_bytes(self) -> float:
        """Free space for more files; infinite if unknown."""
