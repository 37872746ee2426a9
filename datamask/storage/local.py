"""The storage of a run in a folder of this machine, or on a disk that several machines share.

Files are named by their path within the run, such as `selection/00017.parquet`. Code works on local
paths: `fetch` gives the path of a file's current version, and `put` makes a finished local file the
current version. A file exists whole or not at all. `storage.remote` does the same in an object
store.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from datamask.errors import CorruptFileError, RunError
from datamask.storage.contents import UNCHECKED, Contents, Record
from datamask.storage.file_locks import held
from datamask.storage.names import inside

logger = logging.getLogger(__name__)


class Storage:
    """The files of one run: in the local folder *root*, at the folder or URL *address*."""

    def __init__(self, root: Path, contents: Contents, address: str = "") -> None:
        self.root = root
        self.address = address or str(root)
        self.record_name = contents.record_name
        self._fingerprint_in = contents.fingerprint_in

    def fetch(self, name: str) -> Path:
        """Return the local path of a file; nothing is there if the run has no file of this name.

        A process compares each version of a file with its recorded SHA-256 once.

        Raises:
            CorruptFileError: its bytes are not the bytes that were written. In a folder, the file
                is set aside.
        """
        path = inside(self.root, name)
        if name.startswith(UNCHECKED):
            return path
        for attempt in range(4):
            # A SHA-256 arrives just before its file, so the file may be about to be replaced.
            time.sleep(0.1 * attempt)
            problem = difference(path, lambda: self.noted_sha256(name))
            if not problem:
                return path
        with contextlib.suppress(OSError):  # This user may only read the run.
            self.set_aside(name)
        raise CorruptFileError(
            f"{path}: damaged ({problem}); it is set aside (.corrupt is appended to its name), and "
            "a relaunch makes it again (labels: the command `datamask label`)"
        )

    def put(self, temporary: Path, name: str) -> None:
        """Move a local file to the run's file of that name, after its SHA-256 has been recorded."""
        if not name.startswith(UNCHECKED):
            record = self.record(name).with_sha256(name, sha256_of(temporary)[0])
            path = inside(self.root, self.record_name(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = temporary.with_name(f"{temporary.name}.record")
            unfinished.write_text(record.text, encoding="utf-8")
            move_into_place(unfinished, path)
        # What an attempt notes about itself is never state.
        survives = not name.startswith(("records/", "logs/"))
        move_into_place(temporary, inside(self.root, name), survives=survives)

    def list(self, folder: str, pattern: str = "*") -> list[str]:
        """The names of the files directly in a folder that fit a glob, sorted."""
        return sorted(f"{folder}/{path.name}" for path in inside(self.root, folder).glob(pattern))

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        inside(self.root, name).unlink(missing_ok=True)

    def set_aside(self, name: str) -> None:
        """Append `.corrupt` to a file's name if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(inside(self.root, name), inside(self.root, f"{name}.corrupt"))

    def fingerprints(self, names: Iterable[str]) -> dict[str, str]:
        """Read the fingerprints of those files that now exist and are readable, by name."""
        fingerprints: dict[str, str] = {}
        here = functools.partial(inside, self.root)
        is_there = functools.cache(lambda name: os.path.isdir(here(name) if name else self.root))
        for name in names:
            if not is_there(name.rpartition("/")[0]):
                continue
            try:
                # A path would double the time of `status`.
                path = f"{self.root}/{name}"
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    here(name)
                fingerprints[name] = self._fingerprint_in(path)
            except FileNotFoundError:
                continue
            except CorruptFileError as error:
                logger.warning("%s; it will be made again", error)
        return fingerprints

    def sha256(self, name: str) -> tuple[str, int]:
        """Read a file from the storage itself; return its SHA-256 and its number of bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return sha256_of(inside(self.root, name))

    def noted_sha256(self, name: str) -> str:
        """Return the SHA-256 recorded when the file was put; empty if none was."""
        return self.record(name).sha256.get(name, "")

    def record(self, name: str) -> Record:
        """Read the record of a file; empty if there is none, or if it is damaged."""
        try:
            return Record.parsed(inside(self.root, self.record_name(name)).read_bytes())
        except OSError:
            return Record()

    def on_record(self) -> tuple[str, ...]:
        """List the names of all files with a record, sorted; the files may be gone."""
        folder = inside(self.root, "records")
        records = (path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))
        return tuple(sorted(name.removesuffix(".json") for name in records))

    def lock(self, name: str, *, shared: bool | None = None) -> AbstractContextManager[object]:
        """Hold a lock of the run.

        Args:
            name: of the lock.
            shared: None: exclusive, waits for every holder. True: shared, waits for an exclusive
                holder. False: exclusive, does not wait for shared holders.

        Raises:
            RunError: *shared* is False, and a living process holds it.
        """
        return held(inside(self.root, f"locks/{name}.lock"), shared, self.address)

    def in_use(self, most_bytes: int, *, whole_run: bool) -> AbstractContextManager[None]:
        """Keep fetched files on this machine during a unit of work, and then *most_bytes* of them.

        *whole_run*: True if the work reads every shard.
        """
        return contextlib.nullcontext()

    def free_bytes(self) -> float:
        """Return the free space for more files; infinite if unknown."""
        return shutil.disk_usage(nearest_folder(self.root)).free


def nearest_folder(path: Path) -> Path:
    """Return the path itself, or its nearest parent, that exists."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def check_no_folder(path: Path) -> None:
    """Check that no folder is in the place of a file that will be written.

    Raises:
        RunError: there is one.
    """
    if path.is_dir():
        raise RunError(
            f"{path}: a folder is in the place of a file; move it away, or delete it, then run the "
            "same command again"
        )


def move_into_place(temporary: Path, path: Path, *, survives: bool = True) -> None:
    """Rename a finished file such that it survives a power cut; or only the file before it, whole.

    A file of another file system is first copied next to *path*.

    Raises:
        RunError: a folder is in the place of the file.
    """
    check_no_folder(path)
    if survives or path.exists():
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    try:
        os.replace(temporary, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            shutil.copyfile(temporary, beside)
            move_into_place(beside, path, survives=survives)
        finally:
            beside.unlink(missing_ok=True)
        return
    if not survives:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_compared: dict[str, tuple[int, int, int]] = {}
"""Files that this process has compared with their SHA-256: inode, size, time of change in ns."""


def difference(path: Path, noted: Callable[[], str]) -> str:
    """Say how a file differs from its recorded SHA-256; empty if it does not, or is absent.

    A process hashes each version of a file once. A file without a recorded SHA-256 passes.
    """
    try:
        version = path.stat()
        known = (version.st_ino, version.st_size, version.st_mtime_ns)
        if _compared.get(str(path)) == known:
            return ""
        recorded = noted()
        if recorded and (measured := sha256_of(path)[0]) != recorded:
            return f"SHA-256 is {measured[:12]}…, {recorded[:12]}… was written"
    except (FileNotFoundError, IsADirectoryError):
        return ""
    _compared[str(path)] = known
    return ""


def sha256_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file's bytes in hexadecimal, and their number."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
