"""Stage `subset`: the selected documents, in the source's columns and order, ready to publish.

DuckDB joins the masks to the quality files, by id and with counts asserted, and never sees an
embedding or a text. The rows themselves are streamed from the source and written by pyarrow,
which keeps the source's types and writes what the Hub works best with: content-defined chunks (a
rebuild uploads only what changed) and a page index (the viewer reads single pages).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask import budget
from datamask.config import Compute
from datamask.errors import CorruptFileError
from datamask.out_of_core import temporary_duckdb
from datamask.sources import read_shard, source_schema
from datamask.store import Run, write_parquet

logger = logging.getLogger(__name__)

OURS = pa.schema(
    [
        pa.field("quality", pa.float64()),
        pa.field("logit", pa.float32()),
        pa.field("shard", pa.int32()),
    ]
)
"""Columns appended to the source's; a source that has one of them gets it replaced."""

PARQUET_OPTIONS = {
    "write_page_index": True,
    "use_content_defined_chunking": {
        "min_chunk_size": 256 * 1024,
        "max_chunk_size": 1024 * 1024,
        "norm_level": 0,
    },
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A shard's selected documents, in the source's order; all of length S."""

    rows: np.ndarray
    ids: pa.Array
    quality: np.ndarray
    logits: np.ndarray


def merge_subset(run: Run, compute: Compute) -> None:
    """Write every file of the subset that is missing or stale, and remove what is of another cut.

    Raises:
        RunError: a shard's mask is missing or stale.
        CorruptFileError: masks, quality files and source do not hold the same documents.
        StorageError: the disk is full.
    """
    for shard in range(run.num_shards):
        run.receipt("masks", shard)
    expected = {run.path("subset", unit) for unit in range(run.num_units("subset"))}
    for path in sorted((run.root / "subset").glob("train-*.parquet")):
        if path not in expected:
            path.unlink()
    schema = subset_schema(run)
    for unit in run.remaining("subset"):
        file = run.subset_files[unit]
        shards = _file_shards(run, file, compute)
        receipt = write_parquet(
            run.path("subset", unit),
            schema,
            _row_groups(run, shards, schema),
            lambda rows, unit=unit, file=file: run.make_receipt(  # type: ignore[misc]
                "subset", unit, rows, {"shards": list(file.shards)}
            ),
            root=run.root,
            **PARQUET_OPTIONS,
        )
        assert receipt is not None
        logger.info("subset: %s: %d documents", run.path("subset", unit).name, receipt.rows)


def subset_schema(run: Run) -> pa.Schema:
    """The source's columns in their order, then ours."""
    kept = [field for field in source_schema(run) if field.name not in OURS.names]
    return pa.schema([*kept, *OURS])


def selected_count(run: Run, shard: int) -> int:
    """How many documents of a shard are to be kept.

    Raises:
        RunError: its quality is missing or stale.
    """
    counts = run.receipt("quality", shard).figures
    total = budget.total_budget(run.settings.selection, run.num_documents)
    return budget.shard_budget(total, counts["kept_before"], counts["kept"], counts["kept_total"])


def chosen_documents(run: Run, shard: int, compute: Compute) -> Chosen:
    """Join a shard's mask to its quality file.

    Raises:
        CorruptFileError: the two do not hold the same documents, or the mask misses the budget.
    """
    mask, quality = run.path("masks", shard), run.path("quality", shard)
    with temporary_duckdb(run.root, compute) as connection:
        joined = connection.sql(
            "SELECT q.row, q.id, q.quality, m.logit, m.selected "
            "FROM (SELECT * FROM read_parquet($quality) WHERE dropped IS NULL) q "
            "FULL JOIN read_parquet($mask) m ON q.id = m.chunk_id ORDER BY q.row",
            params={"quality": str(quality), "mask": str(mask)},
        ).to_arrow_table()
    unmatched = joined["row"].null_count + joined["logit"].null_count
    if unmatched:
        raise CorruptFileError(
            f"{mask}: {unmatched} documents do not match {quality}; delete it and relaunch"
        )
    kept = joined.filter(joined["selected"])
    if kept.num_rows != selected_count(run, shard):
        raise CorruptFileError(
            f"{mask}: {kept.num_rows} selected, {selected_count(run, shard)} due; delete it and "
            "relaunch"
        )
    return Chosen(
        kept["row"].to_numpy(),
        kept["id"].combine_chunks(),
        kept["quality"].to_numpy(),
        kept["logit"].to_numpy(),
    )


def _file_shards(
    run: Run, file: budget.SubsetFile, compute: Compute
) -> Iterator[tuple[int, Chosen]]:
    for shard in file.shards:
        chosen = chosen_documents(run, shard, compute)
        start = len(chosen.rows) * file.part // file.parts
        stop = len(chosen.rows) * (file.part + 1) // file.parts
        part = slice(start, stop)
        yield (
            shard,
            Chosen(chosen.rows[part], chosen.ids[part], chosen.quality[part], chosen.logits[part]),
        )


def _row_groups(
    run: Run, shards: Iterator[tuple[int, Chosen]], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Selected rows in tables of about `row_group_bytes`; each becomes one row group."""
    limit = run.settings.subset.row_group_bytes
    waiting: list[pa.RecordBatch] = []
    size = 0
    for shard, chosen in shards:
        for batch in _selected_rows(run, shard, chosen, schema):
            waiting.append(batch)
            size += batch.nbytes
            if size >= limit:
                yield pa.Table.from_batches(waiting).combine_chunks()
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _selected_rows(
    run: Run, shard: int, chosen: Chosen, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns = [name for name in schema.names if name not in OURS.names]
    id_place = columns.index(run.settings.source.id_column)
    start = first = 0
    for batch in read_shard(run, shard, columns):
        stop = start + batch.num_rows
        last = int(np.searchsorted(chosen.rows, stop))
        part = slice(first, last)
        rows = chosen.rows[part] - start
        start, first = stop, last
        if not len(rows):
            continue
        taken = batch.take(pa.array(rows))
        if not pc.all(pc.equal(taken.column(id_place).cast(pa.string()), chosen.ids[part])).as_py():
            raise CorruptFileError(
                f"{run.path('quality', shard)}: other ids than the source's; delete it and relaunch"
            )
        shards = pa.array(np.full(len(rows), shard, dtype=np.int32))
        ours = [pa.array(chosen.quality[part]), pa.array(chosen.logits[part]), shards]
        yield pa.RecordBatch.from_arrays([*taken.columns, *ours], schema=schema)
    if first != len(chosen.rows):
        raise CorruptFileError(
            f"{run.path('quality', shard)}: rows beyond the source's end; delete it and relaunch"
        )
