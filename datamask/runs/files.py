"""How the files of a run are written and read: whole or not at all, with checksums."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import CorruptFileError, StorageError
from datamask.runs.receipt import RECEIPT_KEY, Receipt, fingerprint_or_none
from datamask.storage.location import (
    remote_folder,
    remote_folder_of,
)


def checksum_path(root: Path, path: Path) -> Path:
    """Where the SHA-256 of a file of a run is kept."""
    inner = path.relative_to(root)
    return root / "checksums" / inner.parent / f"{inner.name}.sha256"


def noted_sha256(root: Path, path: Path) -> str:
    """The SHA-256 that was noted when a file of a run was written; empty if there is none."""
    remote = remote_folder(root)
    if remote:
        return remote.noted_sha256(path)
    try:
        return checksum_path(root, path).read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replace_file(path: Path, *, root: Path | None = None) -> Iterator[Path]:
    """Yield a temporary name beside *path*; on success sync it and move it into place.

    A file of a run at a URL is put into its store first, so that nobody finds it here alone.

    Args:
        path: the final name.
        root: the run's folder, if the file's checksum is to be kept there.

    Raises:
        StorageError: the disk is full.
    """
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if root is not None:
            with replace_file(checksum_path(root, path)) as note:
                note.write_text(
                    f"{sha256_of(temporary)}  {path.relative_to(root)}\n", encoding="utf-8"
                )
        remote = remote_folder_of(path)
        if remote:
            remote.put(temporary, path)
        os.replace(temporary, path)
        if remote:
            remote.placed(path, fingerprint_or_none(path) if root is not None else "")
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"{path}: no space left on the device; free some and relaunch, finished files stay"
            ) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_parquet(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch | pa.Table],
    receipt: Callable[[int], Receipt] | None = None,
    *,
    root: Path | None = None,
    **options: Any,
) -> Receipt | None:
    """Stream batches to a Parquet file that appears whole or not at all.

    Args:
        path: the final name.
        schema: the declared schema; every batch must have it.
        batches: consumed once.
        receipt: called with the number of rows when all are written; its answer is stored in the
            footer under `datamask`. None for files that are part of another's output.
        root: the run's folder, if the file's checksum is to be kept there.
        **options: of `pyarrow.parquet.ParquetWriter`.
    """
    made: list[Receipt] = []

    def noted(rows: int) -> Receipt:
        assert receipt is not None
        made.append(receipt(rows))
        return made[0]

    with parquet_output(path, schema, noted if receipt else None, root=root, **options) as write:
        for batch in batches:
            write(batch)
    return made[0] if made else None


@contextlib.contextmanager
def parquet_output(
    path: Path,
    schema: pa.Schema,
    receipt: Callable[[int], Receipt] | None = None,
    *,
    root: Path | None = None,
    **options: Any,
) -> Iterator[Callable[[pa.RecordBatch | pa.Table], None]]:
    """The same for who has several files in hand at once: yields what writes a batch."""
    rows = 0
    with replace_file(path, root=root) as temporary:
        settings = {"compression": "zstd", "write_page_checksum": True, **options}
        with pq.ParquetWriter(temporary, schema, **settings) as writer:

            def write(batch: pa.RecordBatch | pa.Table) -> None:
                nonlocal rows
                writer.write(batch)
                rows += batch.num_rows

            yield write
            if receipt is not None:
                text = receipt(rows).to_json()
                writer.add_key_value_metadata({RECEIPT_KEY.decode(): text})


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a damaged file of ours provokes in Arrow into one line.

    Raises:
        CorruptFileError: the file cannot be read, or its pages are not as written.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptFileError(
            f"{path}: damaged ({' '.join(str(error).split())[:200]}); delete it and relaunch, or "
            "let `datamask verify` find all such files"
        ) from None


def read_columns(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a file of ours, its pages' checksums verified.

    Raises:
        CorruptFileError: it is damaged.
    """
    with reading(path):
        return pq.read_table(path, columns=columns, page_checksum_verification=True)
