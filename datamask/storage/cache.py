"""The copy on this machine of a run whose store is elsewhere: which files are current or in use.

A mirror is a folder with `run/NAME/`, which stands for the run; `mirror-of-url`; `versions/`, the
version of every file that was brought or put; and `pins/`, what processes of this machine use now.
It may be deleted whenever nobody works: everything that counts is in the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from datamask.storage.object_store import Entry

MARKER = "mirror-of-url"
KEPT = ("run.json", "plan.parquet")
"""Files that every process reads; they are small."""

_user: ContextVar[int] = ContextVar("user of a mirror", default=0)
_numbers = itertools.count(1)


def cache_folder() -> Path:
    """Where mirrors are: DATAMASK_CACHE, else `datamask` in the user's cache."""
    chosen = os.environ.get("DATAMASK_CACHE", "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(base).expanduser().absolute() / "datamask"


def make_mirror(key: str, name: str, url: str) -> Path:
    """Make sure there is a mirror of a URL; the folder in it that stands for the run."""
    home = cache_folder() / "runs" / key
    root = home / "run" / name
    for folder in (root, home / "versions", home / "pins"):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in ((home / MARKER, url), (home / "identity", uuid.uuid4().hex)):
        if not path.exists():
            temporary = home / f".{path.name}.{uuid.uuid4().hex}"
            temporary.write_text(text + "\n", encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
    return root


class Mirror:
    """The bookkeeping of one mirror.

    Args:
        root: the folder that stands for the run.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root.parents[1]
        self._pins = self.home / "pins" / f"{os.getpid()}-{uuid.uuid4().hex}"
        self._pinned: dict[int, set[str]] = {}
        self._handle: int | None = None
        self._added: int | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Equal in two processes only if they share this mirror, and this boot of a machine."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        parts = [(self.home / "identity").read_text(encoding="utf-8").strip(), socket.gethostname()]
        return " ".join([*parts, boot.read_text(encoding="utf-8").strip() if boot.exists() else ""])

    def is_current(self, name: str, entry: Entry) -> bool:
        """Whether the copy here is of that version, untouched."""
        try:
            noted = self._note(name).read_text(encoding="utf-8")
            return noted == _stamp(self.root / name, entry)
        except OSError:
            return False

    def note(self, name: str, entry: Entry) -> None:
        """The copy here is of that version."""
        path = self._note(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}")
        temporary.write_text(_stamp(self.root / name, entry), encoding="utf-8")
        os.replace(temporary, path)
        with self._lock:
            if self._added is not None:
                self._added += entry.size

    def drop(self, name: str) -> None:
        """Delete the copy of an object that is no longer there; other files stay."""
        note = self._note(name)
        if note.exists():
            (self.root / name).unlink(missing_ok=True)
            note.unlink(missing_ok=True)

    def _note(self, name: str) -> Path:
        return self.home / "versions" / name

    def pin(self, name: str) -> None:
        """Keep a file from being evicted by anybody while this unit of work uses it."""
        with self._lock:
            mine = self._pinned.setdefault(_user.get(), set())
            if name in mine:
                return
            with self._order(fcntl.LOCK_SH):
                if self._handle is None:
                    self._handle = os.open(self._pins, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                    with contextlib.suppress(OSError):
                        fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._handle, f"{name}\n".encode())
            mine.add(name)

    @contextlib.contextmanager
    def in_use(self, most_bytes: int) -> Iterator[None]:
        """While it lasts, what this thread pins stays; then it may go.

        Args:
            most_bytes: files beyond this size in all are evicted, those longest unused first.
        """
        number = next(_numbers)
        token = _user.set(number)
        with self._lock:
            self._pinned[number] = set()
        try:
            yield
        finally:
            _user.reset(token)
            with self._lock:
                self._unpin(number)
                due = self._added is None or self._added > most_bytes // 16
            if due:
                self.shrink(most_bytes)

    def _unpin(self, number: int) -> None:
        self._pinned.pop(number, None)
        if not any(self._pinned) and self._handle is not None:
            # What threads without a unit of their own had pinned was for the last unit.
            self._pinned.clear()
            self._pins.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None
        elif self._handle is not None:
            with self._order(fcntl.LOCK_SH):
                os.ftruncate(self._handle, 0)
                names = sorted(set().union(*self._pinned.values()))
                os.write(self._handle, "".join(f"{name}\n" for name in names).encode())

    def shrink(self, most_bytes: int) -> None:
        """Evict files that nobody on this machine uses until the rest fits."""
        with self._order(fcntl.LOCK_EX):
            files = sorted(self._evictable(), reverse=True)
            total = sum(size for _, size, _ in files)
            pinned = {*KEPT, *self._pinned_by_anybody()} if total > most_bytes else set()
            while total > most_bytes and files:
                _, size, name = files.pop()
                if name not in pinned:
                    self.drop(name)
                    total -= size
        with self._lock:
            self._added = 0

    def _evictable(self) -> Iterator[tuple[float, int, str]]:
        """Time of last use, size and name of every file that can be brought again."""
        notes = self.home / "versions"
        for folder, _, names in os.walk(notes):
            for file in names:
                note = Path(folder, file)
                name = note.relative_to(notes).as_posix()
                with contextlib.suppress(OSError):
                    yield note.stat().st_mtime, (self.root / name).stat().st_size, name

    def _pinned_by_anybody(self) -> Iterable[str]:
        for path in (self.home / "pins").iterdir():
            with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
                if path != self._pins and _is_abandoned(file.fileno()):
                    path.unlink(missing_ok=True)
                    continue
                yield from file.read().splitlines()

    @contextlib.contextmanager
    def _order(self, kind: int) -> Iterator[None]:
        """Pinning and evicting exclude each other; without locks they may not, and files return."""
        handle = os.open(self.home / "pins.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, kind)
            yield
        finally:
            os.close(handle)

    def used(self, name: str) -> None:
        """Note the time, for the order of eviction."""
        with contextlib.suppress(OSError):
            os.utime(self._note(name))


def _stamp(path: Path, entry: Entry) -> str:
    found = path.stat()
    return f"{entry.version}\n{found.st_size} {found.st_mtime_ns}\n"


def _is_abandoned(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
