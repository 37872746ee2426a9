"""Temporary files of a run: `RUN/tmp/ID/`, owned by the process that holds `RUN/tmp/ID.lock`.

A step of work has one such folder for all of its files: a lock takes longer than a small file.

The lock is held before its folder is made and until the folder is gone, and the kernel releases the
locks of a dead process. So a lock that is free here has an owner that was killed, and nothing else
in a run's folder is ever taken for a temporary file. A finished file is renamed from here into its
folder of the same file system.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from datamask.errors import RunError
from datamask.storage.file_locks import held
from datamask.storage.names import inside

logger = logging.getLogger(__name__)

FOLDER = "tmp"

_LOCK = re.compile(r"[0-9a-f]{32}\.lock")


class _Shared:
    """The folder of a step of work, made by its first temporary file."""

    def __init__(self, root: Path) -> None:
        self.root, self._making = root, threading.Lock()
        self._folder: Path | None = None
        self._cleanup = contextlib.ExitStack()

    def folder(self) -> Path:
        with self._making:
            if self._folder is None:
                self._folder = self._cleanup.enter_context(_own_folder(self.root))
            return self._folder

    def close(self) -> None:
        self._cleanup.close()


_shared: ContextVar[_Shared] = ContextVar("shared")


@contextlib.contextmanager
def shared_folder(root: Path) -> Iterator[None]:
    """Within the block, temporary folders of this context and its copies have one lock."""
    shared = _Shared(root)
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)
        shared.close()


@contextlib.contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """Yield an empty folder below the run's folder *root*; delete it after the block.

    Raises:
        StorageError: its lock cannot be made.
        RunError: `tmp/` is a link out of the run.
    """
    shared = _shared.get(None)
    if shared is None or shared.root != root:
        with _own_folder(root) as folder:
            yield folder
        return
    folder = shared.folder() / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        try:
            folder.rmdir()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_folder(root: Path) -> Iterator[Path]:
    folder = inside(root, f"{FOLDER}/{uuid.uuid4().hex}")
    try:
        # It waits if `remove_orphans` looks at the lock before this process holds it.
        with held(folder.with_name(f"{folder.name}.lock"), None, str(root)):
            try:
                folder.mkdir()
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # Another block may have a folder there.


def remove_orphans(root: Path) -> list[Path]:
    """Delete the temporary folders of killed processes; return their paths.

    For a run at a URL, *root* is the folder of its copies on this machine.
    """
    home, orphans = root / FOLDER, []
    locks = [] if home.is_symlink() else [*home.glob("*.lock")]
    for lock in locks:
        folder = lock.with_suffix("")
        is_ours = _LOCK.fullmatch(lock.name) and lock.is_file()  # This also excludes pipes.
        if not is_ours or lock.is_symlink() or folder.is_symlink():
            continue
        # A living process holds it, or has just deleted it.
        with contextlib.suppress(RunError), held(lock, False, str(root)) as is_locked:
            if is_locked and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                orphans.append(folder)
    if orphans:
        logger.info("temporary files of %d killed processes removed", len(orphans))
    return orphans
