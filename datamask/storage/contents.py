"""Describe a run's files to a storage: their records, receipts and owners."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

UNCHECKED = ("run.json", "records/", "logs/")
"""Names, or prefixes of names, of small files without a checksum."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that somebody else may have written.

    Raises:
        ValueError: it is not JSON, or its brackets are nested deeper than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets nested too deep") from None


ReadFingerprint = Callable[[Path | str | IO[bytes]], str]
"""Function that reads the fingerprint in a file, or in an open Parquet file; it may raise
CorruptFileError."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an output.

    Args:
        sha256: of the output and of the files that are made with it, by name.
        work: record of the unit that made it (`runs.records.WorkRecord`); empty if unknown.
    """

    sha256: dict[str, str] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: bytes) -> Record:
        """Parse the record in a file; a damaged file gives an empty record."""
        try:
            content = parse_json(text)
            return cls(dict(content["sha256"]), dict(content["work"]))
        except (ValueError, KeyError, TypeError):
            return cls()

    def with_sha256(self, name: str, sha256: str) -> Record:
        """Return the record with the SHA-256 of one more file."""
        return replace(self, sha256={**self.sha256, name: sha256})

    @property
    def text(self) -> str:
        """Return the content of a record's file."""
        return json.dumps({"sha256": self.sha256, "work": self.work}, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class Contents:
    """Functions that describe files to the storage that holds them.

    Args:
        fingerprint_in: reads the fingerprint in a file.
        owner_of: takes the name of a file that was written with another, and returns the other's
            name; empty for a file on its own.
    """

    fingerprint_in: ReadFingerprint
    owner_of: Callable[[str], str]

    def record_name(self, name: str) -> str:
        """Return the name of a file's record."""
        return f"records/{self.owner_of(name) or name}.json"
