"""Temporary files that a killed process has left in a run.

A process writes a file next to its final name while it holds the lock of a unit of work
(`runs.locks`). The kernel releases the locks of a dead process, so a temporary file that belongs to
no held lock has no owner. Files are listed before locks are checked: files started later are not on
the list.
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
"""The end of a lock's name if it protects one shard's files; other locks may protect any file."""

_TEMPORARY = re.compile(r"\..+\.tmp(\.wal)?$")
"""A file of `replace_file`, or the log that DuckDB keeps next to a database it writes."""

_UNLOCKED = ("sweep",)
"""Folders that are written without a lock."""


def remove_orphans(folder: Path) -> list[Path]:
    """Delete temporary files and folders of dead processes; call while working in a run.

    For a run at a URL, *folder* is that of its copies on this machine. Returns the deleted paths.
    """
    found = list(_temporary(folder))
    held = _held(folder / "locks") if found else []

    def may_be_held(path: Path) -> bool:
        # DuckDB's folders do not say which unit they are of.
        return any(path.is_dir() or unit in str(path.relative_to(folder)) for unit in held)

    orphans = [path for path in found if not may_be_held(path)]
    for path in orphans:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if orphans:
        logger.info("%d temporary files of killed processes removed", len(orphans))
    return orphans


def _temporary(folder: Path) -> Iterator[Path]:
    """Temporary files of `replace_file` and of fetched copies; folders of `temporary_duckdb`."""
    for place, folders, names in os.walk(folder):
        if place == str(folder):
            yield from (folder / name for name in folders if name.startswith(".duckdb-"))
            folders[:] = [name for name in folders if name not in _UNLOCKED and name[0] != "."]
        yield from (Path(place, name) for name in names if _TEMPORARY.match(name))


def _held(folder: Path) -> list[str]:
    """The part of file names that each held lock protects: a shard's number, or "" for any file."""
    held = []
    for path in folder.glob("*.lock"):
        if path.name == "run.lock":
            continue  # every working process shares it
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # released just now
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            unit = _UNIT.search(path.name)
            held.append(unit[1] if unit else "")
        finally:
            os.close(handle)
    return held
