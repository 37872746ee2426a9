"""Locks between the processes of a machine, which the kernel releases when their holder dies.

A lock is a file held with flock(2), so a killed process leaves nothing to clean up, and NFSv4
shares locks between machines. On a file system without locks, work continues without them, after a
warning: files still appear whole or not at all.

A wait lasts as long as the holder lives, and the log names the holder every half minute. Everything
else is tried a bounded number of times.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from datamask.errors import RunError, StorageError
from datamask.storage.stopping import pause

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
SECONDS_BETWEEN_LINES = 30
MOST_TRIES = 1000
"""Maximum number of times that a lock's last holder may remove its file while this process locks
it."""
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextlib.contextmanager
def first_free(paths: list[Path]) -> Iterator[int]:
    """Hold exclusively the first of these locks that becomes free; yields its index."""
    logged = time.monotonic()
    while True:
        for index, path in enumerate(paths):
            handle = _try(path, fcntl.LOCK_EX)
            if handle is not None:
                try:
                    yield index
                finally:
                    _release(path, handle)
                return
        if time.monotonic() - logged >= SECONDS_BETWEEN_LINES:
            logged = time.monotonic()
            holders = ", ".join(_holder(path) for path in paths)
            logger.info("waiting for one of %d locks in %s: %s", len(paths), path.parent, holders)
        pause(POLL_SECONDS)


@contextlib.contextmanager
def held(path: Path, shared: bool | None, address: str) -> Iterator[bool]:
    """Hold a lock file, see `Storage.lock`; yield True if the file system could lock it.

    Raises:
        RunError: *shared* is False, and a process holds it.
        StorageError: the file cannot be created.
    """
    logged = time.monotonic() - SECONDS_BETWEEN_LINES
    while (handle := _try(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)) is None:
        holder = _holder(path)
        if shared is False:
            raise RunError(
                f"{address}: {holder} is working in it; wait until it ends, or stop it, then "
                "relaunch"
            )
        if time.monotonic() - logged >= SECONDS_BETWEEN_LINES:
            logged = time.monotonic()
            logger.info("%s: waiting for %s", path.stem, holder)
        pause(POLL_SECONDS)
    try:
        yield handle >= 0
    finally:
        _release(path, handle)


def _try(path: Path, kind: int) -> int | None:
    """Lock the file; return its descriptor, None if it is held, −1 without file locks.

    Raises:
        StorageError: the file cannot be created, or is removed MOST_TRIES times.
    """
    problem = ""
    for _ in range(MOST_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except (FileNotFoundError, FileExistsError) as error:
            problem = f"{error.filename}: {error.strerror}"
            continue  # A failed launch may just have removed the folder.
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StorageError(f"{path}: a lock cannot be a symbolic link; delete it") from None
            raise
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in _BUSY:
                return None
            if error.errno in _UNSUPPORTED:
                logger.warning("%s: this file system has no locks; continuing without", path)
                return -1
            raise
        # If its last holder has removed the file, this lock protects nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                _write_name(handle, kind)
                return handle
        problem = "removed again and again"
        os.close(handle)
    raise StorageError(
        f"{path}: this lock file cannot be made ({problem}); check that its disk is mounted and "
        "that its folder, or the link to it, exists"
    )


def _write_name(handle: int, kind: int) -> None:
    """Write this process's name into a lock that it holds; a full disk leaves it empty."""
    with contextlib.suppress(OSError):
        if kind == fcntl.LOCK_EX:
            os.ftruncate(handle, 0)
        if not os.fstat(handle).st_size:
            os.pwrite(handle, process_name().encode(), 0)


def _release(path: Path, handle: int) -> None:
    if handle < 0:
        return
    try:
        # Only the last holder can upgrade a shared lock; it removes the file.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            if os.pread(handle, 256, 0) == process_name().encode():
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def process_name() -> str:
    """Name this process in messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
