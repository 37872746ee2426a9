"""Who may work where, between machines: leases, objects in the store of a run that live in it.

A lease is created only if nobody has it (a conditional put), renewed by a thread while its holder
works, and deleted at the end. Who waits for one watches its version: when that has not changed for
as long as the lease itself says, its holder is gone, and the waiter replaces it only if it still is
what was seen. No clocks are compared. A holder that was away for longer finds its lease lost and
puts nothing more. What a process of this very mirror left behind is taken over at once, because
the caller holds this machine's lock (`locks`) of the same name.

Where the store has no conditional writes, work goes on without leases, after a warning.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from datamask.errors import RunError, SettingsError, StorageError, TransientError
from datamask.storage.object_store import Entry
from datamask.storage.remote import RemoteFolder, before_put

logger = logging.getLogger(__name__)

DEFAULT_SECONDS = 60.0
SECONDS_BETWEEN_LINES = 30
MOST_TRIES = 1000
SECONDS_BETWEEN_TRIES = 0.1
ALONE = "locks/run.alone"
SHARED = "locks/run.shared"


def lease_seconds() -> float:
    """How long a lease lives that is not renewed: DATAMASK_LEASE_SECONDS, else 60.

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
    """A lease held by this process. Made by `held`.

    Args:
        folder: the run.
        name: of the object.
    """

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        self.folder = folder
        self.name = name
        self.seconds = lease_seconds()
        self.lost = False
        self._id = uuid.uuid4().hex
        self._beat = 0
        self._seen: Entry | None = None
        self._renewed = time.monotonic()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def _content(self) -> bytes:
        self._beat += 1
        record = {
            "holder": f"process {os.getpid()} on {socket.gethostname()}",
            "id": self._id,
            "beat": self._beat,
            "seconds": self.seconds,
            "mirror": self.folder.mirror.identity,
        }
        return json.dumps(record).encode()

    def take(self, instead_of: Entry | None = None) -> bool:
        """Create it, or replace another that was seen; whether that succeeded."""
        start = time.monotonic()
        if instead_of is None:
            entry = self.folder.store.create(self.name, self._content())
        else:
            entry = self.folder.store.replace(self.name, self._content(), instead_of)
        if entry is None:
            # Perhaps it was ours, and only the answer was lost.
            seen = _look(self.folder, self.name)
            entry = seen.entry if seen and seen.id == self._id else None
        if entry is None:
            return False
        self._seen, self._renewed = entry, start
        self._thread = threading.Thread(target=self._keep, name=self.name, daemon=True)
        self._thread.start()
        return True

    def _keep(self) -> None:
        while not self._end.wait(self.seconds / 3):
            if not self._renew():
                return

    def _renew(self) -> bool:
        """Show that the holder is alive; False once the lease is lost."""
        start = time.monotonic()
        if start - self._renewed > self.seconds:
            self.lost = True  # whoever waits may have it by now
            return False
        assert self._seen is not None
        try:
            entry = self.folder.store.replace(self.name, self._content(), self._seen)
            if entry is None:
                seen = _look(self.folder, self.name)
                entry = seen.entry if seen and seen.id == self._id else None
                self.lost = entry is None
        except TransientError as error:
            logger.warning("%s: not renewed (%s); trying on", self.name, error)
            return True
        except Exception as error:
            logger.warning("%s: cannot be renewed (%s)", self.name, error)
            self.lost = True
        if self.lost:
            return False
        self._seen, self._renewed = entry, start
        return True

    def check(self) -> None:
        """Make sure that nobody else may hold it.

        Raises:
            StorageError: it is lost.
        """
        if self.lost or time.monotonic() - self._renewed > self.seconds:
            raise StorageError(
                f"{self.folder.address}/{self.name}: this lease was not renewed in time, another "
                "worker may have the work; try again"
            )

    def release(self) -> None:
        """Let it go. If that fails, it expires."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        try:
            # Nobody can have taken over one that was renewed lately.
            late = time.monotonic() - self._renewed > self.seconds / 2
            if not self.lost and (not late or self._renew()):
                self.folder.store.remove(self.name)
        except Exception as error:
            logger.warning("%s: not released (%s); it expires by itself", self.name, error)


class _Seen:
    """A lease of somebody, as found in the store."""

    def __init__(self, entry: Entry, content: bytes) -> None:
        self.entry = entry
        try:
            record = json.loads(content)
            self.holder, self.id = str(record["holder"]), str(record["id"])
            self.mirror, self.seconds = str(record["mirror"]), float(record["seconds"])
        except (ValueError, KeyError, TypeError):
            self.holder, self.id, self.mirror = "somebody", "", ""
            self.seconds = DEFAULT_SECONDS


def _look(folder: RemoteFolder, name: str) -> _Seen | None:
    """A lease; None if there is none."""
    entry = folder.store.find(name)
    if entry is None:
        return None
    try:
        return _Seen(entry, folder.store.read(name))
    except FileNotFoundError:
        return None


class _Watch:
    """Watches a lease of somebody else for signs of life.

    Args:
        folder: the run.
        name: of the lease.
        is_ours: this machine's lock of the same name is held, so no other process of it has it.
    """

    def __init__(self, folder: RemoteFolder, name: str, is_ours: bool) -> None:
        self.folder, self.name, self.is_ours = folder, name, is_ours
        self.first: _Seen | None = None
        self.last: _Seen | None = None
        self.alive = False
        self._since = 0.0

    def look(self) -> bool:
        """Look once; whether nobody has it any more. `last` is None if it is not there."""
        now = time.monotonic()
        self.last = _look(self.folder, self.name)
        if self.last is None:
            return True
        if self.is_ours and self.last.mirror == self.folder.mirror.identity:
            return True
        if self.first is None or self.first.entry.version != self.last.entry.version:
            self.alive = self.first is not None
            self.first, self._since = self.last, now
        return now - self._since > self.last.seconds

    @property
    def pause(self) -> float:
        """Seconds until looking again is worth it."""
        return min(2.0, (self.last.seconds if self.last else DEFAULT_SECONDS) / 12)


@contextlib.contextmanager
def held(folder: RemoteFolder | None, name: str, *, is_ours: bool) -> Iterator[None]:
    """Hold a lease alone, waiting for it; a folder that is None has this machine's lock only.

    Args:
        folder: the run.
        name: of what is worked on.
        is_ours: this machine's lock of the same name is held.
    """
    if folder is None or not folder.store.has_conditions():
        yield
        return
    lease = Lease(folder, f"locks/{name}")
    watch = _Watch(folder, lease.name, is_ours)
    told = time.monotonic()

    def wait() -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES and watch.last:
            told = time.monotonic()
            logger.info("%s: waiting for %s", name, watch.last.holder)
        time.sleep(watch.pause)

    _take(lease, watch, wait)
    token = before_put.set(lease.check)
    try:
        yield
    finally:
        before_put.reset(token)
        lease.release()


def _take(lease: Lease, watch: _Watch, wait: Callable[[], None]) -> None:
    """Take a lease as soon as it is free or its holder is gone; *wait* is called until then.

    Raises:
        StorageError: others always come first, or the store says so.
    """
    for _ in range(MOST_TRIES):
        if lease.take():
            return
        while not watch.look():
            wait()
        if watch.last is not None and lease.take(instead_of=watch.last.entry):
            holder = watch.last.holder
            logger.warning("%s: taken over from %s, which is gone", lease.name, holder)
            return
        time.sleep(SECONDS_BETWEEN_TRIES)
    raise StorageError(
        f"{lease.folder.address}/{lease.name}: this lease was free and could not be taken, "
        f"{MOST_TRIES} times; check the store's conditional writes, then try again"
    )


@contextlib.contextmanager
def working(folder: RemoteFolder | None, *, is_ours: bool) -> Iterator[None]:
    """Hold a run together with others; waits while somebody holds it alone."""
    if folder is None or not folder.store.has_conditions():
        yield
        return
    lease = Lease(folder, f"{SHARED}/{uuid.uuid4().hex}")
    lease.take()
    try:
        # First ours, then theirs: who comes for it alone does the reverse, and one sees the other.
        watch = _Watch(folder, ALONE, is_ours)
        while not watch.look():
            time.sleep(watch.pause)
        yield
    finally:
        lease.release()


@contextlib.contextmanager
def alone(folder: RemoteFolder | None, *, is_ours: bool) -> Iterator[None]:
    """Hold a run alone.

    Raises:
        RunError: somebody works in it.
    """
    if folder is None or not folder.store.has_conditions():
        yield
        return
    lease = Lease(folder, ALONE)
    watch = _Watch(folder, ALONE, is_ours)
    _take(lease, watch, lambda: _wait_for_death(watch))
    try:
        for name in folder.store.list(SHARED):
            other = _Watch(folder, name, is_ours)
            while not other.look():
                _wait_for_death(other)
            folder.store.remove(name)
        yield
    finally:
        lease.release()


def _wait_for_death(watch: _Watch) -> None:
    """Wait a moment for a holder that may be dead.

    Raises:
        RunError: it shows that it lives.
    """
    assert watch.last is not None
    place, holder = watch.folder.address, watch.last.holder
    if watch.alive:
        raise RunError(
            f"{place}: {holder} is working in it; wait until it ends, or stop it, then relaunch"
        )
    if watch.first is watch.last:
        logger.info(
            "%s: %s was working in it; waiting up to %.0f s to see whether it still is",
            place,
            holder,
            watch.last.seconds,
        )
    time.sleep(watch.pause)
