"""Checks of the run's folder: it is not inside its own source and has enough free disk space."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from pathlib import Path

from datamask.config.settings import Settings
from datamask.errors import RunError, StorageError
from datamask.runs.stages import STAGES
from datamask.source.opening import is_remote
from datamask.storage.protocol import Storage


def folder_problems(storage: Storage, settings: Settings) -> Iterator[RunError]:
    """Whether the run's own files would be found as its input at the next launch."""
    paths = {"source.path": settings.source.path}
    for index, score in enumerate(settings.quality.scores):
        if score.kind in ("file", "probe", "examples"):
            paths[f"quality.scores.{index}.path"] = score.path or score.labels
    address = storage.address
    home = address.split("/") if is_remote(address) else list(storage.root.resolve().parts)
    for key, path in paths.items():
        if not path or "\0" in path:
            continue  # reported when its files were listed
        pattern = _pattern(path)
        if any(_matches(pattern, [*home, *output]) for output in _OUTPUTS):
            yield RunError(
                f"{address}: inside {key} ({path}), where its files would count as input; use a "
                "folder elsewhere"
            )


_OUTPUTS = [
    ("plan.parquet",),
    *((folder, "**") for folder in ("converted", "report", "sweep", "publication", "totals")),
    *(
        tuple(stage.file.split("/")) if stage.file else (name, "**")
        for name, stage in STAGES.items()
    ),
]
"""The files of a run, below its folder; `**` is any file."""


def _pattern(path: str) -> list[str]:
    """A path of the settings as the parts of a glob; `**` stands for the files of a folder."""
    if is_remote(path):
        parts = path.rstrip("/").split("/")
        return parts if glob.has_magic(path) else [*parts, "**"]
    parts = list(Path(path).parts)
    # A listing follows links only before the first wildcard.
    static = len(parts)
    if not os.path.exists(path):
        static = next((place for place, part in enumerate(parts) if glob.has_magic(part)), static)
    resolved = Path(os.path.realpath(Path(*parts[:static]))).parts
    rest = ["**"] if os.path.isdir(path) else parts[static:]
    return [*map(glob.escape, resolved), *rest]


def _matches(pattern: list[str], path: list[str]) -> bool:
    """Whether a glob matches a path; if the path ends with `**`, any file below the rest of it."""
    if not path or not pattern:
        return not path and all(part == "**" for part in pattern)
    if path[0] == "**":
        return True
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or _matches(pattern, path[1:])
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


def room_problems(storage: Storage, disk: dict[str, int]) -> Iterator[StorageError]:
    """Whether the disk has space for the run's files (estimated bytes by folder)."""
    free, needed = storage.free_bytes(), sum(disk.values())
    if free < needed:
        yield StorageError(
            f"{storage.address}: about {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB "
            "free; free some, use another disk, a larger quality.prune_fraction or a smaller "
            "selection.ratio"
        )
