"""Find and open files of the user so that readers get exactly what planning saw.

Planning notes a digest of every input. A reader passes that digest, and gets rows only of a file
that has the digest:

- A Parquet file: size and footer are compared when it is opened. A local file must then stay as
  it is until its last row is read.
- Another file: every byte that the reader gets is hashed and compared meanwhile.
- A file whose SHA-256 is on record, such as a converted copy or labels in a run: this is compared.

An object store refuses ranges of an object that has changed since it was opened, if its client asks
for the version that was opened, as S3's client does. A file of the Hub is read at a fixed commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import (
    NOT_UTF8,
    DatamaskError,
    HubUnavailableError,
    InputError,
    StorageError,
    describe,
    is_transient,
    is_utf8,
    one_line,
    together,
)
from datamask.runs.opening import run_storage
from datamask.source.long_texts import may_expand
from datamask.storage import clients, unchanged
from datamask.storage.unchanged import (
    DIGITS,
    HashedReader,
    State,
    content_digest,
    not_as_planned,
    state_of,
)

SOURCE_PIN = "scores:source"
"""Key of the commit at which a Hub source is read, among a run's pinned revisions."""

SCORE_SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")

SIGNATURE_BYTES = 28
"""Nonce and tag that follow a plain footer where columns are encrypted (Parquet Modular Encryption,
section 5.5)."""

TAIL_BYTES = 64 * 2**10
"""Bytes fetched from the end of a Parquet file at first: most footers are smaller."""


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Value of the folder of rows without a value."""


def partitions(path: str) -> dict[str, str | None]:
    """Return the values that folders `name=value` of a path give to columns, as text, by name."""
    _, is_copy, name = path.rpartition("/converted/")
    folders = unquote(name) if is_copy and "/" not in name else path
    pairs = (folder.partition("=") for folder in folders.split("/")[:-1])
    values = {unquote(name): unquote(value) for name, equals, value in pairs if name and equals}
    return {name: None if value == NULL_FOLDER else value for name, value in values.items()}


def is_remote(path: str) -> bool:
    """Return True if a path is a URL that fsspec must open."""
    return "://" in path and not path.startswith("file://")


def resolve_path(path: str) -> str:
    """Make a local path or glob absolute; URLs stay as they are."""
    if not path or is_remote(path):
        return path
    return str(Path(path.removeprefix("file://")).expanduser().absolute())


@contextlib.contextmanager
def naming(path: str, shard: int | None = None) -> Iterator[None]:
    """Turn errors from reading *path* into one line that names it."""
    try:
        yield
        return
    except DatamaskError:
        raise
    except FileNotFoundError:
        problem = "no such file; restore it"
    except UnicodeEncodeError:
        problem = NOT_UTF8
    except Exception as error:
        reason, is_on_hub = one_line(error) or type(error).__name__, path.startswith("hf://")
        problem = f"cannot be read ({reason}); replace it with a whole file"
        if is_on_hub and clients.hub_is_unavailable(error):
            raise HubUnavailableError(f"{path}: {reason}; try again later") from None
        if is_on_hub and clients.http_status(error) in (401, 403, 404):
            problem = f"cannot be read ({reason}); check the address, and that HF_TOKEN may read it"
        elif isinstance(error, PermissionError) and not is_remote(path):
            problem = "no permission to read it; change its mode"
        elif is_remote(path) and not is_on_hub and clients.is_refused(error):
            problem = f"refused ({reason}); {clients.CREDENTIALS}"
        elif is_transient(error) or (not is_on_hub and clients.is_of_client(error)):
            raise StorageError(f"file {path}: {reason}; try again") from error
        elif not isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise
    raise InputError(problem, path=path, shard=shard)


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Turn errors about an invalid or inaccessible path or URL into one line that names it."""
    try:
        with naming(path):
            yield
        return
    except DatamaskError:
        raise
    except ImportError as error:
        problem = f"needs a package that is not installed ({one_line(error)})"
    except ValueError as error:
        problem = f"not a path or URL ({one_line(error)}); check it"
    except Exception as error:
        # Every object store's client has errors of its own, most often about credentials.
        if not is_remote(path):
            raise
        problem = f"cannot be listed ({describe(error)}); check the address, and the credentials "
        problem += "in the environment"
    raise InputError(problem, path=path)


def list_files(path: str, suffixes: tuple[str, ...] = (".parquet",)) -> tuple[str, ...]:
    """List the files of a folder (recursive), glob, single file or fsspec URL, sorted by path.

    In a folder or glob, files must end with a suffix of *suffixes* (lower case; `""` is any
    ending). There must be some.
    """
    with opening(path):
        filesystem, urlpath = clients.file_system(resolve_path(path))
        if filesystem.isfile(urlpath):
            names = [urlpath]
        else:
            # The name of an existing folder may hold such characters too.
            is_glob = any(character in urlpath for character in "*?[") and not filesystem.isdir(
                urlpath
            )
            listed = filesystem.glob(urlpath) if is_glob else filesystem.find(urlpath)
            names = [name for name in listed if name.lower().endswith(suffixes)]
            names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    odd = [InputError(NOT_UTF8, path=n) for n in names if not is_utf8(n)]
    if odd:
        raise together(odd)
    if not names:
        kinds = "".join(f"{kind} " for kind in [", ".join(suffixes)] if kind)
        problem = f"no {kinds}files found; check the path, and the right to read it"
        raise InputError(problem, path=path)
    if not is_remote(path):
        if any(suffixes):
            check_regular(names)
        return tuple(sorted(names))
    return tuple(sorted(filesystem.unstrip_protocol(name) for name in names))


def check_regular(names: Iterable[str]) -> None:
    """Raise InputError if a local name is not a regular file: reading a pipe never ends."""
    problem = "a pipe, socket, device or dead link in the place of a file; move it away"
    local = (name for name in names if not is_remote(name))
    if odd := [InputError(problem, path=name) for name in local if not os.path.isfile(name)]:
        raise together(odd)


def open_binary(path: str, shard: int | None = None, **options: str) -> IO[bytes]:
    """Open a local or remote file for reading, with options of its fsspec file system."""
    with naming(path, shard):
        if not is_remote(path):
            return open(path if path.startswith("/") else resolve_path(path), "rb")
        filesystem, urlpath = clients.file_system(path)
        file: IO[bytes] = filesystem.open(urlpath, "rb", **options)
        return file


class PinnedParquet(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """A Parquet file that gives rows only while it is the file that was opened.

    `size` is in bytes; `digest` identifies the file by size and footer.
    """

    def __init__(
        self, raw: Any, path: str, shard: int | None, text: str | None, state: State | None
    ) -> None:
        self.path, self.shard, self._state, self._is_compared = path, shard, state, False
        self.size, footer = _read_footer(raw, path, shard)
        folders = repr(sorted(partitions(path).items())).encode() if partitions(path) else b""
        whole = hashlib.sha256(f"{self.size}/".encode() + footer[:-8] + folders)
        self.digest = whole.hexdigest()[:DIGITS]
        # Arrow itself reads the footer of a local file in half the time.
        is_needed = text or state is None
        metadata = pq.read_metadata(pa.BufferReader(footer)) if is_needed else None
        encoded = [text] if text and may_expand(metadata, text) else None
        # All bytes buffered ahead from a local file would stay in memory.
        options = {"metadata": metadata, "read_dictionary": encoded}
        checked = {"page_checksum_verification": True}
        super().__init__(raw, pre_buffer=state is None, **options, **checked)
        if len(footer) - 8 - self.metadata.serialized_size == SIGNATURE_BYTES:
            # PyArrow aborts the whole process when it reads an encrypted column.
            raise InputError("has encrypted columns; decrypt it", path=path, shard=shard)

    def check(self) -> None:
        """Refuse a local file that is not, or no longer, the one that was opened."""
        if self._state is not None and self._state != state_of(os.stat(self.path)):
            raise not_as_planned(self.path, self.shard)

    def _check_bytes(self) -> None:
        """Compare the bytes with the recorded checksum, before the first row is read."""
        if not self._is_compared:
            check_on_record(self.path)
            self._is_compared = True

    def iter_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """As in pyarrow."""
        self._check_bytes()
        for batch in super().iter_batches(*args, **options):
            self.check()
            yield batch

    def read_row_group(self, *args: Any, **options: Any) -> pa.Table:
        """As in pyarrow."""
        self._check_bytes()
        table = super().read_row_group(*args, **options)
        self.check()
        return table


def check_on_record(path: str) -> None:
    """Compare a local file with its SHA-256 if the run, or the folder of `datamask ingest`, has it.

    Raises:
        CorruptFileError: the file is damaged; it is set aside.
    """
    if is_remote(path) or not os.path.exists(resolve_path(path)):
        return
    file = Path(resolve_path(path))
    for home in file.parents:
        name = file.relative_to(home).as_posix()
        if os.path.exists(f"{home}/records/{name}.json"):
            run_storage(home).fetch(name)


@contextlib.contextmanager
def open_parquet(
    path: str, shard: int | None = None, planned: str | None = None, text: str | None = None
) -> Iterator[PinnedParquet]:
    """Open a Parquet file; errors raised within the block name it too.

    From a remote file, only the requested columns are fetched, in few large requests, and nothing
    is kept on disk. The *shard* is named in errors about files of the source. *planned* is the
    file's digest when the run was planned, if there is one to compare with. The column *text* is
    read as its distinct values if its rows may need much more memory.

    Raises:
        InputError: missing, truncated, encrypted, not a Parquet file, or not the planned one.
        CorruptFileError: as by `check_on_record`.
    """
    try:
        with (
            naming(path, shard),
            _opened(path, shard) as (raw, state),
            PinnedParquet(raw, path, shard, text, state) as file,
        ):
            if planned not in (None, file.digest):
                raise not_as_planned(path, shard)
            yield file
            file.check()
    except InputError:
        # A damaged copy is made again; the user has nothing to correct in it.
        check_on_record(path)
        raise


@contextlib.contextmanager
def _opened(path: str, shard: int | None) -> Iterator[tuple[Any, State | None]]:
    """Yield a file and, if it is local, its state before it was opened."""
    if is_remote(path):
        # fsspec would read ahead past the requested columns; Arrow joins neighbours itself.
        exact = {"cache_type": "none"} if path.startswith(("hf://", "s3://")) else {}
        with open_binary(path, shard, **exact) as raw:
            yield raw, None
        return
    state = state_of(os.stat(path))
    # Arrow reads its own files faster than Python's.
    with pa.OSFile(path) as raw:
        yield raw, state


def _read_footer(file: Any, path: str, shard: int | None) -> tuple[int, bytes]:
    """Return the size of a Parquet file, and its footer with the eight bytes that end the file."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] == b"PARE":
        raise InputError("its footer is encrypted; decrypt it", path=path, shard=shard)
    if tail[-4:] != b"PAR1" or length + 4 > size:
        file.seek(0)
        unchanged.check_pointer(file.read(len(unchanged.LFS)), path, shard)
        raise InputError("truncated, or not a Parquet file; replace it", path=path, shard=shard)
    if length > len(tail):
        file.seek(size - length)
        tail = file.read(length - len(tail)) + tail
    return size, tail[-length:]


@contextlib.contextmanager
def open_text(path: str) -> Iterator[io.BufferedReader[HashedReader]]:
    """Open a text file if it can be UTF-8; otherwise Arrow would blame its rows."""
    check_on_record(path)
    with open_binary(path) as raw:
        file = io.BufferedReader(HashedReader(raw), 2**20)
        unchanged.check_pointer(file.peek(len(unchanged.LFS)), path)
        if b"\0" in file.peek(4)[:4]:
            raise InputError("encoded in UTF-16 or UTF-32; convert it to UTF-8", path=path)
        yield file


class PlannedFiles:
    """The files of a setting (a folder, glob, file or URL), digested as they are read.

    In a folder or glob, files must end with a suffix of *suffixes*; there must be some.
    """

    def __init__(self, path: str, suffixes: tuple[str, ...] = SCORE_SUFFIXES) -> None:
        self.path, self.suffixes = path, suffixes
        self.names = list_files(path, suffixes)
        self._digests: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def open_parquet(self, name: str) -> Iterator[PinnedParquet]:
        """Open one of the files, as `open_parquet` does."""
        with open_parquet(name) as file:
            self._digests.setdefault(name, set()).add(file.digest)
            yield file

    @contextlib.contextmanager
    def open_text(self, name: str) -> Iterator[io.BufferedReader[HashedReader]]:
        """Open one of the files, as `open_text` does; then read its rest for the digest."""
        with open_text(name) as file:
            yield file
            self._digests.setdefault(name, set()).add(file.raw.digest())

    def digest(self) -> str:
        """Return one digest of the names and digests of all files; reads those not read yet."""
        whole = hashlib.sha256()
        for name in self.names:
            if name not in self._digests and name.lower().endswith(".parquet"):
                with self.open_parquet(name):
                    pass
            digests = sorted(self._digests.get(name) or {digest_file(name)})
            whole.update(f"{name}\0{' '.join(digests)}\n".encode())
        return whole.hexdigest()[:DIGITS]

    @contextlib.contextmanager
    def compared(self, planned: str | None) -> Iterator[None]:
        """Refuse the files unless those that a block has read have the digest *planned*, if any.

        If files have changed, this error replaces the block's own error about them.
        """
        try:
            yield
        except DatamaskError:
            if planned not in (None, digest_files(self.path, self.suffixes)):
                raise not_as_planned(self.path) from None
            raise
        if planned not in (None, self.digest()):
            raise not_as_planned(self.path)


def digest_file(path: str) -> str:
    """Identify the content of a file by a digest of every byte."""
    with naming(path):
        if not is_remote(path):
            return content_digest(path)
        with open_binary(path) as raw:
            return HashedReader(raw).digest()


def digest_files(path: str, suffixes: tuple[str, ...] = SCORE_SUFFIXES) -> str:
    """Return one digest of the files at *path*. Errors: `PlannedFiles` and `open_parquet`."""
    return PlannedFiles(path, suffixes).digest()
