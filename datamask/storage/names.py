"""Find the path of a run's file. The run may be a stranger's, so no name or link may lead out."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from datamask.errors import RunError, is_utf8

_UNSAFE = re.compile(r"(^|/)(\.{0,2}|[^/]{256,})(/|$)|[\\\0-\x1f\x7f]")
"""Matches an empty name, `.`, `..`, a name that is too long, or a character that our names never
have."""


def is_plain(name: str) -> bool:
    """Return True if a name within a run consists of plain names, with / between them."""
    return not _UNSAFE.search(name) and is_utf8(name)


def inside(root: Path, name: str) -> Path:
    """Check and return the local path of the file *name* of the run in the folder *root*.

    Every path below a run that is written, or read by its name, comes from here. A symbolic link
    may lead to another file of the run, as the links in `publication/` do.

    Raises:
        RunError: the path is outside the run; or it leads to a pipe, socket or device, which would
            block the reader.
    """
    if not is_plain(name):
        raise RunError(
            f"{root}: {name!r} is not a name that a run's file can have; do not use this run"
        )
    path = str(root)
    for component in name.split("/"):
        path = f"{path}/{component}"
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                home, target = os.path.realpath(root), os.path.realpath(path)
                if not target.startswith(f"{home}/"):
                    raise RunError(
                        f"{path}: this symbolic link leads out of the run, to {target!r}; put a "
                        "file or folder there instead, or mount the other disk there"
                    )
                mode = os.stat(path).st_mode
        except OSError:
            break  # It does not exist, so nothing below it does.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RunError(
                f"{path}: a pipe, socket or device is in the place of a file; delete it, then run "
                "the same command again"
            )
    return root / name
