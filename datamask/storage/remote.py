"""A run in an object store, with copies of its files on this machine.

The store is the truth. One atomic put stores a file, after its SHA-256 and before its copy appears
here; fetched bytes are compared with that.

Fingerprints and listings of folders come from the store each time. Otherwise this object remembers
the version of every file that it has seen or put, and asks only about the others.

To avoid a request per shard, an empty object, `receipts/NAME.FINGERPRINT.VERSION`, records which
fingerprint a version of a file carries, and listings return it. It is only a note: if it is absent
or of another version, the file's own receipt is read, by ranges.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import logging
import math
import shlex
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from datamask.errors import CorruptFileError, DatamaskError
from datamask.storage import file_locks, leases
from datamask.storage.cache import Cache
from datamask.storage.contents import UNCHECKED, Contents, Record
from datamask.storage.local import Storage, sha256_of
from datamask.storage.names import inside
from datamask.storage.object_store import Entry, ObjectStore, has_conditions
from datamask.storage.temporary import temporary_folder

logger = logging.getLogger(__name__)

LOCAL_ONLY = "publication/"
"""Folders that are never put: they hold mostly links to the subset."""

REQUESTS = 32
"""Concurrent requests."""

FEW = 4
"""Maximum number of single requests about files of a folder; beyond it the folder is listed."""

AHEAD_FILES, AHEAD_FILE_BYTES, AHEAD_BYTES = 64, 32 * 2**20, 256 * 2**20
"""Limits of fetching ahead for work that reads every shard: number, size of each, total size."""


class RemoteStorage(Storage):
    """A run at a URL, with copies in a local folder."""

    def __init__(self, url: str, contents: Contents) -> None:
        self.store = ObjectStore(url)
        self.cache = Cache(url)
        super().__init__(self.cache.root, contents, url)
        self._versions: dict[str, Entry] = {}
        self._listed: set[str] = set()
        self._fingerprints: dict[tuple[str, Entry], str] = {}
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._whole_runs = 0

    def _find(self, name: str, *, anew: bool = False) -> Entry | None:
        folder = _folder_of(name)
        if not anew:
            known = self._versions.get(name)
            if known is not None or (self._whole_runs and folder in self._listed):
                return known
            if folder and self._whole_runs:
                return self._list(folder).get(name)
        entry = self.store.find(name)
        if entry is not None:
            self._versions[name] = entry
        else:
            self._versions.pop(name, None)
        return entry

    def _list(self, folder: str) -> dict[str, Entry]:
        known = {name for name in list(self._versions) if _folder_of(name) == folder}
        listed = self.store.list(folder)
        entries = {name: entry for name, entry in listed.items() if _folder_of(name) == folder}
        for name in known - entries.keys():
            self._versions.pop(name, None)
        self._versions |= entries
        self._listed.add(folder)
        return entries

    def list(self, folder: str, pattern: str = "*") -> list[str]:
        names = self._list(folder)
        return sorted(n for n in names if fnmatch.fnmatchcase(n.rpartition("/")[2], pattern))

    def fetch(self, name: str) -> Path:
        path, problem = inside(self.root, name), ""
        if name.startswith(LOCAL_ONLY):
            return path
        for attempt in range(4):
            # A SHA-256 arrives just before its file, so the file may be about to be replaced.
            time.sleep(0.1 * attempt)
            entry = self._find(name, anew=attempt > 0)
            if entry is None:
                self.cache.drop(name)
                return path
            if self._whole_runs and not self.cache.use(name, entry):
                self._fetch_ahead(name)
            problem = self._fetch(name, entry)
            if not problem:
                return path
        raise CorruptFileError(
            f"{self.address}/{name}: {problem}; `datamask verify "
            f"{shlex.quote(self.address)}` moves such files aside, and a relaunch makes them again"
        )

    def _fetch(self, name: str, entry: Entry) -> str:
        """Fetch a version, unless it is here; return the problem of the fetched bytes, or ""."""
        with self._fetching[name]:
            if self.cache.use(name, entry):
                return ""
            with temporary_folder(self.root) as folder:
                temporary = folder / name.rpartition("/")[2]
                try:
                    self.store.get(name, temporary)
                except FileNotFoundError:
                    return "gone while it was fetched"
                fetched, size = sha256_of(temporary)
                if size != entry.size:
                    return f"{size:,} bytes arrived, {entry.size:,} were listed"
                noted = "" if name.startswith(UNCHECKED) else self.noted_sha256(name)
                if noted and fetched != noted:
                    return f"SHA-256 is {fetched[:12]}…, {noted[:12]}… was written"
                self.cache.add(temporary, name, entry, fetched)
                return ""

    def _fetch_ahead(self, name: str) -> None:
        """Fetch the next files of the same folder too, if they are small."""
        chosen: list[tuple[str, Entry]] = []
        size = 0
        for other, entry in sorted(self._versions.copy().items()):
            is_after = other > name and _folder_of(other) == _folder_of(name)
            if is_after and entry.size <= AHEAD_FILE_BYTES and not self.cache.use(other, entry):
                size += entry.size
                if len(chosen) == AHEAD_FILES or size > AHEAD_BYTES:
                    break
                chosen.append((other, entry))
        with ThreadPoolExecutor(REQUESTS) as pool:
            # Problems are reported when the file itself is requested.
            list(pool.map(lambda item: self._fetch(*item), chosen))

    def put(self, temporary: Path, name: str) -> None:
        if name.startswith(LOCAL_ONLY):
            return super().put(temporary, name)
        leases.check_lease.get()()
        sha256, fingerprint = sha256_of(temporary)[0], ""
        if not name.startswith(UNCHECKED):
            # Files without a receipt, such as pictures, carry no fingerprint.
            with contextlib.suppress(DatamaskError):
                fingerprint = self._fingerprint_in(temporary)
            record, file = self.record(name).with_sha256(name, sha256), self.record_name(name)
            self._versions[file] = self.store.write(file, record.text.encode())
        before = self._versions.get(name)
        entry = self._versions[name] = self.store.put(name, temporary)
        self.cache.add(temporary, name, entry, sha256)
        if fingerprint:
            with contextlib.suppress(DatamaskError):
                self._note(name, entry, fingerprint)
                if before is not None and before != entry:
                    old = self._fingerprints.pop((name, before), "")
                    if old:
                        self.store.remove(_note_name(name, old, before))

    def _note(self, name: str, entry: Entry, fingerprint: str) -> None:
        self._fingerprints[name, entry] = fingerprint
        self.store.write(_note_name(name, fingerprint, entry), b"")

    def remove(self, name: str) -> None:
        self.store.remove(name)
        self._versions.pop(name, None)
        self.cache.drop(name)

    def set_aside(self, name: str) -> None:
        if name.startswith(LOCAL_ONLY):
            return super().set_aside(name)
        with contextlib.suppress(FileNotFoundError):
            self.store.copy(name, f"{name}.corrupt")
        self.remove(name)

    def sha256(self, name: str) -> tuple[str, int]:
        if name.startswith(LOCAL_ONLY):
            return super().sha256(name)
        with self.store.open(name, block_size=8 * 2**20, cache_type="readahead") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()

    def record(self, name: str) -> Record:
        if name.startswith(LOCAL_ONLY):
            return super().record(name)
        try:
            return Record.parsed(self.store.read(self.record_name(name)))
        except FileNotFoundError:
            return Record()

    def on_record(self) -> tuple[str, ...]:
        names = (name.removeprefix("records/") for name in self.store.list("records"))
        return tuple(sorted(name.removesuffix(".json") for name in names))

    def fingerprints(self, names: Iterable[str]) -> dict[str, str]:
        wanted = list(names)
        known = super().fingerprints(name for name in wanted if name.startswith(LOCAL_ONLY))
        entries: list[tuple[str, Entry | None]] = []
        remote = (name for name in wanted if not name.startswith(LOCAL_ONLY))
        for folder, names in _by_folder(remote).items():
            if len(names) > FEW and folder:
                listed = self._list(folder)
                entries += [(name, listed.get(name)) for name in names]
            else:
                entries += [(name, self._find(name, anew=True)) for name in names]
        there = [(name, entry) for name, entry in entries if entry is not None]
        learned = self._fingerprints
        self._read_notes(dict(item for item in there if item not in learned))
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(self._read_receipt, (item for item in there if item not in learned)))
        return known | {item[0]: learned[item] for item in there if item in learned}

    def _read_notes(self, entries: dict[str, Entry]) -> None:
        """Learn fingerprints from the names of notes, in one listing of a folder."""
        for folder, names in _by_folder(entries).items():
            if len(names) == 1:
                continue  # Its own receipt is cheaper to read.
            for note in self.store.list(f"receipts/{folder}".rstrip("/")):
                name, _, rest = note.removeprefix("receipts/").rpartition(".")[0].rpartition(".")
                if name in entries and note == _note_name(name, rest, entries[name]):
                    self._fingerprints[name, entries[name]] = rest

    def _read_receipt(self, item: tuple[str, Entry]) -> None:
        """Learn a fingerprint from the file itself, and note it."""
        name, entry = item
        is_here = self.cache.use(name, entry)
        try:
            if is_here or not name.endswith(".parquet"):
                fingerprint = self._fingerprint_in(self.fetch(name))
            else:
                with self.store.open(name, cache_type="none") as file:
                    fingerprint = self._fingerprint_in(file)
        except FileNotFoundError:
            return
        except CorruptFileError as error:
            logger.warning("%s: %s; it will be made again", self.address, error)
            return
        self._fingerprints[item] = fingerprint
        if not is_here:
            with contextlib.suppress(DatamaskError):
                self._note(name, entry, fingerprint)

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool | None = None) -> Iterator[None]:
        file = inside(self.root, f"locks/{name}.lock")
        with file_locks.held(file, shared, self.address) as is_ours:
            if not has_conditions(self.address):
                yield
                return
            cache = self.cache.identity if is_ours else ""
            with leases.held(self.store, name, cache, shared):
                yield

    @contextlib.contextmanager
    def in_use(self, most_bytes: int, *, whole_run: bool) -> Iterator[None]:
        if whole_run:
            self._listed.clear()
        self._whole_runs += whole_run
        try:
            with self.cache.in_use(most_bytes):
                yield
        finally:
            self._whole_runs -= whole_run

    def free_bytes(self) -> float:
        return math.inf


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(_folder_of(name), []).append(name)
    return folders


def _note_name(name: str, fingerprint: str, entry: Entry) -> str:
    version = hashlib.sha256(f"{entry.size} {entry.version}".encode()).hexdigest()[:16]
    return f"receipts/{name}.{fingerprint}.{version}"
