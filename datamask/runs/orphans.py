"""Temporary files that a killed process has left in a run.

A file is written next to its final name by somebody who holds the lock of a unit of work
(`runs.locks`). The kernel releases the locks of a process that dies, so a temporary file that
no held lock can belong to has no owner. Files are listed before the locks are looked at: what is
begun meanwhile has another name and is not on the list.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_UNIT = re.compile(r"-(\d{5,})\.lock$")
"""Ends the name of the lock of one shard's work; those of other work may own any file."""

_TEMPORARY = re.compile(r"\..+\.tmp(\.wal)?$")
"""A file of `replace_file`, or the log that DuckDB keeps next to a database it writes."""

_UNLOCKED = ("sweep",)
"""Folders that are written without a lock."""


def remove_orphans(folder: Path) -> list[Path]:
    """Delete temporary files and folders of processes that are dead; call while working in a run.

    Args:
        folder: of the run; of one at a URL, that of its copies on this machine.

    Returns:
        What was deleted.
    """
    found = list(_temporary(folder))
    held = _held(folder / "locks") if found else []
    if None in held:
        return []
    orphans = [
        path
        for path in found
        if not any(unit in str(path.relative_to(folder)) for unit in held if unit is not None)
    ]
    for path in orphans:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if orphans:
        logger.info("%d temporary files of killed processes removed", len(orphans))
    return orphans


def _temporary(folder: Path) -> Iterator[Path]:
    """Files of `replace_file` and of copies of a store's, and folders of `out_of_core`."""
    for place, folders, names in os.walk(folder):
        if place == str(folder):
            yield from (folder / name for name in folders if name.startswith(".duckdb-"))
            folders[:] = [name for name in folders if name not in _UNLOCKED and name[0] != "."]
        yield from (Path(place, name) for name in names if _TEMPORARY.match(name))


def _held(folder: Path) -> list[str | None]:
    """Of each lock that is held, or cannot be asked: its shard as in file names, None for all."""
    held: list[str | None] = []
    for path in folder.glob("*.lock"):
        if path.name == "run.lock":
            continue  # shared by all who work
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # released just now
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            unit = _UNIT.search(path.name)
            held.append(unit[1] if unit else None)
        finally:
            os.close(handle)
    return held
