"""Reuse vectors of a stale embeddings file for documents that survive pruning again.

Other scores, another `prune_fraction` or more documents change which documents of a shard survive,
but not their vectors. If the file has the same rows, content and encoder, its vectors are copied as
they are stored, and only the other documents are embedded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.settings import Settings
from datamask.errors import CorruptFileError
from datamask.runs.files import read_columns, reading
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run, digest
from datamask.runs.schemas import identify_rows
from datamask.runs.stages import STAGES

logger = logging.getLogger(__name__)

VECTORS_OF = "vectors_of"
"""Metric in the receipt of an embeddings file that is compared: `vectors_of` of its shard."""


def content_column(settings: Settings) -> str:
    """Name the column of the source that is embedded, or else the column that has the vectors."""
    return settings.vector_column or settings.source.columns.text


def vectors_of(run: Run, shard: int) -> str:
    """Return a digest of what determines a shard's vectors, whichever documents survive."""
    stage, source = STAGES["embeddings"], run.settings.source
    rows = identify_rows(run.shard_pieces[shard], run.settings, run.pinned_revisions)
    how = [stage.version, stage.settings(run.settings), run.pinned(stage)]
    return digest(how, source.layout, source.id_column, content_column(run.settings), rows)


def has_same_vectors(receipt: Receipt, run: Run, shard: int) -> bool:
    """Return True if an embeddings file, of this run or another, has vectors of this shard."""
    return receipt.metrics.get(VECTORS_OF) == vectors_of(run, shard)


def earlier_rows(run: Run, shard: int, ids: pa.Array) -> np.ndarray:
    """Return the row of each document in the shard's stale embeddings file, or -1; int64.

    All are -1 if there is no such file, if it is damaged or has other rows, content or encoder, or
    if it is not stale: then its vectors must be made again.
    """
    none = np.full(len(ids), -1)
    if run.state("embeddings", shard) != "stale":
        return none
    try:
        path = run.path("embeddings", shard)
        if not run.storage.noted_sha256(run.name("embeddings", shard)):
            raise CorruptFileError(f"{path}: its checksum is missing")
    except CorruptFileError as error:
        logger.warning("%s; all documents are embedded again", error)
        return none
    if not has_same_vectors(read_receipt(path), run, shard):
        return none
    stored = read_columns(path, ["chunk_id"])["chunk_id"].combine_chunks()
    positions = pc.index_in(ids, value_set=stored).fill_null(-1)
    return np.asarray(positions.to_numpy(zero_copy_only=False).astype(np.int64))


def merged(
    path: Path, rows: np.ndarray, embedded: Iterator[pa.Table], rows_per_group: int
) -> Iterator[pa.Table]:
    """Yield row groups of earlier and of new vectors, in the order of the documents.

    The earlier file has row groups of *rows_per_group* rows, and so has the result. *rows* come
    from `earlier_rows`; *embedded* are the documents without an earlier row, in tables of any size.
    """
    with reading(path):
        opened = pq.ParquetFile(path, page_checksum_verification=True)
    # Errors of *embedded* do not belong to the file.
    with opened as file:
        waiting = file.schema_arrow.remove_metadata().empty_table()
        for start in range(0, len(rows), rows_per_group):
            part = rows[start : start + rows_per_group]
            is_new = part < 0
            new = int(is_new.sum())
            while len(waiting) < new:
                waiting = pa.concat_tables([waiting, next(embedded)])
            with reading(path):
                stored = _stored(file, part[~is_new], rows_per_group)
            tables = [waiting.slice(0, new), stored]
            order = np.empty(len(part), np.int64)
            order[is_new], order[~is_new] = np.arange(new), np.arange(new, len(part))
            yield pa.concat_tables(tables).combine_chunks().take(order).combine_chunks()
            waiting = waiting.slice(new)
        # At its end it notes the speed.
        assert next(embedded, None) is None and not len(waiting), "each survivor once"


def _stored(file: pq.ParquetFile, rows: np.ndarray, rows_per_group: int) -> pa.Table:
    """Read some rows of a file, ascending; only their row groups are read."""
    first, last = (rows[[0, -1]] // rows_per_group) if len(rows) else (0, -1)
    table = file.read_row_groups(list(range(first, last + 1)))
    return table.replace_schema_metadata().take(rows - first * rows_per_group)
