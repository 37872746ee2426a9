"""Read every byte of a run and compare it with what was written.

Receipts say what a file was made from; only its checksum says that it still is what was made. A
corrupt file is moved aside (`.corrupt` is appended to its name), so that to everyone it is missing
and the next launch makes it again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datamask.pipeline import stages_of
from datamask.store import Run, noted_sha256, sha256_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Args:
        files: how many were read.
        bytes: their size.
        corrupt: those that are not as written, with the reason.
    """

    files: int
    bytes: int
    corrupt: tuple[tuple[Path, str], ...]


def verify(run: Run, progress: Callable[[Path], None] | None = None) -> Verification:
    """Check all finished files of a run; corrupt ones are moved aside.

    A mask whose curve is corrupt goes with it, for both are made together.

    Args:
        run: the run; its plan and run.json are checked too.
        progress: called with every file before it is read.
    """
    corrupt: list[tuple[Path, str]] = []
    files = size = 0
    for path, noted, companions in _files(run):
        if not path.exists():
            continue
        if progress is not None:
            progress(path)
        files += 1
        size += path.stat().st_size
        reason = problem(path, noted)
        if reason:
            corrupt.append((path, reason))
            for spoilt in (path, *companions):
                if spoilt.exists():
                    os.replace(spoilt, spoilt.with_name(spoilt.name + ".corrupt"))
            if path == run.plan_path:
                break  # without it nobody knows which files there should be
    return Verification(files, size, tuple(corrupt))


def problem(path: Path, noted: str) -> str:
    """Why a file is not what was written; empty if it is.

    Args:
        path: the file.
        noted: the SHA-256 of what was written; empty where none was found.
    """
    if not noted:
        return "its checksum is missing"
    found = sha256_of(path)
    return "" if found == noted else f"SHA-256 is {found[:12]}…, {noted[:12]}… was written"


def _files(run: Run) -> Iterator[tuple[Path, str, tuple[Path, ...]]]:
    """Files to check, their SHA-256 as noted, and the files that are of no use without them."""

    def ours(path: Path, *companions: Path) -> tuple[Path, str, tuple[Path, ...]]:
        return path, noted_sha256(run.root, path), companions

    yield ours(run.plan_path)
    for stage in stages_of(run.settings):
        for unit in range(run.num_units(stage)):
            path = run.path(stage, unit)
            if stage == "masks":
                yield ours(run.curve_path(unit), path)
            if stage == "report":
                for pattern in ("report/*.parquet", "pictures/*.png"):
                    for companion in sorted(run.root.glob(pattern)):
                        yield ours(companion, path)
            if path.is_file():
                yield ours(path)
            if stage == "publication":
                for file, noted in _published(path):
                    yield run.root / "publication" / file, noted, (path,)


def _published(path: Path) -> list[tuple[str, str]]:
    """The files of publication/ and their SHA-256, as published.json tells them."""
    try:
        return [(file["path"], file["sha256"]) for file in json.loads(path.read_text())["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # moved aside just now, or not there yet
