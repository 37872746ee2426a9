"""Open temporary DuckDB databases with a memory limit and a folder to spill to.

Whole-corpus steps (unique ids, ranks, pruning) must not depend on memory. DuckDB spills to a
temporary folder inside the run, and a full disk or too small a limit becomes one line with the
remedy.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datamask.config.compute import Compute
from datamask.errors import (
    CorruptFileError,
    RunError,
    StorageError,
    is_disk_full,
    is_out_of_memory,
    known,
    one_line,
)
from datamask.storage.temporary import temporary_folder

ROWS_AT_ONCE = 65_536

FILES_AT_ONCE = 256
"""Number of files that one statement reads. A statement for each file would add milliseconds per
file."""

SHARD_OF_FILE = "regexp_extract(filename, '([0-9]+)[.]parquet$', 1)::INT"
"""SQL that computes the shard of a row of `read_parquet(..., filename = true)` from its file's
name."""


def groups_of_files(number: int) -> Iterator[range]:
    """Yield the indices of *number* files, in groups that one statement reads."""
    for first in range(0, number, FILES_AT_ONCE):
        yield range(first, min(first + FILES_AT_ONCE, number))


@contextlib.contextmanager
def temporary_duckdb(root: Path, compute: Compute) -> Iterator[Any]:
    """Yield a connection to an empty database, which spills to a folder of its own under *root*.

    The database is in memory: compressing the tables of a database in a file takes as long as the
    work with them.

    Raises:
        StorageError: no space left.
        RunError: the work does not fit `compute.duckdb_memory`, or a file cannot be written.
        CorruptFileError: a file that DuckDB reads is damaged.
    """
    import duckdb

    with temporary_folder(root) as folder:
        options: dict[str, Any] = {
            "memory_limit": compute.duckdb_memory,
            "threads": max(2, compute.workers),
            "temp_directory": str(folder),
        }
        try:
            with duckdb.connect(config=options) as connection:
                yield connection
        except OSError as error:
            if is_disk_full(error):
                raise _disk_full(root) from error
            raise
        except (
            duckdb.OutOfMemoryException,
            duckdb.IOException,
            duckdb.TransactionException,  # A commit could not be written.
            duckdb.FatalException,
        ) as error:
            reason = one_line(error).partition(" Possible solutions")[0]
            if is_disk_full(error):
                raise _disk_full(root) from error
            if is_out_of_memory(error):
                raise known(error) from error
            remedy = "check that files there can be read and written, and the limit of their size"
            if isinstance(error, duckdb.OutOfMemoryException):
                remedy = "raise compute.duckdb_memory"
            raise RunError(f"{root}: DuckDB: {reason}; {remedy}") from error
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
            raise  # The statement has a bug.
        except duckdb.Error as error:
            # All other classes of error, and there are many, come from a damaged Parquet file.
            raise CorruptFileError(
                f"{root}: DuckDB: {one_line(error)[:300]}; `datamask verify "
                f"{shlex.quote(str(root))}` finds damaged files, and a relaunch makes them again"
            ) from error


def execute(connection: Any, query: str, parameters: list[Any] | None = None) -> list[Any]:
    """Execute a query and return its rows."""
    rows: list[Any] = connection.execute(query, parameters or []).fetchall()
    return rows


def value_at(connection: Any, value: str, rows: str, index: int) -> Any:
    """Return the value at an index (from 0) of the sorted *rows* (SQL), sorted out of core."""
    query = f"SELECT {value} FROM {rows} ORDER BY {value} LIMIT 1 OFFSET {index}"
    return execute(connection, query)[0][0]


def last_within(connection: Any, table: str, total: int, order: str) -> tuple[Any, ...]:
    """Return the row at which the `units` in *order* reach *total*; the last row if none does.

    Args:
        connection: DuckDB.
        table: with `units`, and the columns of *order*.
        total: the units to reach; for 0, no row is returned: ().
        order: as in ORDER BY.
    """
    columns = order.replace(" DESC", "")
    window = f"OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    rows = execute(
        connection,
        f"SELECT {columns} FROM (SELECT {columns}, sum(units) {window} - units AS before, "
        f"row_number() {window} AS number FROM {table}) WHERE before < {total} "
        "ORDER BY number DESC LIMIT 1",
    )
    return tuple(rows[0]) if rows and total > 0 else ()


def is_sampled(documents: int, size: int) -> str:
    """Return SQL that is true for documents in a sample; it reads `id` and is the same everywhere.

    *documents* counts the corpus; the sample has at least *size* and less than twice as many
    documents.
    """
    every = documents // size
    return f"{hash_of('id')} % {every} = 0" if every > 1 else "true"


def hash_of(text: str) -> str:
    """Return SQL for the last 8 bytes of a text's MD5: `md5_number_lower`, five times as fast."""
    return f"(md5_number({text}) >> 64)::UBIGINT"


def stream(connection: Any, query: str) -> Iterator[Any]:
    """Yield the batches of a query, as Arrow. Errors are as in `temporary_duckdb`."""
    import duckdb

    kinds = {"Out of Memory": duckdb.OutOfMemoryException, "IO": duckdb.IOException}
    try:
        yield from connection.sql(query).to_arrow_reader(ROWS_AT_ONCE)
    except OSError as error:
        # Arrow keeps only the message of DuckDB's errors.
        kind = str(error).partition(" Error:")[0]
        raise kinds.get(kind, duckdb.InvalidInputException)(str(error)) from None


def execute_with(connection: Any, arriving: Any, query: str, *parameters: Any) -> None:
    """Execute a query that reads *arriving*, a table or a stream of Arrow, by that name."""
    connection.register("arriving", arriving)
    connection.execute(query, parameters).fetchall()
    connection.unregister("arriving")


def _disk_full(root: Path) -> StorageError:
    return StorageError(
        f"{root}: no space left for DuckDB's temporary files; free some and relaunch"
    )


def read_only_duckdb(path: Path) -> Any:
    """Open a connection to a database file; it loads no extension.

    It opens no other files but those in `documents/` and `tokens/` next to the database. COPY, even
    inside a WITH, may still write the open file (DuckDB 2.0), so `analysis.summary` accepts only a
    SELECT. All connections of a process to one file must be made here: DuckDB refuses a second one
    with another configuration.
    """
    import duckdb

    connection = duckdb.connect(str(path), read_only=True)

    def is_open() -> bool:
        setting = "SELECT current_setting('enable_external_access')"
        return bool(connection.execute(setting).fetchall() != [(False,)])

    if is_open():  # No other connection of this process has done this.
        folder = str(path.absolute().parent).replace("'", "''")
        folders = f"['{folder}/documents/', '{folder}/tokens/']"
        # DuckDB refuses this if another connection does it meanwhile.
        with contextlib.suppress(duckdb.InvalidInputException):
            connection.execute(f"SET allowed_directories = {folders}")
            connection.execute("SET enable_external_access = false")
        if is_open():
            raise AssertionError("external access is not disabled")
    return connection
