"""Files of the user, opened such that what is read is what planning saw.

Planning notes a digest of every input. A reader passes that digest, and gets rows only of a file
that has the digest:

- Of a Parquet file, size and footer are compared when it is opened. A local file must then stay as
  it is until its last row is read.
- Of another file, every byte is compared: those that the reader got, while it got them.
- A file whose SHA-256 is on record, as of a converted copy or labels in a run, is compared with it.

An object store refuses ranges of an object that has changed since it was opened, if its client asks
for the version that was opened, as that of S3 does. A file of the Hub is read at a fixed commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import DatamaskError, InputError
from datamask.runs.opening import run_storage
from datamask.source.long_texts import may_expand
from datamask.source.opening import is_remote, list_files, naming, open_binary, resolve_path
from datamask.storage.unchanged import State, content_digest, not_as_planned, state_of

SCORE_SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")

SIGNATURE_BYTES = 28
"""Nonce and tag that follow a plain footer where columns are encrypted (Parquet Modular Encryption,
section 5.5)."""

TAIL_BYTES = 64 * 2**10
"""Bytes fetched from the end of a Parquet file at first: most footers are smaller."""

DIGITS = 32
"""Hexadecimal digits of a digest."""


class PinnedParquet(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """A Parquet file that gives rows only while it is the file that was opened.

    `size` is in bytes; `digest` identifies the file by size and footer.
    """

    def __init__(
        self, raw: Any, path: str, shard: int | None, text: str | None, state: State | None
    ) -> None:
        self.path, self.shard, self._state, self._is_compared = path, shard, state, False
        self.size, footer = _read_footer(raw, path, shard)
        whole = hashlib.sha256(f"{self.size}/".encode() + footer[:-8])
        self.digest = whole.hexdigest()[:DIGITS]
        # Arrow itself reads the footer of a local file in half the time.
        is_needed = text or state is None
        metadata = pq.read_metadata(pa.BufferReader(footer)) if is_needed else None
        encoded = [text] if text and may_expand(metadata, text) else None
        # Of a local file, all that is buffered ahead would stay in memory.
        options = {"metadata": metadata, "read_dictionary": encoded}
        checked = {"page_checksum_verification": True}
        super().__init__(raw, pre_buffer=state is None, **options, **checked)
        if len(footer) - 8 - self.metadata.serialized_size == SIGNATURE_BYTES:
            # PyArrow aborts the whole process when it reads an encrypted column.
            raise InputError("has encrypted columns; decrypt it", path=path, shard=shard)

    def check(self) -> None:
        """Refuse a local file that is not, or not any more, the one that was opened."""
        if self._state is not None and self._state != state_of(os.stat(self.path)):
            raise not_as_planned(self.path, self.shard)

    def _check_bytes(self) -> None:
        """Compare the bytes with those on record, before the first row is read."""
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
    if is_remote(path):
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

    Of a remote file, only the requested columns are fetched, in few large requests, and nothing is
    kept on disk. The *shard* is named in errors about files of the source. *planned* is the file's
    digest when the run was planned, if there is one to compare with. The column *text* is read as
    its distinct values if its rows may need much more memory.

    Raises:
        InputError: missing, truncated, encrypted, not a Parquet file, or not the planned one.
    """
    with (
        naming(path, shard),
        _opened(path, shard) as (raw, state),
        PinnedParquet(raw, path, shard, text, state) as file,
    ):
        if planned not in (None, file.digest):
            raise not_as_planned(path, shard)
        yield file
        file.check()


@contextlib.contextmanager
def _opened(path: str, shard: int | None) -> Iterator[tuple[Any, State | None]]:
    """A file and, if it is local, its state before it was opened."""
    if is_remote(path):
        # fsspec would read ahead past the requested columns; Arrow joins neighbours itself.
        exact = {"cache_type": "none"} if path.startswith(("hf://", "s3://")) else {}
        with open_binary(path, shard, **exact) as raw:
            yield raw, None
        return
    state = state_of(os.stat(path))
    # Arrow reads its own files faster than those of Python.
    with pa.OSFile(path) as raw:
        yield raw, state


LFS = b"version https://git-lfs"
"""The beginning of what git checks out in place of a file if git-lfs is not installed."""


def check_pointer(beginning: bytes, path: str, shard: int | None = None) -> None:
    """Raise InputError if a file begins as a pointer of git-lfs does."""
    if bytes(beginning).startswith(LFS):
        problem = "a pointer of git-lfs, not the file; install git-lfs and run `git lfs pull` there"
        raise InputError(problem, path=path, shard=shard)


def check_local(path: str, name: str) -> None:
    """`check_pointer` for a local file, which messages call *name*."""
    with open(path, "rb") as file:
        check_pointer(file.read(len(LFS)), name)


def _read_footer(file: Any, path: str, shard: int | None) -> tuple[int, bytes]:
    """The size of a Parquet file, and its footer with the eight bytes that end the file."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] == b"PARE":
        raise InputError("its footer is encrypted; decrypt it", path=path, shard=shard)
    if tail[-4:] != b"PAR1" or length + 4 > size:
        file.seek(0)
        check_pointer(file.read(len(LFS)), path, shard)
        raise InputError("truncated, or not a Parquet file; replace it", path=path, shard=shard)
    if length > len(tail):
        file.seek(size - length)
        tail = file.read(length - len(tail)) + tail
    return size, tail[-length:]


class _Hashing(io.RawIOBase):
    """Bytes of a file, hashed as they are read; once it has ended for a reader, it stays so."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._hash, self._ended = raw, hashlib.sha256(), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # A file that is being written can end early and go on later: no reader got the rest.
        block = b"" if self._ended else self._raw.read(len(buffer))
        self._ended = not block
        self._hash.update(block)
        buffer[: len(block)] = block
        return len(block)

    def digest(self) -> str:
        """The digest of the file up to its end; reads what is left of it."""
        while not self._ended and (block := self._raw.read(2**20)):
            self._hash.update(block)
        return self._hash.hexdigest()[:DIGITS]


@contextlib.contextmanager
def open_text(path: str) -> Iterator[io.BufferedReader[_Hashing]]:
    """Open a text file if it can be UTF-8; otherwise Arrow would blame its rows."""
    check_on_record(path)
    with open_binary(path) as raw:
        file = io.BufferedReader(_Hashing(raw), 2**20)
        check_pointer(file.peek(len(LFS)), path)
        if b"\0" in file.peek(4)[:4]:
            raise InputError("encoded in UTF-16 or UTF-32; convert it to UTF-8", path=path)
        yield file


class PlannedFiles:
    """The files of a setting (a folder, glob, file or URL), digested as they are read.

    Of a folder or glob, those that end with one of *suffixes*; there must be some.
    """

    def __init__(self, path: str, suffixes: tuple[str, ...] = SCORE_SUFFIXES) -> None:
        self.path, self.suffixes = path, suffixes
        self.names = list_files(path, suffixes)
        self._digests: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def open_parquet(self, name: str) -> Iterator[PinnedParquet]:
        """Open one of the files, as `open_parquet`."""
        with open_parquet(name) as file:
            self._digests.setdefault(name, set()).add(file.digest)
            yield file

    @contextlib.contextmanager
    def open_text(self, name: str) -> Iterator[io.BufferedReader[_Hashing]]:
        """Open one of the files, as `open_text`; what the block leaves is read for the digest."""
        with open_text(name) as file:
            yield file
            self._digests.setdefault(name, set()).add(file.raw.digest())

    def digest(self) -> str:
        """One digest of the names and digests of all files; those not read yet are read now."""
        whole = hashlib.sha256()
        for name in self.names:
            digests = sorted(self._digests.get(name) or {_digest(name)})
            whole.update(f"{name}\0{' '.join(digests)}\n".encode())
        return whole.hexdigest()[:DIGITS]

    @contextlib.contextmanager
    def compared(self, planned: str | None) -> Iterator[None]:
        """Refuse the files unless those that a block has read have the digest *planned*, if any.

        Files that have changed are an error in place of the block's own about them.
        """
        try:
            yield
        except DatamaskError:
            if planned not in (None, digest_files(self.path, self.suffixes)):
                raise not_as_planned(self.path) from None
            raise
        if planned not in (None, self.digest()):
            raise not_as_planned(self.path)


def _digest(path: str) -> str:
    """What identifies one of some planned files."""
    if path.lower().endswith(".parquet"):
        with open_parquet(path) as file:
            return file.digest
    return digest_file(path)


def digest_file(path: str) -> str:
    """What identifies the content of a file: a digest of every byte."""
    with naming(path):
        if not is_remote(path):
            return content_digest(path)
        with open_binary(path) as raw:
            return _Hashing(raw).digest()


def digest_files(path: str, suffixes: tuple[str, ...] = SCORE_SUFFIXES) -> str:
    """One digest of all such files at *path*; raises as `PlannedFiles` and `open_parquet`."""
    return PlannedFiles(path, suffixes).digest()
