"""DuckDB with a memory limit and room to spill, gone when the work is done.

Whole-corpus steps (unique ids, ranks, pruning) must not depend on memory. DuckDB spills to a
temporary folder inside the run, where the operator has provided for space, and a full disk or too
small a limit becomes one line with the remedy.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError, RunError, StorageError

_DISK_FULL = ("No space left", "quota exceeded", "max_temp_directory_size")
"""What the system, or DuckDB, says of a full disk."""


@contextlib.contextmanager
def temporary_duckdb(root: Path, compute: Compute) -> Iterator[Any]:
    """A connection to an empty database in a folder of its own under *root*.

    Raises:
        StorageError: no space left.
        RunError: the work does not fit `compute.duckdb_memory`, or a file cannot be written.
        CorruptFileError: a file that DuckDB reads is damaged.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix=".duckdb-", dir=root) as folder:
        options: dict[str, Any] = {
            "memory_limit": compute.duckdb_memory,
            "threads": compute.duckdb_threads,
            "temp_directory": folder,
        }
        try:
            with duckdb.connect(str(Path(folder) / "work.duckdb"), config=options) as connection:
                yield connection
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _disk_full(root) from error
            raise
        except (
            duckdb.OutOfMemoryException,
            duckdb.IOException,
            duckdb.TransactionException,  # a commit that could not be written
            duckdb.FatalException,
        ) as error:
            reason = " ".join(str(error).split()).partition(" Possible solutions")[0]
            if any(sign in reason for sign in _DISK_FULL):
                raise _disk_full(root) from error
            if isinstance(error, duckdb.OutOfMemoryException):
                remedy = "raise compute.duckdb_memory"
            else:
                remedy = (
                    "check that files there can be read and written, and the limit of their size"
                )
            raise RunError(f"{root}: DuckDB: {reason}; {remedy}") from error
        except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
            # What a damaged Parquet file of ours provokes.
            raise CorruptFileError(
                f"{root}: DuckDB: {' '.join(str(error).split())[:300]}; `datamask verify {root}` "
                "finds damaged files, a relaunch makes them again"
            ) from error


def _disk_full(root: Path) -> StorageError:
    return StorageError(
        f"{root}: no space left for DuckDB's temporary files; free some and relaunch"
    )


def read_only_duckdb(path: Path) -> Any:
    """A connection to a database file that opens no other file and loads no extension.

    COPY, even inside a WITH, may still write the file that is open (DuckDB 2.0), so
    `analysis.query` accepts no more than a SELECT. All connections of a process to one file have to
    be made here: DuckDB refuses a second one of another configuration.
    """
    import duckdb

    return duckdb.connect(str(path), read_only=True, config={"enable_external_access": "false"})
