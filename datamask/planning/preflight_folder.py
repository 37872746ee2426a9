"""Check the run's folder: it is a folder, outside its own source, and has free disk space."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from datamask.config.settings import Settings
from datamask.errors import RunError, StorageError
from datamask.runs.stages import STAGES
from datamask.source.opening import is_remote
from datamask.storage.local import Storage, nearest_folder


def check_folder(storage: Storage) -> None:
    """Refuse a run whose files could not be written.

    Raises:
        RunError: its place is a file or not writable.
    """
    folder = nearest_folder(storage.root)
    if not folder.is_dir():
        problem = "is a file; name a folder, or one that is not there yet"
    elif not os.access(folder, os.W_OK):
        problem = "is not writable; use another folder"
    else:
        return
    raise RunError(f"{storage.address}: {folder} {problem}")


def folder_problems(storage: Storage, settings: Settings) -> Iterator[RunError]:
    """Yield an error if the next launch would find the run's own files as its input."""
    from fsspec.utils import glob_translate  # This imports asyncio.

    paths = {"source.path": settings.source.path}
    for index, score in enumerate(settings.quality.scores):
        for name, path in score.places.items():
            paths[f"quality.scores.{index}.{name}"] = path
    address = storage.address
    home = address if is_remote(address) else str(storage.root.resolve())
    for key, path in paths.items():
        if not path:
            continue
        try:
            pattern = re.compile(glob_translate(_pattern(path)))
        except ValueError:
            continue  # This was reported when its files were listed.
        if any(pattern.match(f"{home}/{output}") for output in _OUTPUTS):
            yield RunError(
                f"{address}: inside {key} ({path}), where its files would count as input; use a "
                "folder elsewhere"
            )


_OUTPUTS = [
    *("plan.parquet", "converted/0.parquet", "report/sample.parquet"),
    *(stage.file.format(0) or f"{name}/00000.parquet" for name, stage in STAGES.items()),
    *("round/01/00000.parquet", "evaluation/training/00000.parquet"),
    *("subset/train-00000-of-00001.parquet", "publication/data/a/train-00000-of-00001.parquet"),
]
"""Names of files of a run, one of each kind."""


def _pattern(path: str) -> str:
    """Return a path of the settings as a glob of the files that are read."""
    if is_remote(path):
        return path if glob.has_magic(path) else f"{path.rstrip('/')}/**"
    parts = Path(path).parts
    # A listing follows links only before the first wildcard.
    static = len(parts)
    if not os.path.exists(path):
        static = next((index for index, part in enumerate(parts) if glob.has_magic(part)), static)
    resolved = glob.escape(os.path.realpath(Path(*parts[:static])))
    rest = ["**"] if os.path.isdir(path) else parts[static:]
    return "/".join([resolved, *rest])


def room_problems(storage: Storage, disk: dict[str, int]) -> Iterator[StorageError]:
    """Yield an error if the disk lacks space for the run's files (estimated bytes by folder)."""
    free, needed = storage.free_bytes(), sum(disk.values())
    if free < needed:
        yield StorageError(
            f"{storage.address}: about {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB "
            "free; free some, use another disk, a larger quality.prune_fraction or a smaller "
            "selection.ratio"
        )
