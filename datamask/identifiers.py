"""Every document has an id and no two have the same, across all files.

Joins, ties and the published subset all rest on this, so it is checked once, when a run is
planned, before anything expensive. Only the id column is read; DuckDB groups it out of core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datamask.config import Compute
from datamask.errors import DatamaskError, InputError
from datamask.out_of_core import temporary_duckdb
from datamask.sources import open_parquet
from datamask.store import Piece


def check_ids(root: Path, pieces: Iterable[Piece], column: str, compute: Compute) -> None:
    """Check that no document's id is absent and that all differ, in DuckDB, out of core.

    Args:
        root: the run's folder; DuckDB spills there.
        pieces: the plan; names the files.
        column: the id column.
        compute: DuckDB's memory and threads.

    Raises:
        InputError: naming the file and row of an absent id, or repeated ids with their counts.
    """
    import duckdb

    paths = list(dict.fromkeys(piece.path for piece in pieces))
    kept: list[DatamaskError] = []
    with temporary_duckdb(root, compute) as connection:
        try:
            _ids_table(connection, _read_ids(paths, column, kept))
        except duckdb.Error:
            if kept:
                raise kept[0] from None
            raise
        connection.execute(
            "CREATE TEMP TABLE repeated AS "
            "SELECT id, count(*) AS n FROM ids GROUP BY id HAVING n > 1"
        ).fetchall()
        total = connection.execute("SELECT count(*) FROM repeated").fetchall()[0][0]
        if not total:
            return
        examples = connection.execute(
            "SELECT i.id, any_value(r.n), list_sort(list(DISTINCT i.file)) FROM ids i "
            "JOIN (FROM repeated ORDER BY id LIMIT 3) r ON i.id = r.id "
            "GROUP BY i.id ORDER BY i.id"
        ).fetchall()
    shown = "; ".join(
        f"{key!r} {count} times in {', '.join(paths[file] for file in files[:3])}"
        for key, count, files in examples
    )
    raise InputError(
        f"{total} ids are not unique ({shown}); make every id occur once", column=column
    )


_IDS = pa.schema([("id", pa.string()), ("file", pa.int32())])


def _ids_table(connection: Any, batches: Iterator[pa.RecordBatch]) -> None:
    reader = pa.RecordBatchReader.from_batches(_IDS, batches)
    connection.register("arriving", reader)
    connection.execute("CREATE TEMP TABLE ids AS SELECT id, file FROM arriving").fetchall()
    connection.unregister("arriving")


def _read_ids(paths: list[str], column: str, kept: list[DatamaskError]) -> Iterator[pa.RecordBatch]:
    """Ids as text with their file's number. Errors are kept: DuckDB would replace their type."""
    try:
        for number, path in enumerate(paths):
            row = 0
            with open_parquet(path) as file:
                for batch in file.iter_batches(batch_size=2**16, columns=[column]):
                    ids = batch.column(0).cast(pa.string())
                    if ids.null_count:
                        row += pc.index(ids.is_null(), True).as_py()
                        raise InputError("null; give it an id", path=path, row=row, column=column)
                    row += len(ids)
                    files = pa.repeat(pa.scalar(number, pa.int32()), len(ids))
                    yield pa.RecordBatch.from_arrays([ids, files], schema=_IDS)
    except DatamaskError as error:
        kept.append(error)
        raise
