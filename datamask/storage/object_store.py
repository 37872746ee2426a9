"""A prefix of an object store as a folder of named objects, over fsspec.

A put is atomic: an object appears whole or not at all, also when it is sent in parts. Where the
store can, an object is created only if it is absent (`create`), or replaced only if it is still the
version that was seen (`replace`); S3 and what speaks its language by If-None-Match and If-Match,
Google Cloud Storage by generations. Credentials and endpoints come from the environment alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from datamask.errors import DatamaskError, RunError, StorageError

logger = logging.getLogger(__name__)

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Which extra of the distribution brings the client of a protocol."""

SMALL_BYTES = 8 * 2**20
"""Up to this size a file is sent in one request, whose answer names its version."""

_CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_UNKNOWN = ("NotImplemented", "501")
_REFUSED = (
    *("AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("ExpiredToken", "InvalidToken", "NoCredentialsError", "DefaultCredentialsError"),
)


class NoConditionsError(RunError):
    """The store does not know conditional writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing tells of it.

    Args:
        size: bytes.
        version: changes whenever the object is written (ETag or generation).
    """

    size: int
    version: str


class ObjectStore:
    """The objects under a URL, by name within it.

    Args:
        url: fsspec URL without credentials, such as s3://bucket/prefix.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.protocol = url.partition("://")[0]

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec

        # What other machines write must be seen: nothing of the store's listings is remembered.
        with self._talking():
            filesystem, base = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return filesystem, base.rstrip("/")

    def _at(self, name: str) -> tuple[Any, str]:
        filesystem, base = self._place
        return filesystem, f"{base}/{name}" if name else base

    @contextlib.contextmanager
    def _talking(self, name: str = "") -> Iterator[None]:
        """Turn what a client raises into one line; FileNotFoundError stays what it is."""
        place = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except (FileNotFoundError, FileExistsError, DatamaskError):
            raise
        except ImportError as error:
            extra = EXTRAS.get(self.protocol)
            how = f"pip install 'datamask-pipeline[{extra}]'" if extra else f"{error}"
            raise RunError(f"{place}: needs a package that is not here; {how}") from None
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, PermissionError) or _code(error) in _REFUSED:
                raise RunError(
                    f"{place}: refused ({reason}); check the credentials in the environment and "
                    "what they may do"
                ) from None
            if isinstance(error, ValueError | NotImplementedError):
                raise RunError(f"{place}: not a place for a run ({reason})") from None
            raise StorageError(f"{place}: {reason}; try again") from error

    def list(self, folder: str, prefix: str = "") -> dict[str, Entry]:
        """All objects in a folder and below, by name; those whose own name begins with *prefix*."""
        filesystem, place = self._at(folder)
        options = {"prefix": prefix} if prefix and self.protocol in EXTRAS else {}
        with self._talking(folder):
            try:
                found = filesystem.find(place, detail=True, **options)
            except FileNotFoundError:
                return {}
        start = len(self._place[1]) + 1
        head = f"{folder}/{prefix}" if folder else prefix
        entries = {name[start:]: _entry(info) for name, info in found.items()}
        return {name: entry for name, entry in entries.items() if name.startswith(head)}

    def find(self, name: str) -> Entry | None:
        """An object, or None."""
        filesystem, place = self._at(name)
        with self._talking(name):
            try:
                info = filesystem.info(place)
            except FileNotFoundError:
                return None
        return _entry(info) if info["type"] == "file" else None

    def get(self, name: str, path: Path) -> None:
        """Write an object's bytes to a local file.

        Raises:
            FileNotFoundError: there is no such object.
        """
        filesystem, place = self._at(name)
        with self._talking(name):
            filesystem.get_file(place, str(path))

    def read(self, name: str) -> bytes:
        """The bytes of a small object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        filesystem, place = self._at(name)
        with self._talking(name):
            content: bytes = filesystem.cat_file(place)
        return content

    @contextlib.contextmanager
    def open(self, name: str, **options: Any) -> Iterator[IO[bytes]]:
        """An object to read ranges of.

        Raises:
            FileNotFoundError: there is no such object.
        """
        filesystem, place = self._at(name)
        with contextlib.ExitStack() as stack:
            with self._talking(name):
                file = stack.enter_context(filesystem.open(place, "rb", **options))
            try:
                yield file
            except (ValueError, KeyError, TypeError):
                raise  # what was read is not what was hoped for, but it was read
            except Exception as error:
                with self._talking(name):
                    raise error

    def put(self, name: str, path: Path) -> Entry:
        """Store a local file under a name, whole or not at all."""
        if path.stat().st_size <= SMALL_BYTES:
            return self.write(name, path.read_bytes())
        filesystem, place = self._at(name)
        with self._talking(name), self._existing_bucket():
            filesystem.put_file(str(path), place)
        return self._written(name, path.stat().st_size, None)

    def write(self, name: str, content: bytes) -> Entry:
        """Store a small object under a name, whole or not at all."""
        filesystem, place = self._at(name)
        with self._talking(name), self._existing_bucket():
            answer = filesystem.pipe_file(place, content)
        return self._written(name, len(content), answer)

    def _written(self, name: str, size: int, answer: object) -> Entry:
        """What was written, by the store's answer, which names the version, or else asked for."""
        if isinstance(answer, dict) and {"generation", "ETag"} & {*answer}:
            return _entry({**answer, "size": size})
        entry = self.find(name)
        # Where there are no leases, another process may have replaced it at once.
        return entry if entry is not None and entry.size == size else Entry(size, "")

    @contextlib.contextmanager
    def _existing_bucket(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise RunError(f"{self.url}: no such bucket ({error}); make it first") from None

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        filesystem, place = self._at(name)
        with self._talking(name), contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(place)

    def move(self, name: str, to: str) -> None:
        """Give an object another name; it is under both for a moment."""
        filesystem, place = self._at(name)
        with self._talking(name):
            filesystem.cp_file(place, self._at(to)[1])
            filesystem.rm_file(place)

    def has_conditions(self) -> bool:
        """Whether `create` and `replace` can be relied on; tried out on an object of its own.

        Servers that speak S3 without knowing its conditions ignore them, and then two workers
        would hold the same lease.
        """
        return _has_conditions(self.url)

    def _try_conditions(self) -> bool:
        if self.protocol not in EXTRAS:
            return False
        name = f"locks/trial-{uuid.uuid4().hex}"
        try:
            first = self.create(name, b"1")
            if first is None or self.create(name, b"2") is not None:
                return False
            second = self.replace(name, b"3", first)
            return second is not None and self.replace(name, b"4", first) is None
        except NoConditionsError:
            return False
        finally:
            self.remove(name)

    def create(self, name: str, content: bytes) -> Entry | None:
        """Store a small object if there is none of this name; None if there is one.

        Raises:
            NoConditionsError: the store does not know such a condition.
        """
        return self._conditionally(name, content, None)

    def replace(self, name: str, content: bytes, seen: Entry) -> Entry | None:
        """Store a small object if it still is what was seen; None if it is not.

        Raises:
            NoConditionsError: the store does not know such a condition.
        """
        return self._conditionally(name, content, seen)

    def _conditionally(self, name: str, content: bytes, seen: Entry | None) -> Entry | None:
        filesystem, place = self._at(name)
        with self._talking(name):
            try:
                if seen is None:
                    answer = filesystem.pipe_file(place, content, mode="create")
                elif EXTRAS[self.protocol] == "s3":
                    answer = filesystem.pipe_file(place, content, IfMatch=seen.version)
                else:
                    answer = _replace_generation(filesystem, place, content, seen.version)
            except (FileExistsError, FileNotFoundError):
                if seen is None and not self._bucket_exists():
                    raise RunError(f"{self.url}: no such bucket; make it first") from None
                return None
            except Exception as error:
                if _code(error) in _CONFLICTS:
                    return None
                if _code(error) in _UNKNOWN:
                    raise NoConditionsError(f"{self.url}: no conditional writes") from None
                raise
        return self._written(name, len(content), answer)

    def _bucket_exists(self) -> bool:
        filesystem, base = self._place
        return bool(filesystem.exists(base.partition("/")[0]))


@functools.cache
def _has_conditions(url: str) -> bool:
    """The same, once in a process."""
    has_conditions = ObjectStore(url)._try_conditions()
    if not has_conditions:
        logger.warning(
            "%s: this store has no conditional write that datamask knows; going on without leases: "
            "do not let two processes work in this run at once",
            url,
        )
    return has_conditions


def _replace_generation(filesystem: Any, place: str, content: bytes, generation: str) -> Any:
    """Google Cloud Storage's conditional upload, for which gcsfs has no public name."""
    from fsspec.asyn import sync

    bucket, name, _ = filesystem.split_path(place)
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
    for key in ("generation", "ETag", "etag", "content_md5", "mtime", "created"):
        if info.get(key):
            return Entry(int(info["size"]), str(info[key]))
    return Entry(int(info["size"]), "")


def _code(error: BaseException | None) -> str:
    """What the store calls an error, or the name of the first that caused it."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if error.__cause__ is None:
            return type(error).__name__
        error = error.__cause__
    return ""
