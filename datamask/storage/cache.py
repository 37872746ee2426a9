"""A size-bounded cache on this machine for the files of a run in an object store.

A cache is a folder with `run/NAME/`, the copies; `versions/`, the version of every copy, whose
modification time is the time of the copy's last use; and `users/`, a lock per unit of work, held
while its process lives, whose modification time is its start. The cache may be deleted whenever no
process works: the store has everything.

Copies used since the start of the oldest unit of work of any living process are never evicted. The
others are evicted least recently used first, until the rest fits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from datamask.errors import RunError
from datamask.storage.file_locks import held
from datamask.storage.local import difference
from datamask.storage.object_store import Entry

KEPT = ("run.json", "plan.parquet")
"""Small files that every process reads."""


def cache_folder() -> Path:
    """Return the folder of all caches: DATAMASK_CACHE, or `datamask` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    chosen = os.environ.get("DATAMASK_CACHE", "").strip() or f"{base}/datamask"
    return Path(chosen).expanduser().absolute()


class Cache:
    """The cache of the run at a URL. Several processes may use it at once."""

    def __init__(self, url: str) -> None:
        self.home = cache_folder() / "runs" / hashlib.sha256(url.encode()).hexdigest()[:16]
        # The last name is kept because a report's title is the name of the run's folder.
        self.root = self.home / "run" / url.rpartition("/")[2]
        for folder in (self.root, self.home / "versions", self.home / "users"):
            folder.mkdir(parents=True, exist_ok=True)
        self._added: int | None = None
        self._start = 0
        """Start of a unit of work: if the clock is set back meanwhile, copies are used at it."""
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """A text that processes share if they share this cache and this boot of the machine."""
        boot, folder = Path("/proc/sys/kernel/random/boot_id"), self.home.stat()
        parts = [socket.gethostname(), f"{folder.st_dev}/{folder.st_ino}"]
        return " ".join([*parts, boot.read_text(encoding="utf-8").strip() if boot.exists() else ""])

    def use(self, name: str, entry: Entry) -> bool:
        """Return True if the copy here is unmodified and of this version; mark it as used now."""
        note, path = self.home / "versions" / name, self.root / name
        with self._turn(fcntl.LOCK_SH):
            try:
                stamp, _, sha256 = note.read_text(encoding="utf-8").rpartition("\n")
                if stamp != _stamp(path, entry) or difference(path, lambda: sha256):
                    return False
            except OSError:
                return False
            self._mark(note)
        return True

    def _mark(self, note: Path) -> None:
        now = max(time.time_ns(), self._start)
        os.utime(note, ns=(now, now))

    def add(self, temporary: Path, name: str, entry: Entry, sha256: str) -> None:
        """Move a file into the cache as a copy of this version, used now."""
        path, note = self.root / name, self.home / "versions" / name
        for folder in (path.parent, note.parent):
            folder.mkdir(parents=True, exist_ok=True)
        noted = note.with_name(f".{uuid.uuid4().hex}")
        with self._turn(fcntl.LOCK_SH):
            os.replace(temporary, path)
            noted.write_text(f"{_stamp(path, entry)}\n{sha256}", encoding="utf-8")
            self._mark(noted)
            os.replace(noted, note)
        with self._lock:
            if self._added is not None:
                self._added += entry.size

    def drop(self, name: str) -> None:
        """Delete a copy; other files stay."""
        note = self.home / "versions" / name
        if note.exists():
            (self.root / name).unlink(missing_ok=True)
            note.unlink(missing_ok=True)

    @contextlib.contextmanager
    def in_use(self, most_bytes: int) -> Iterator[None]:
        """Keep the files that the block uses; then evict copies beyond *most_bytes*."""
        user = self.home / "users" / f"{uuid.uuid4().hex}.lock"
        try:
            with held(user, None, str(self.home)):
                self._start = max(self._start, user.stat().st_mtime_ns)
                yield
        finally:
            with self._lock:
                due = self._added is None or self._added > most_bytes // 16
            if due:
                self.shrink(most_bytes)

    def shrink(self, most_bytes: int) -> None:
        """Evict copies that no process of this machine needs, until the rest fits."""
        with self._turn(fcntl.LOCK_EX):
            copies = sorted(self._copies(), reverse=True)
            total = sum(size for _, size, _ in copies)
            since = self._needed_since() if total > most_bytes else 0
            while total > most_bytes and copies and copies[-1][0] < since:
                _, size, name = copies.pop()
                if name not in KEPT:
                    self.drop(name)
                    total -= size
        with self._lock:
            self._added = 0

    def _copies(self) -> Iterator[tuple[int, int, str]]:
        """Yield time of last use, size and name of every copy."""
        notes = self.home / "versions"
        for folder, _, names in os.walk(notes):
            for file in names:
                note = Path(folder, file)
                name = note.relative_to(notes).as_posix()
                with contextlib.suppress(OSError):
                    yield note.stat().st_mtime_ns, (self.root / name).stat().st_size, name

    def _needed_since(self) -> int:
        """Return the start of the oldest unit of work that still runs, in ns, or the time now."""
        times = [time.time_ns()]
        for path in (self.home / "users").iterdir():
            with contextlib.suppress(FileNotFoundError):
                start = path.stat().st_mtime_ns
                with contextlib.suppress(RunError), held(path, False, str(path)) as is_locked:
                    start = time.time_ns() if is_locked else start  # its process is dead
                times.append(start)
        return min(times)

    @contextlib.contextmanager
    def _turn(self, kind: int) -> Iterator[None]:
        """Exclude eviction during use. Without file locks, evicted files are fetched again."""
        with (self.home / "turn.lock").open("ab") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, kind)
            yield


def _stamp(path: Path, entry: Entry) -> str:
    facts = path.stat()
    return f"{entry.version}\n{facts.st_size} {facts.st_mtime_ns}"
