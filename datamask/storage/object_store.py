"""A prefix of an object store as a folder of named objects, over fsspec.

A put is atomic: an object appears whole or not at all, even if it is sent in parts. If the store
supports it, `replace` writes only if the object is absent, or still the version that was seen: S3
and compatible stores by If-None-Match and If-Match, Google Cloud Storage by generations.
Credentials and endpoints come from the environment alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datamask.errors import DatamaskError, RunError, StorageError, is_transient, one_line
from datamask.storage.clients import CREDENTIALS, EXTRAS, code_of, file_system, is_refused
from datamask.storage.names import is_plain

logger = logging.getLogger(__name__)

SMALL_BYTES = 8 * 2**20
"""Files up to this size are sent in one request, whose answer names their version."""

SECONDS_BEFORE_LINE = 10.0
"""Seconds until a line in the log says which request is waited for."""

_CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_UNKNOWN = ("NotImplemented", "501")


class NoConditionsError(RunError):
    """The store does not support conditional writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing: bytes, and ETag or generation, which changes with every write."""

    size: int
    version: str


class ObjectStore:
    """The objects under an fsspec URL without credentials, by their names within it.

    Reading an object that does not exist raises FileNotFoundError.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.protocol = url.partition("://")[0]

    @cached_property
    def _place(self) -> tuple[Any, str]:
        # Other machines write too, so listings are never cached.
        with self._naming():
            filesystem, base = file_system(self.url, use_listings_cache=False)
        return filesystem, base.rstrip("/")

    @contextlib.contextmanager
    def _at(self, name: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path of an object; errors are as in `_naming`."""
        if name and not is_plain(name):
            raise RunError(
                f"{self.url}: {name!r} is not a name that a run's file can have; do not use "
                "this run"
            )
        with self._naming(name):
            filesystem, base = self._place
            yield filesystem, f"{base}/{name}" if name else base

    @contextlib.contextmanager
    def _naming(self, name: str = "") -> Iterator[None]:
        """Turn a client's errors into one line; FileNotFoundError passes unchanged."""
        address = f"{self.url}/{name}" if name else self.url
        try:
            with _waiting(address):
                yield
        except (FileNotFoundError, FileExistsError, DatamaskError):
            raise
        except ImportError as error:
            if is_transient(error):
                raise
            extra = EXTRAS.get(self.protocol)
            how = f"pip install 'datamask-pipeline[{extra}]'" if extra else f"{error}"
            raise RunError(f"{address}: needs a package that is not installed; {how}") from None
        except Exception as error:
            reason = one_line(error) or type(error).__name__
            if is_refused(error):
                raise RunError(f"{address}: refused ({reason}); {CREDENTIALS}") from None
            if isinstance(error, ValueError | NotImplementedError):
                raise RunError(f"{address}: not a place for a run ({reason})") from None
            raise StorageError(f"{address}: {reason}; try again") from error

    def list(self, folder: str) -> dict[str, Entry]:
        """List all objects in a folder and below, by name."""
        with self._at(folder) as (filesystem, key):
            try:
                listed = filesystem.find(key, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._place[1]) + 1
        entries = {name[start:]: _entry(info) for name, info in listed.items()}
        return {
            name: e for name, e in entries.items() if name.startswith(folder) and is_plain(name)
        }

    def find(self, name: str) -> Entry | None:
        """Look up an object; None if it does not exist."""
        with self._at(name) as (filesystem, key):
            try:
                info = filesystem.info(key)
            except FileNotFoundError:
                return None
        return _entry(info) if info["type"] == "file" else None

    def get(self, name: str, path: Path) -> None:
        """Write an object's bytes to a local file."""
        with self._at(name) as (filesystem, key):
            filesystem.get_file(key, str(path))

    def read(self, name: str) -> bytes:
        """Read the bytes of a small object."""
        with self._at(name) as (filesystem, key):
            content: bytes = filesystem.cat_file(key)
        return content

    @contextlib.contextmanager
    def open(self, name: str, **options: Any) -> Iterator[Any]:
        """Yield an object as a file, to read ranges of it."""
        with (
            self._at(name) as (filesystem, key),
            filesystem.open(key, "rb", **options) as file,
        ):
            yield file

    def put(self, name: str, path: Path) -> Entry:
        """Store a local file under a name, whole or not at all."""
        if path.stat().st_size <= SMALL_BYTES:
            return self.write(name, path.read_bytes())
        with self._at(name) as (filesystem, key), self._existing_bucket():
            filesystem.put_file(str(path), key)
        return self._written(name, path.stat().st_size, None)

    def write(self, name: str, content: bytes) -> Entry:
        """Store a small object under a name, whole or not at all."""
        with self._at(name) as (filesystem, key), self._existing_bucket():
            answer = filesystem.pipe_file(key, content)
        return self._written(name, len(content), answer)

    def _written(self, name: str, size: int, answer: object) -> Entry:
        """Return the entry of a written object; look it up if the answer has no version."""
        if isinstance(answer, dict) and {"generation", "ETag"} & {*answer}:
            return _entry({**answer, "size": size})
        entry = self.find(name)
        # Without leases, another process may have replaced it meanwhile.
        return entry if entry is not None and entry.size == size else Entry(size, "")

    @contextlib.contextmanager
    def _existing_bucket(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise RunError(f"{self.url}: no such bucket ({error}); make it first") from None

    def remove(self, name: str) -> None:
        """Delete an object if it exists."""
        with self._at(name) as (filesystem, key), contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(key)

    def copy(self, name: str, to: str) -> None:
        """Store an object under another name too."""
        with self._at(name) as (filesystem, key):
            filesystem.cp_file(key, f"{self._place[1]}/{to}")

    def replace(self, name: str, content: bytes, seen: Entry | None) -> Entry | None:
        """Store a small object if it is still as seen (None: absent); return None if it is not.

        Raises:
            NoConditionsError: the store does not support the condition.
        """
        with self._at(name) as (filesystem, key):
            try:
                if seen is None:
                    answer = filesystem.pipe_file(key, content, mode="create")
                elif EXTRAS[self.protocol] == "s3":
                    answer = filesystem.pipe_file(key, content, IfMatch=seen.version)
                else:
                    answer = _replace_generation(filesystem, key, content, seen.version)
            except (FileExistsError, FileNotFoundError):
                if seen is None and not filesystem.exists(self._place[1].partition("/")[0]):
                    raise RunError(f"{self.url}: no such bucket; make it first") from None
                return None
            except Exception as error:
                if code_of(error) in _CONFLICTS:
                    return None
                if code_of(error) in _UNKNOWN:
                    raise NoConditionsError(f"{self.url}: no conditional writes") from None
                raise
        return self._written(name, len(content), answer)


@contextlib.contextmanager
def _waiting(address: str) -> Iterator[None]:
    """Log that the store is waited for if the block takes longer than `SECONDS_BEFORE_LINE`."""
    line = "%s: not finished after %g seconds; waiting for the store"
    timer = threading.Timer(SECONDS_BEFORE_LINE, logger.info, (line, address, SECONDS_BEFORE_LINE))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def has_conditions(url: str) -> bool:
    """Return True if `ObjectStore.replace` is reliable; tried once per process.

    S3 servers without conditional writes ignore the condition, and then two workers would hold the
    same lease.
    """
    store = ObjectStore(url)
    if store.protocol in EXTRAS and _try_conditions(store):
        return True
    logger.warning(
        "%s: this store has no conditional write that datamask knows; continuing without leases: "
        "do not let two processes work in this run at once",
        url,
    )
    return False


def _try_conditions(store: ObjectStore) -> bool:
    name = f"locks/trial-{uuid.uuid4().hex}"
    try:
        first = store.replace(name, b"1", None)
        if first is None or store.replace(name, b"2", None) is not None:
            return False
        second = store.replace(name, b"3", first)
        return second is not None and store.replace(name, b"4", first) is None
    except NoConditionsError:
        return False
    finally:
        store.remove(name)


def _replace_generation(filesystem: Any, key: str, content: bytes, generation: str) -> Any:
    """Google Cloud Storage's conditional upload, for which gcsfs has no public function."""
    from fsspec.asyn import sync

    bucket, name, _ = filesystem.split_path(key)
    return sync(
        filesystem.loop,
        filesystem._call,
        "POST",
        f"{filesystem._location}/upload/storage/v1/b/{bucket}/o",
        uploadType="media",
        name=name,
        ifGenerationMatch=generation,
        headers={"Content-Type": "application/octet-stream"},
        data=content,
        json_out=True,
    )


def _entry(info: dict[str, Any]) -> Entry:
    keys = ("generation", "ETag", "etag", "content_md5", "mtime", "created")
    return Entry(int(info["size"]), str(next(filter(None, map(info.get, keys)), "")))
