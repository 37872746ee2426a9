"""Stage `embeddings`: unit vectors of the documents of a shard that survived pruning.

Ids are compared with the quality file row by row, and counts at the end, so no document is lost,
duplicated or embedded under the id of another. The unit's record holds the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.embedding import vectors
from datamask.embedding.chunked import computed_chunks, regrouped
from datamask.embedding.loose_texts import text_embedder
from datamask.embedding.pinning import PIN
from datamask.embedding.reuse import VECTORS_OF, content_column, earlier_rows, merged, vectors_of
from datamask.embedding.vector_files import read_placed
from datamask.errors import CorruptFileError, InputError
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.in_progress import note
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.reading import read_shard, row_error

ROWS_PER_GROUP = 16_384


def embed_shard(run: Run, shard: int, compute: Compute) -> None:
    """Write `embeddings/NNNNN.parquet`: a unit vector per surviving document, in source order.

    Vectors of the user's own come from the source or from files; otherwise the text is embedded.

    Raises:
        InputError: a vector of the source is missing, has the wrong width or is not finite, or the
            model gives none for a document.
        CorruptFileError: source and quality file do not hold the same documents.
    """
    ids, survives = _survivors(run, shard)
    rows = earlier_rows(run, shard, ids.filter(pa.array(survives)))
    is_new = np.zeros_like(survives)
    is_new[np.flatnonzero(survives)[rows < 0]] = True
    storage = run.settings.embedding.storage
    schema = schemas.embeddings(run.settings.embedding.dimension, storage)
    embedded = (
        pa.Table.from_arrays([names, *vectors.to_columns(matrix, storage), read], schema=schema)
        for names, matrix, read in _embedded(run, shard, ids, is_new, compute)
    )
    # Use row groups of one size, so that the file does not depend on the size of the chunks.
    tables, reused = regrouped(embedded, ROWS_PER_GROUP), int((rows >= 0).sum())
    if reused:
        tables = merged(run.path("embeddings", shard), rows, embedded, ROWS_PER_GROUP)
    metrics = {
        "encoder": encoder_name(run),
        "revision": run.pinned_revisions.get(PIN),
        VECTORS_OF: vectors_of(run, shard),
    }
    write_output(run, "embeddings", shard, schema, tables, metrics)
    note(reused=reused)


def _survivors(run: Run, shard: int) -> tuple[pa.Array, np.ndarray]:
    """Return ids of all documents of a shard, as text, and a mask of survivors of pruning; bool."""
    run.receipt("quality", shard)
    quality = run.read_output("quality", shard, ["id", "dropped"])
    return quality["id"].combine_chunks(), quality["dropped"].is_null().to_numpy()


def _embedded(
    run: Run, shard: int, ids: pa.Array, is_wanted: np.ndarray, compute: Compute
) -> Iterator[tuple[pa.Array, np.ndarray, pa.Array]]:
    """Yield ids, vectors (float16) and `text_read` of the wanted documents, chunk by chunk."""
    if not is_wanted.any():
        return
    if run.settings.vector_column and run.settings.vector_files:
        rows = np.flatnonzero(is_wanted)
        matrix = read_placed(run, shard, ids, rows)
        for start in range(0, len(rows), ROWS_PER_GROUP):
            group = slice(start, start + ROWS_PER_GROUP)
            names = ids.take(pa.array(rows[group]))
            yield names, matrix[group], pa.nulls(len(names), pa.float32())
        return
    prepare, embed = _embedder(run, shard, compute)
    batches = [compute.device_kind, compute.embedding_batch]
    checkpoints = None
    if not run.settings.vector_column:
        how = (run.fingerprint("embeddings", shard), batches)
        checkpoints = Checkpoints(run, "embeddings", shard, how)

    def arrays(batch: pa.RecordBatch, prepared: Any) -> State:
        read = prepared.share_read() if prepared else np.full(len(batch), np.nan)
        # Round as the file does, so that stored and computed vectors agree: float16 in both.
        return {"vectors": embed(batch, prepared).astype(np.float16), "text_read": read}

    wanted, number = _wanted(run, shard, ids, is_wanted), int(is_wanted.sum())
    for batch, made in computed_chunks(wanted, number, prepare, arrays, checkpoints):
        read = pa.array(made["text_read"], pa.float32(), from_pandas=True)
        yield batch.column(0), made["vectors"], read


def own_vectors(run: Run, shard: int, rows: np.ndarray) -> np.ndarray:
    """Read the user's own vectors of some rows of a shard, ascending; unit rows, N x D.

    Errors are as in `embed_shard`.
    """
    ids, survives = _survivors(run, shard)
    is_wanted = np.zeros_like(survives)
    is_wanted[rows] = True
    return np.concatenate([m for _, m, _ in _embedded(run, shard, ids, is_wanted, Compute())])


def encoder_name(run: Run) -> str:
    """Return the origin of the vectors, as recorded in every output."""
    embedding, column = run.settings.embedding, run.settings.vector_column
    if column:
        files = run.settings.vector_files
        return f"{files}, column {column}" if files else f"source column {column}"
    return embedding.model if embedding.has_model else embedding.method


def _wanted(
    run: Run, shard: int, known: pa.Array, is_wanted: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows (id, content, row in the shard) of the source; *known* are its ids."""
    other = f"{run.path('quality', shard)}: other ids than the source's; delete it and relaunch"
    start, source = 0, run.settings.source
    for batch in read_shard(run, shard, [source.id_column, content_column(run.settings)]):
        stop = start + batch.num_rows
        ids = batch.column(0).cast(pa.string())
        if not ids.equals(known.slice(start, batch.num_rows)):
            raise CorruptFileError(other)
        columns = [ids, batch.column(1), pa.array(np.arange(start, stop))]
        batch = pa.RecordBatch.from_arrays(columns, names=["id", "content", "row"])
        yield batch.filter(pa.array(is_wanted[start:stop]))
        start = stop
    if start != len(known):
        raise CorruptFileError(other)


def _embedder(
    run: Run, shard: int, compute: Compute
) -> tuple[Callable[[pa.RecordBatch], Any], Callable[[pa.RecordBatch, Any], np.ndarray]]:
    """Return two functions: one prepares rows in a thread, one makes unit vectors (float32)."""
    embedding, name = run.settings.embedding, run.settings.vector_column
    if not name:
        revision, windows = run.pinned_revisions.get(PIN, ""), run.settings.source.windows
        tokenise, encode = text_embedder(embedding, revision, compute, windows)
        return (
            lambda batch: tokenise(batch.column(1).to_pylist()),
            lambda batch, prepared: encode(prepared, batch.column(0).to_pylist()),
        )

    def imported(batch: pa.RecordBatch, _: Any) -> np.ndarray:
        try:
            matrix = vectors.to_matrix(batch.column(1), embedding.dimension, name=name)
            return vectors.normalise(matrix, name=name)
        except InputError as error:
            row = batch.column(2)[error.row or 0].as_py()
            raise row_error(run, shard, row, name, error.problem) from None

    return lambda batch: None, imported
