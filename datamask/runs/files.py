"""Write files whole or not at all, and read them with their checksums verified."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import CorruptFileError, StorageError, is_disk_full, one_line
from datamask.runs.receipt import RECEIPT_KEY, Receipt
from datamask.storage.local import Storage, move_into_place
from datamask.storage.names import inside
from datamask.storage.temporary import temporary_folder


@contextlib.contextmanager
def replace_file(
    path: Path, storage: Storage | None = None, *, root: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary name; on success move the file into place at *path*.

    For a file of a run, give the run's *storage*. Give the run's folder as *root* for a copy of a
    file that has a checksum. The temporary file of a run is in the run's folder `tmp/`; any other
    temporary file is next to *path*.

    Raises:
        StorageError: the disk is full.
        RunError: *path* is outside of the run.
    """
    root = storage.root if storage is not None else root
    if root is not None:
        inside(root, path.relative_to(root).as_posix())
    with contextlib.ExitStack() as cleanup:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if root is not None:
                temporary = cleanup.enter_context(temporary_folder(root)) / path.name
            else:
                temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
                cleanup.callback(temporary.unlink, missing_ok=True)
            yield temporary
            if storage is None:
                move_into_place(temporary, path)
            else:
                storage.put(temporary, path.relative_to(storage.root).as_posix())
        except Exception as error:
            if is_disk_full(error):
                raise StorageError(
                    f"{path}: no space left on the device; free some and relaunch; finished files "
                    "stay"
                ) from error
            raise


def link_file(source: Path, path: Path, root: Path) -> str:
    """Link a file of another run to *path* in the run at *root*, or copy it: "linked" or "copied".

    Neither run is affected by later changes of the other: files are replaced, never changed.
    """
    with replace_file(path, root=root) as temporary:
        try:
            os.link(source, temporary)
            return "linked"
        except FileNotFoundError:
            raise
        except OSError:  # another disk or owner, too many links, or no links at all
            shutil.copyfile(source, temporary)
            return "copied"


def write_text_file(path: Path, text: str, storage: Storage | None = None) -> None:
    """Write a text file. Arguments and errors are as in `replace_file`."""
    with replace_file(path, storage) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_parquet(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch | pa.Table],
    receipt: Callable[[int], Receipt] | None = None,
    *,
    storage: Storage | None = None,
    **options: Any,
) -> int:
    """Stream batches to a Parquet file that appears whole or not at all; return its number of rows.

    *receipt* turns this number into the receipt that the footer stores under `datamask`; None for
    files that are part of another file's output. *storage* is as in `replace_file`, and *options*
    go to `pyarrow.parquet.ParquetWriter`.
    """
    rows = 0
    with parquet_output(path, schema, receipt, storage=storage, **options) as write:
        for batch in batches:
            write(batch)
            rows += batch.num_rows
    return rows


@contextlib.contextmanager
def parquet_output(
    path: Path,
    schema: pa.Schema,
    receipt: Callable[[int], Receipt] | None = None,
    *,
    storage: Storage | None = None,
    **options: Any,
) -> Iterator[Callable[[pa.RecordBatch | pa.Table], None]]:
    """Yield a function that writes a batch; use this to write several files at the same time."""
    rows = 0
    settings = {"compression": "zstd", "write_page_checksum": True, **_encodings(schema), **options}
    with (
        replace_file(path, storage) as temporary,
        pq.ParquetWriter(temporary, schema, **settings) as writer,
    ):

        def write(batch: pa.RecordBatch | pa.Table) -> None:
            nonlocal rows
            writer.write(batch)
            rows += batch.num_rows

        yield write
        if receipt is not None:
            writer.add_key_value_metadata({RECEIPT_KEY.decode(): receipt(rows).to_json()})


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Choose how Parquet encodes the columns of a run's file.

    A dictionary makes texts and scores with few values smaller, so it ends after 16,384 scores. For
    vectors, logits and hashes (unsigned), where hardly a value occurs twice, a dictionary makes
    files larger and reading four times as slow. Positions and counts are smaller as differences.
    """
    repeated = [field.name for field in schema if field.type in (pa.string(), pa.float64())]
    whole = (field.name for field in schema if pa.types.is_signed_integer(field.type))
    differences = dict.fromkeys(whole, "DELTA_BINARY_PACKED")
    return {
        "use_dictionary": repeated,
        "dictionary_pagesize_limit": 2**17,
        "column_encoding": differences,
    }


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn Arrow's errors about a damaged file of this package into a `CorruptFileError`."""
    try:
        yield
    except (OSError, ValueError, MemoryError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptFileError(
            f"{path}: damaged ({one_line(error)[:200]}); delete it and relaunch; the command "
            "verify finds all such files"
        ) from None


def read_columns(
    path: Path, columns: list[str] | None = None, filters: list[tuple[str, str, Any]] | None = None
) -> pa.Table:
    """Read these columns of the rows with, for example, ("shard", "=", 3), and verify checksums.

    Raises:
        CorruptFileError: it is damaged.
    """
    with reading(path):
        if filters is None:  # `pq.read_table` would import pandas where it is installed
            return pq.ParquetFile(path, page_checksum_verification=True).read(columns)
        return pq.read_table(
            path, columns=columns, filters=filters, page_checksum_verification=True
        )
