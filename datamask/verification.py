"""Read every byte of a run and compare it with what was written.

Receipts say what a file was made from; only its checksum says that it still is what was made. A
corrupt file is moved aside (`.corrupt` is appended to its name), so that to everyone it is missing
and the next launch makes it again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datamask.pipeline import stages_of
from datamask.store import Run, checksum_path, sha256_of

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
    for path, companions in _files(run):
        if not path.exists():
            continue
        if progress is not None:
            progress(path)
        files += 1
        size += path.stat().st_size
        reason = problem(run.root, path)
        if reason:
            corrupt.append((path, reason))
            for spoilt in (path, *companions):
                if spoilt.exists():
                    os.replace(spoilt, spoilt.with_name(spoilt.name + ".corrupt"))
            if path == run.plan_path:
                break  # without it nobody knows which files there should be
    return Verification(files, size, tuple(corrupt))


def problem(root: Path, path: Path) -> str:
    """Why a file is not what was written; empty if it is."""
    try:
        noted = checksum_path(root, path).read_text().split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return "its checksum is missing"
    found = sha256_of(path)
    return "" if found == noted else f"SHA-256 is {found[:12]}…, {noted[:12]}… was written"


def _files(run: Run) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """Files to check, and the files that are of no use without them."""
    yield run.plan_path, ()
    for stage in stages_of(run.settings):
        for unit in range(run.num_units(stage)):
            path = run.path(stage, unit)
            if stage == "masks":
                yield run.curve_path(unit), (path,)
            if path.is_file():
                yield path, ()
