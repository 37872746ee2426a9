"""Read every byte of a run and compare it with what was written.

Of a run at a URL the bytes are read from its store, whatever its mirror holds.

Receipts say what a file was made from; only its checksum says that it still is what was made. A
corrupt file is moved aside (`.corrupt` is appended to its name), so that to everyone it is missing
and the next launch makes it again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from datamask.runs import locks
from datamask.runs.files import noted_sha256, sha256_of
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.location import here, remote_folder
from datamask.storage.remote import RemoteFolder

AT_ONCE = 8
"""Objects read at once."""


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
    folder = remote_folder(run.root) or LocalFolder(run.root)
    corrupt: list[tuple[Path, str]] = []
    files = size = 0
    # Without the plan nobody knows which files there should be.
    for items in ([_File(run.plan_path, ("settings", None))], _files(run, folder)):
        for file, length, reason in _checked(folder, items, progress):
            files += 1
            size += length
            if reason and (reason := _set_aside(run, folder, file)):
                corrupt.append((file.path, reason))
        if corrupt:
            break
    return Verification(files, size, tuple(corrupt))


class LocalFolder:
    """A run on this machine's disk; `RemoteFolder` answers the same for one in a store.

    Args:
        root: its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, path: Path) -> bool:
        """Whether a file is there."""
        return path.is_file()

    def sha256(self, path: Path) -> tuple[str, int]:
        """The SHA-256 of its bytes, and their number."""
        return sha256_of(path), path.stat().st_size

    def noted_sha256(self, path: Path) -> str:
        """The SHA-256 of what was written; empty if none was noted."""
        return noted_sha256(self.root, path)

    def names(self, folder: Path, pattern: str) -> list[Path]:
        """The files in a folder whose names fit a glob."""
        return sorted(folder.glob(pattern))

    def set_aside(self, path: Path) -> None:
        """Append `.corrupt` to its name."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, path.with_name(path.name + ".corrupt"))


@dataclass(frozen=True, slots=True)
class _File:
    """A file to check.

    Args:
        path: where it is.
        work: the stage and the unit whose work it is part of.
        noted: its SHA-256, if that is not in `checksums/`.
        companions: files of no use without it.
    """

    path: Path
    work: tuple[str, int | None]
    noted: str | None = None
    companions: tuple[Path, ...] = ()


def _checked(
    folder: LocalFolder | RemoteFolder,
    files: Iterable[_File],
    progress: Callable[[Path], None] | None,
) -> Iterator[tuple[_File, int, str]]:
    """Each file that is there, its size, and what is wrong with it."""

    def check(file: _File) -> tuple[_File, int, str] | None:
        if progress is not None and folder.exists(file.path):
            progress(file.path)
        found = _problem(folder, file)
        return None if found is None else (file, *found)

    if isinstance(folder, LocalFolder):
        yield from filter(None, map(check, files))
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # In portions, so that what is moved aside is seen by what comes after it.
        rest = iter(files)
        while portion := list(itertools.islice(rest, 16 * AT_ONCE)):
            yield from filter(None, pool.map(check, portion))


def _problem(folder: LocalFolder | RemoteFolder, file: _File) -> tuple[int, str] | None:
    """A file's size and what is wrong with it; None if it is not there."""
    noted = folder.noted_sha256(file.path) if file.noted is None else file.noted
    try:
        found, size = folder.sha256(file.path)
    except FileNotFoundError:
        return None
    if not noted:
        return size, "its checksum is missing"
    same = found == noted
    return size, "" if same else f"SHA-256 is {found[:12]}…, {noted[:12]}… was written"


def _set_aside(run: Run, folder: LocalFolder | RemoteFolder, file: _File) -> str:
    """Move a corrupt file aside; why, empty if it was only being replaced when it was read."""
    with locks.unit_of_work(run.root, *file.work):
        _, reason = _problem(folder, file) or (0, "")
        for spoilt in (file.path, *file.companions) if reason else ():
            folder.set_aside(spoilt)
    return reason


def _files(run: Run, folder: LocalFolder | RemoteFolder) -> Iterator[_File]:
    """Files to check but for the plan."""
    for stage in stages_of(run.settings):
        for unit in range(run.num_units(stage)):
            path = run.place(stage, unit)
            work = run.lock_of(stage, unit)
            if stage == "masks":
                yield _File(run.root / "curves" / path.name, work, companions=(path,))
            if stage == "report":
                for pattern in ("report/*.parquet", "pictures/*.png"):
                    place, _, names = pattern.partition("/")
                    for companion in folder.names(run.root / place, names):
                        yield _File(companion, work, companions=(path,))
            yield _File(path, work)
            if stage == "publication":
                for name, noted in _published(here(path)):
                    file = run.root / "publication" / name
                    if not file.is_symlink():  # what a link leads to has been checked above
                        yield _File(file, work, noted, (path,))


def _published(path: Path) -> list[tuple[str, str]]:
    """The files of publication/ and their SHA-256, as published.json tells them."""
    try:
        return [
            (file["path"], file["sha256"])
            for file in json.loads(path.read_text(encoding="utf-8"))["files"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # moved aside just now, or not there yet
