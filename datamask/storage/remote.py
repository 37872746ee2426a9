"""The files of a run that lives in an object store, and their mirror on this machine.

The store is the truth. A file is put there by one atomic put before it appears in the mirror, in
the order in which it would appear on a disk: its checksum first, then what belongs to it, then the
file that is its own receipt. A file is brought into the mirror when it is asked for and the copy
there is absent or of another version, and what arrives is compared with its checksum.

What is done is asked of listings. So that 20,000 shards need no 20,000 requests, an empty object
beside the outputs, `receipts/NAME.FINGERPRINT.VERSION`, says which fingerprint a version of a file
carries. It is only a note: where it is absent or of another version, the file's own receipt is
read, by ranges.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from datamask.errors import CorruptFileError, DatamaskError
from datamask.storage.cache import Mirror
from datamask.storage.object_store import Entry, ObjectStore

logger = logging.getLogger(__name__)

LOCAL_ONLY = ("checkpoints/", "publication/", "locks/")
"""What is not put: unfinished work of this machine, links to the subset, this machine's locks."""

RECORDS = ("timings/", "logs/", "checksums/")
"""Small files without checksums."""

REQUESTS = 32
"""Requests at once."""

PATIENCE_SECONDS = 30.0
"""How old a listing may be that says that a file is there."""

IMPATIENCE_SECONDS = 1.0
"""How old one may be that says it is not."""

MOST_SINGLE = 4
"""Questions about single files of a folder, within `PATIENCE_SECONDS`, before it is listed."""

AHEAD_FILES, AHEAD_FILE_BYTES, AHEAD_BYTES = 64, 32 * 2**20, 256 * 2**20
"""What is brought together with a file by work that looks at every shard: number, size, sum."""

before_put: ContextVar[Callable[[], None]] = ContextVar("before_put", default=lambda: None)
"""Called before anything is put; raises if this thread's work is no longer its own."""

Fingerprint = Callable[[Path | IO[bytes], str], str]
"""Reads the fingerprint in a local or opened file of a given suffix."""


class Listing:
    """What is known to be in a store, asked again when it is too old.

    Args:
        store: the store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._entries: dict[str, dict[str, Entry]] = {}
        self._listed: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._questions: dict[str, list[float]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def find(self, name: str, patience: float = PATIENCE_SECONDS) -> Entry | None:
        """A file; what is known of it may be so many seconds old."""
        folder = name.rpartition("/")[0]
        with self._locks.setdefault(folder, threading.Lock()):
            entries = self._entries.setdefault(folder, {})
            entry, now = entries.get(name), time.monotonic()
            age = now - max(self._listed.get(folder, -1e9), self._asked.get(name, -1e9))
            if age <= (patience if entry else min(patience, IMPATIENCE_SECONDS)):
                return entry
            recent = [t for t in self._questions.get(folder, []) if now - t < PATIENCE_SECONDS]
            self._questions[folder] = [*recent, now]
            if len(recent) >= MOST_SINGLE and folder:
                self._list(folder)
                return self._entries[folder].get(name)
            return self._ask(name, self._store.find(name), now)

    def refresh(self, names: Iterable[str]) -> None:
        """Ask about these files now: each alone if they are few, else by their folders."""
        by_folder: dict[str, list[str]] = {}
        for name in names:
            by_folder.setdefault(name.rpartition("/")[0], []).append(name)
        for folder, inside in by_folder.items():
            with self._locks.setdefault(folder, threading.Lock()):
                if len(inside) > MOST_SINGLE:
                    self._list(folder)
                    continue
                for name in inside:
                    now = time.monotonic()
                    self._ask(name, self._store.find(name), now)

    def folder(self, folder: str, patience: float = PATIENCE_SECONDS) -> dict[str, Entry]:
        """All files directly in a folder."""
        with self._locks.setdefault(folder, threading.Lock()):
            if time.monotonic() - self._listed.get(folder, -1e9) > patience:
                self._list(folder)
            return dict(self._entries[folder])

    def note(self, name: str, entry: Entry | None) -> None:
        """This process has just written or deleted a file."""
        folder = name.rpartition("/")[0]
        with self._locks.setdefault(folder, threading.Lock()):
            self._ask(name, entry, time.monotonic())

    def _ask(self, name: str, entry: Entry | None, now: float) -> Entry | None:
        entries = self._entries.setdefault(name.rpartition("/")[0], {})
        self._asked[name] = now
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
        return entry

    def _list(self, folder: str) -> None:
        now = time.monotonic()
        found = self._store.list(folder)
        self._entries[folder] = {n: e for n, e in found.items() if n.rpartition("/")[0] == folder}
        self._listed[folder] = now
        self._questions[folder] = []


class RemoteFolder:
    """A run in an object store.

    Args:
        root: the local folder that stands for it, in its mirror.
        url: where it is.
    """

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.address = url
        self.store = ObjectStore(url)
        self.mirror = Mirror(root)
        self._listing = Listing(self.store)
        self._fingerprints: dict[tuple[str, str], str] = {}
        self._bringing: dict[str, threading.Lock] = {}
        self._whole_runs = 0

    def name(self, path: Path) -> str:
        """What a file of the mirror is called in the store."""
        return path.relative_to(self.root).as_posix()

    def keeps(self, path: Path) -> bool:
        """Whether such a file is put into the store; others are of this machine alone."""
        return not self.name(path).startswith(LOCAL_ONLY)

    def exists(self, path: Path) -> bool:
        """Whether a file is in the store, or here if the store does not keep such files."""
        if not self.keeps(path):
            return path.is_file()
        return self._listing.find(self.name(path), IMPATIENCE_SECONDS) is not None

    def bring(self, path: Path, patience: float = PATIENCE_SECONDS) -> Path:
        """Have the store's version of a file in the mirror; none where the store has none.

        Args:
            path: in the mirror.
            patience: how old the answer may be that the copy here is the store's version.

        Raises:
            CorruptFileError: what is in the store is not what was written.
        """
        name = self.name(path)
        if not self.keeps(path):
            return path
        self.mirror.pin(name)
        entry = self._listing.find(name, patience)
        if entry is not None and self._whole_runs and not self.mirror.is_current(name, entry):
            self._bring_ahead(name)
        problem = ""
        with self._bringing.setdefault(name, threading.Lock()):
            for attempt in range(4):
                if attempt:
                    # Perhaps it was replaced meanwhile: its checksum comes a moment before it.
                    time.sleep(0.1 * attempt)
                    self._listing.refresh([name])
                    entry = self._listing.find(name)
                if entry is None:
                    self.mirror.drop(name)
                    return path
                if self.mirror.is_current(name, entry):
                    self.mirror.used(name)
                    return path
                problem = self._fetch(name, entry)
                if not problem:
                    return path
        raise CorruptFileError(
            f"{self.address}/{name}: {problem}; `datamask verify {self.address}` moves such files "
            "aside, a relaunch makes them again"
        )

    def _fetch(self, name: str, entry: Entry) -> str:
        """Bring one version; what is wrong with what arrived, empty if nothing is."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
        try:
            self.store.get(name, temporary)
            size = temporary.stat().st_size
            if size != entry.size:
                return f"{size} bytes arrived, {entry.size} were listed"
            noted = "" if name.startswith(RECORDS) else self.noted_sha256(path)
            if noted:
                with temporary.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != noted:
                    return f"SHA-256 is {found[:12]}…, {noted[:12]}… was written"
            os.replace(temporary, path)
            self.mirror.note(name, entry)
            return ""
        except FileNotFoundError:
            return "gone while it was fetched"
        finally:
            temporary.unlink(missing_ok=True)

    def _bring_ahead(self, name: str) -> None:
        """Bring the files after one in its folder too, if they are small."""
        folder = name.rpartition("/")[0]
        entries = sorted(self._listing.folder(folder).items()) if folder else []
        chosen: list[tuple[str, Entry]] = []
        size = 0
        for other, entry in entries:
            if other <= name or entry.size > AHEAD_FILE_BYTES:
                continue
            if self.mirror.is_current(other, entry):
                continue
            size += entry.size
            if len(chosen) == AHEAD_FILES or size > AHEAD_BYTES:
                break
            chosen.append((other, entry))
        for other, _ in chosen:
            self.mirror.pin(other)

        def fetch(item: tuple[str, Entry]) -> None:
            with self._bringing.setdefault(item[0], threading.Lock()):
                self._fetch(*item)  # whoever asks for it will see what is wrong with it

        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(fetch, chosen))

    def bring_all(self, folder: Path, pattern: str) -> list[Path]:
        """Bring the files directly in a folder whose names fit a glob; sorted."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(self.bring, self.names(folder, pattern)))

    def names(self, folder: Path, pattern: str) -> list[Path]:
        """Where these would be in the mirror; sorted."""
        names = sorted(self._listing.folder(self.name(folder), IMPATIENCE_SECONDS))
        return [
            self.root / name
            for name in names
            if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)
        ]

    def put(self, source: Path, path: Path) -> None:
        """Store a local file as *path*; it is whole there when this returns.

        Args:
            source: the bytes.
            path: its final name in the mirror; `placed` tells when it is there.

        Raises:
            StorageError: the store does not answer; nothing of the file can be read there.
        """
        name = self.name(path)
        if self.keeps(path):
            before_put.get()()
            self._listing.note(name, self.store.put(name, source))
            if source == path:
                self.placed(path)

    def placed(self, path: Path, fingerprint: str = "") -> None:
        """The mirror has what was put; note its version, and in the store its fingerprint."""
        name = self.name(path)
        entry = self._listing.find(name, float("inf"))
        if entry is None or not self.keeps(path):
            return
        self.mirror.note(name, entry)
        if fingerprint:
            self._fingerprints[name, entry.version] = fingerprint
            with contextlib.suppress(DatamaskError):
                for old in self.store.list(*_note_place(name)):
                    self.store.remove(old)
                self.store.write(_note_name(name, fingerprint, entry), b"")

    def remove(self, path: Path) -> None:
        """Delete a file from the store."""
        name = self.name(path)
        if self.keeps(path):
            self.store.remove(name)
            self._listing.note(name, None)
            self.mirror.drop(name)

    def set_aside(self, path: Path) -> None:
        """Append `.corrupt` to a file's name in the store, and forget the copy here."""
        name = self.name(path)
        if not self.keeps(path):
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, path.with_name(f"{path.name}.corrupt"))
            return
        if self._listing.find(name, 0) is not None:
            self.store.move(name, f"{name}.corrupt")
            self._listing.note(name, None)
        self.mirror.drop(name)

    def sha256(self, path: Path) -> tuple[str, int]:
        """The SHA-256 of the bytes in the store, all of them read from there, and their number.

        Raises:
            FileNotFoundError: it is not there.
        """
        if not self.keeps(path):
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size
        whole, size = hashlib.sha256(), 0
        with self.store.open(self.name(path), block_size=8 * 2**20, cache_type="readahead") as file:
            while block := file.read(8 * 2**20):
                whole.update(block)
                size += len(block)
        return whole.hexdigest(), size

    def noted_sha256(self, path: Path) -> str:
        """The SHA-256 that was noted in the store when a file was written; empty if none was."""
        try:
            return self.store.read(f"checksums/{self.name(path)}.sha256").decode().split()[0]
        except (FileNotFoundError, IndexError, UnicodeDecodeError):
            return ""

    def refresh(self, paths: Iterable[Path]) -> None:
        """Ask the store about these files now."""
        self._listing.refresh(self.name(path) for path in paths)

    def fingerprint(self, path: Path, read: Fingerprint) -> str:
        """The fingerprint that a file in the store carries.

        Args:
            path: in the mirror.
            read: reads it from the file itself, where no note tells.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptFileError: it carries none.
        """
        name = self.name(path)
        entry = self._listing.find(name)
        if entry is None:
            raise FileNotFoundError(path)
        key = (name, entry.version)
        if key not in self._fingerprints:
            self._fingerprints[key] = self._noted(name, entry) or self._read(name, entry, read)
        return self._fingerprints[key]

    def _noted(self, name: str, entry: Entry) -> str:
        """The fingerprint by the notes in the store, if one is of this version."""
        if self.mirror.is_current(name, entry):
            return ""  # reading the copy here is cheaper
        folder, own = _note_place(name)
        for note in self.store.list(folder, own):
            fingerprint = _fingerprint_in(note, name, entry)
            if fingerprint:
                return fingerprint
        return ""

    def _read(self, name: str, entry: Entry, read: Fingerprint) -> str:
        path = self.root / name
        try:
            if self.mirror.is_current(name, entry) or path.suffix != ".parquet":
                found = read(self.bring(path), path.suffix)
            else:
                with self.store.open(name, cache_type="none") as file:
                    found = read(file, path.suffix)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            reason = " ".join(str(error).split())
            raise CorruptFileError(f"{self.address}/{name}: unreadable ({reason})") from None
        with contextlib.suppress(DatamaskError):
            self.store.write(_note_name(name, found, entry), b"")
        return found

    def look(self, paths: list[Path], read: Fingerprint) -> None:
        """Learn the fingerprints of many files in few requests, for `fingerprint` to tell."""
        names = [self.name(path) for path in paths]
        entries = {name: self._listing.find(name) for name in names}
        unknown = [
            (name, entry)
            for name, entry in entries.items()
            if entry is not None and (name, entry.version) not in self._fingerprints
        ]
        if len(unknown) > MOST_SINGLE:
            for folder in {_note_place(name)[0] for name, _ in unknown}:
                noted: dict[str, list[str]] = {}
                for note in self.store.list(folder):
                    noted.setdefault(note.rsplit(".", 2)[0], []).append(note)
                for name, entry in unknown:
                    for note in noted.get(f"receipts/{name}", ()):
                        fingerprint = _fingerprint_in(note, name, entry)
                        if fingerprint:
                            self._fingerprints[name, entry.version] = fingerprint
        left = [self.root / n for n, e in unknown if (n, e.version) not in self._fingerprints]

        def learn(path: Path) -> None:
            with contextlib.suppress(FileNotFoundError, CorruptFileError):
                self.fingerprint(path, read)

        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(learn, left))

    @contextlib.contextmanager
    def in_use(self, *, whole_run: bool, most_bytes: int) -> Iterator[None]:
        """See `run_folder.in_use`."""
        self._whole_runs += whole_run
        try:
            with self.mirror.in_use(most_bytes):
                yield
        finally:
            self._whole_runs -= whole_run


def _note_place(name: str) -> tuple[str, str]:
    """Folder of the notes of a file's folder, and how the names of its own begin."""
    folder, _, own = f"receipts/{name}".rpartition("/")
    return folder, f"{own}."


def _note_name(name: str, fingerprint: str, entry: Entry) -> str:
    return f"receipts/{name}.{fingerprint}.{_short(entry)}"


def _fingerprint_in(note: str, name: str, entry: Entry) -> str:
    """The fingerprint in a note's name, if it is of this version of the file."""
    head, _, version = note.rpartition(".")
    file, _, fingerprint = head.rpartition(".")
    return fingerprint if (file, version) == (f"receipts/{name}", _short(entry)) else ""


def _short(entry: Entry) -> str:
    return hashlib.sha256(f"{entry.size} {entry.version}".encode()).hexdigest()[:16]
