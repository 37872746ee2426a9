"""Lock between machines with leases: objects in the store of a run.

A conditional put creates a lease only if there is none of its name. A thread renews it while its
holder works and deletes it at the end. A waiting process watches the lease's version: if that has
not changed for the time that the lease states, its holder is gone, and the waiter replaces the
lease if it is still the version that was seen. No clocks are compared. A holder that was suspended
for longer finds its lease lost and puts nothing more. A lease left by a dead process that used this
cache is taken over at once, because the caller holds this machine's lock (`file_locks`) of the same
name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from datamask.errors import RunError, SettingsError, StorageError, TransientError
from datamask.storage.contents import parse_json
from datamask.storage.file_locks import MOST_TRIES, SECONDS_BETWEEN_LINES, process_name
from datamask.storage.object_store import Entry, ObjectStore
from datamask.storage.stopping import pause

logger = logging.getLogger(__name__)

DEFAULT_SECONDS = 60.0
SECONDS_BETWEEN_TRIES = 0.1

check_lease: ContextVar[Callable[[], None]] = ContextVar("check_lease", default=lambda: None)
"""Called before every put; raises if this thread has lost its lease."""


def lease_seconds() -> float:
    """Return the lifetime of a lease that is not renewed: DATAMASK_LEASE_SECONDS, else 60.

    Raises:
        SettingsError: not a number of at least 1.
    """
    text = os.environ.get("DATAMASK_LEASE_SECONDS", "").strip()
    try:
        seconds = float(text) if text else DEFAULT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < float("inf"):
        raise SettingsError(
            f"DATAMASK_LEASE_SECONDS={text}: needed a number of seconds, at least 1"
        )
    return seconds


class Lease:
    """A lease of this process: an object in a store. Use `held`."""

    def __init__(self, store: ObjectStore, name: str, cache: str) -> None:
        self.name = name
        self.seconds = lease_seconds()
        self.lost = False
        self._store, self._cache = store, cache
        self._id = uuid.uuid4().hex
        self._beat = 0
        self._seen: Entry | None = None
        self._renewed = time.monotonic()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, instead_of: Entry | None = None) -> bool:
        """Create the lease, or replace one that was seen; return True on success."""
        if not self._put(instead_of):
            return False
        self._thread = threading.Thread(target=self._keep, name=self.name, daemon=True)
        self._thread.start()
        return True

    def _put(self, instead_of: Entry | None) -> bool:
        self._beat += 1
        record = {"holder": process_name(), "id": self._id, "beat": self._beat}
        record |= {"seconds": self.seconds, "mirror": self._cache}
        content, start = json.dumps(record).encode(), time.monotonic()
        entry = self._store.replace(self.name, content, instead_of)
        if entry is None:
            # The put may have succeeded and only its answer been lost.
            seen = _look(self._store, self.name)
            entry = seen.entry if seen and seen.id == self._id else None
        if entry is None:
            return False
        self._seen, self._renewed = entry, start
        return True

    def _keep(self) -> None:
        while not self._end.wait(self.seconds / 3) and self._renew():
            pass

    def _renew(self) -> bool:
        """Renew the lease; False once it is lost."""
        if time.monotonic() - self._renewed > self.seconds:
            self.lost = True  # A waiter may have taken it over.
            return False
        try:
            self.lost = not self._put(self._seen)
        except TransientError as error:
            logger.warning("%s: not renewed (%s); trying again", self.name, error)
        except Exception as error:
            logger.warning("%s: cannot be renewed (%s)", self.name, error)
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """Check that no other process can hold the lease.

        Raises:
            StorageError: it is lost.
        """
        if self.lost or time.monotonic() - self._renewed > self.seconds:
            raise StorageError(
                f"{self._store.url}/{self.name}: this lease was not renewed in time, so another "
                "worker may have taken over the work; try again"
            )

    def release(self) -> None:
        """Delete the lease; if that fails, it expires."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        try:
            # No other process can have taken over a recently renewed lease.
            late = time.monotonic() - self._renewed > self.seconds / 2
            if not self.lost and (not late or self._renew()):
                self._store.remove(self.name)
        except Exception as error:
            logger.warning("%s: not released (%s); it expires by itself", self.name, error)


class _Seen:
    """A lease in the store, of any process."""

    def __init__(self, entry: Entry, content: bytes) -> None:
        self.entry = entry
        try:
            record = parse_json(content)
            self.holder, self.id = str(record["holder"]), str(record["id"])
            self.cache, self.seconds = str(record["mirror"]), float(record["seconds"])
        except (ValueError, KeyError, TypeError):
            self.holder, self.id, self.cache = "another process", "", ""
            self.seconds = DEFAULT_SECONDS


def _look(store: ObjectStore, name: str) -> _Seen | None:
    entry = store.find(name)
    with contextlib.suppress(FileNotFoundError):
        return _Seen(entry, store.read(name)) if entry is not None else None
    return None


def _wait_until_free(
    store: ObjectStore, name: str, cache: str, shared: bool | None
) -> _Seen | None:
    """Wait until a lease is deleted (return None) or no longer renewed (return that lease).

    Raises:
        RunError: *shared* is False, and its holder has renewed it.
    """
    version, since, looks = "", 0.0, 0
    logged = time.monotonic() - (SECONDS_BETWEEN_LINES if shared is False else 0)
    while True:
        now, seen = time.monotonic(), _look(store, name)
        if seen is None or (cache and seen.cache == cache):
            return seen
        if seen.entry.version != version:
            version, since, looks = seen.entry.version, now, looks + 1
        if now - since > seen.seconds:
            return seen
        if shared is False and looks > 1:
            raise RunError(
                f"{store.url}: {seen.holder} is working in it; wait until it ends, or stop it, "
                "then relaunch"
            )
        if now - logged >= SECONDS_BETWEEN_LINES:
            logged = now
            logger.info(
                "%s: waiting for %s, up to %.0f s if it is gone", name, seen.holder, seen.seconds
            )
        pause(min(2.0, seen.seconds / 12))


@contextlib.contextmanager
def held(store: ObjectStore, name: str, cache: str, shared: bool | None) -> Iterator[None]:
    """Hold a lease, see `Storage.lock`.

    *cache* is the identity of this process's cache if it holds this machine's lock with the same
    name; else empty.

    Raises:
        RunError: *shared* is False, and a living process holds it.
        StorageError: the lease cannot be taken in MOST_TRIES tries, or the store fails.
    """
    alone, together = f"locks/{name}", f"locks/{name}.shared"
    lease = Lease(store, f"{together}/{uuid.uuid4().hex}" if shared else alone, cache)
    for _ in range(MOST_TRIES):
        if lease.take():
            break
        seen = _wait_until_free(store, lease.name, cache, shared)
        if seen is not None and lease.take(instead_of=seen.entry):
            logger.warning("%s: taken over from %s, which is gone", name, seen.holder)
            break
        pause(SECONDS_BETWEEN_TRIES)
    else:
        raise StorageError(
            f"{store.url}/{lease.name}: this lease was free but could not be taken, {MOST_TRIES} "
            "times; check the store's conditional writes, then try again"
        )
    token = check_lease.set(lease.check)
    try:
        # Take our lease first, then check the others. A process that wants the other kind does the
        # same, so at least one of the two sees the other.
        if shared:
            _wait_until_free(store, alone, cache, shared)
        elif shared is False:
            for other in store.list(together):
                _wait_until_free(store, other, cache, shared)
                store.remove(other)
        yield
    finally:
        check_lease.reset(token)
        lease.release()
