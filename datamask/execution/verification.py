"""Read every byte of a run, from its store if it is at a URL, and compare it with its checksum.

A receipt says what a file was made from; only the checksum says that its bytes are unchanged. A
corrupt file is renamed (`.corrupt` is appended to its name), so that it counts as missing and
the next launch makes it again. In a run that this user may only read, it is only reported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.source.originals import FOLDER
from datamask.storage.contents import parse_json
from datamask.storage.local import Storage
from datamask.storage.names import inside

AT_ONCE = 8
"""Number of files read at once."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Number and size of the files read, corrupt ones with reasons; True if they may be renamed."""

    files: int
    bytes: int
    corrupt: tuple[tuple[str, str], ...]
    may_write: bool


def verify(run: Run) -> Verification:
    """Check all files of a run that have a checksum; move corrupt ones aside.

    If a companion file is corrupt, the file that it belongs to is moved too, because one unit of
    work makes both.
    """
    corrupt: list[tuple[str, str]] = []
    files, size, may_write = 0, 0, os.access(run.root, os.W_OK)
    # The plan comes first, because it determines which files there should be.
    for items in ([_File("plan.parquet", "settings")], _files(run)):
        for file, length, reason in _checked(run.storage, items):
            files += 1
            size += length
            if reason and (not may_write or (reason := _set_aside(run, file))):
                corrupt.append((file.name, reason))
        if corrupt:
            break
    return Verification(files, size, tuple(corrupt), may_write)


@dataclass(frozen=True, slots=True)
class _File:
    """A file to check, and the lock that protects it."""

    name: str
    lock: str
    noted: str | None = None
    """The file's SHA-256, if that is not in `records/`."""
    companions: tuple[str, ...] = ()
    """Files that are useless without it."""


def _checked(storage: Storage, files: Iterable[_File]) -> Iterator[tuple[_File, int, str]]:
    """Yield each existing file, its size, and its problem (empty if it has none)."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Take portions, so that later files see what was renamed.
        rest = iter(files)
        while portion := list(itertools.islice(rest, 16 * AT_ONCE)):
            problems = pool.map(lambda file: _problem(storage, file), portion)
            pairs = zip(portion, problems, strict=True)
            yield from ((file, *outcome) for file, outcome in pairs if outcome)


def _problem(storage: Storage, file: _File) -> tuple[int, str] | None:
    """Return a file's size and its problem ("" if it has none); None if there is no such file."""
    noted = storage.noted_sha256(file.name) if file.noted is None else file.noted
    try:
        digest, size = storage.sha256(file.name)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return 0, "a folder is in its place"
    if not noted:
        return size, "its checksum is missing"
    same = digest == noted
    return size, "" if same else f"SHA-256 is {digest[:12]}…, {noted[:12]}… was written"


def _set_aside(run: Run, file: _File) -> str:
    """Move a corrupt file aside; return its problem, or "" if it was just being replaced."""
    with run.storage.lock(file.lock):
        _, reason = _problem(run.storage, file) or (0, "")
        for spoilt in (file.name, *file.companions) if reason else ():
            run.storage.set_aside(spoilt)
    return reason


def _files(run: Run) -> Iterator[_File]:
    """Yield all files to check, except the plan: outputs, then other files of the run."""
    known = {"plan.parquet"}
    for file in _outputs(run):
        known |= {file.name, *file.companions}
        yield file
    # Converted copies and labels. Files that another version or other settings made are here too.
    others = {*run.storage.on_record(), *run.storage.list(FOLDER, "*.parquet")}
    for name in sorted(others - known):
        yield _File(name, "settings")


def _outputs(run: Run) -> Iterator[_File]:
    """Yield the files of all stages."""
    for stage in stages_of(run.settings):
        for unit in range(run.num_units(stage)):
            name = run.name(stage, unit)
            lock = run.lock_of(stage, unit)
            for companion in run.beside(stage, unit):
                yield _File(companion, lock, companions=(name,))
            yield _File(name, lock)
            if stage == "publication":
                for inner, noted in _published(run):
                    file = f"publication/{inner}"
                    if not inside(run.root, file).is_symlink():  # Its file was checked above.
                        yield _File(file, lock, noted, (name,))


def _published(run: Run) -> list[tuple[str, str]]:
    """List the files of publication/ and their SHA-256, by published.json if it is readable."""
    _, reason = _problem(run.storage, _File(run.name("publication"), "")) or (0, "missing")
    if reason:
        return []
    try:
        files = parse_json(run.path("publication").read_bytes())["files"]
        return [(str(file["path"]), str(file["sha256"])) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        return []
