"""Stage `embeddings`: unit vectors of the documents of a shard that survived pruning.

The text is streamed in chunks and never held whole. Ids are compared with the quality file's row
by row, and counts at the end: no document is lost, doubled or embedded under another's name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from datamask import schemas
from datamask.checkpoints import Checkpoints
from datamask.config import Compute
from datamask.embedding import vectors
from datamask.embedding.pinning import PIN
from datamask.errors import CorruptFileError, InputError
from datamask.sources import locate, read_shard
from datamask.store import Receipt, Run, read_columns, write_parquet

logger = logging.getLogger(__name__)

ROWS_PER_GROUP = 16_384
SECONDS_BETWEEN_LINES = 10

Embedder = Callable[[pa.RecordBatch], np.ndarray]
"""Takes rows of (id, text or vector, row in the shard); unit rows, N x D."""


def embed_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `embeddings/NNNNN.parquet`: a unit vector per surviving document, in source order.

    Layout `features` imports the vectors it brings; otherwise the text is embedded.

    Raises:
        RunError: the shard's quality is not there yet.
        InputError: a vector of the source is missing, of another width, or not finite; or the
            model gives none for a document.
        CorruptFileError: source and quality file do not hold the same documents.
    """
    kept = run.receipt("quality", shard).figures["kept"]
    dimension = run.settings.embedding.dimension
    content, embedder = _embedder(run, shard, compute)
    how = [compute.device_kind, compute.embedding_batch, compute.embedding_chunk]
    checkpoints = Checkpoints(run, "embeddings", shard, how, 0)
    if run.settings.source.layout != "features":
        embedder = _checkpointed(embedder, checkpoints)
    done, told = 0, time.monotonic()

    def batches() -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        size = min(compute.embedding_chunk, ROWS_PER_GROUP)
        for batch in _survivors(run, shard, content):
            waiting.append(batch)
            rows += batch.num_rows
            while rows >= size:
                table = pa.Table.from_batches(waiting).combine_chunks()
                head, rest = table.slice(0, size), table.slice(size)
                yield embedded(head)
                waiting, rows = rest.to_batches(), rest.num_rows
        if rows:
            yield embedded(pa.Table.from_batches(waiting).combine_chunks())

    def embedded(table: pa.Table) -> pa.Table:
        nonlocal done, told
        batch = table.to_batches()[0]
        column = vectors.to_column(embedder(batch))
        done += table.num_rows
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES or done == kept:
            told = time.monotonic()
            logger.info("embeddings: shard %05d: %d of %d documents", shard, done, kept)
        return pa.Table.from_arrays([batch.column(0), column], schema=schemas.embeddings(dimension))

    def receipt(rows: int) -> Receipt:
        if rows != kept:
            raise CorruptFileError(
                f"{run.path('quality', shard)}: {kept} documents go on, {rows} were embedded; "
                "delete it and relaunch"
            )
        figures = {"encoder": encoder_name(run), "revision": run.pins.get(PIN)}
        return run.make_receipt("embeddings", shard, rows, figures)

    made = write_parquet(
        run.path("embeddings", shard),
        schemas.embeddings(dimension),
        _regrouped(batches()),
        receipt,
        root=run.root,
        use_dictionary=["chunk_id"],
    )
    assert made is not None
    checkpoints.clear()
    return made


def encoder_name(run: Run) -> str:
    """What made the vectors, as recorded in every output."""
    if run.settings.source.layout == "features":
        return f"source column {run.settings.source.columns.feature_arr}"
    embedding = run.settings.embedding
    return "lexical" if embedding.method == "lexical" else embedding.model


def _checkpointed(embedder: Embedder, checkpoints: Checkpoints) -> Embedder:
    """Keep every chunk's vectors until the shard is whole; a killed shard goes on after them."""
    chunk = 0

    def embed(batch: pa.RecordBatch) -> np.ndarray:
        nonlocal chunk
        name, ids = f"{chunk:06d}", batch.column(0).to_pylist()
        chunk += 1
        kept = checkpoints.load(name)
        if kept is not None and kept["ids"].tolist() == ids:
            return kept["vectors"]
        # As they are written: float16 is what both ways give.
        made = embedder(batch).astype(np.float16)
        checkpoints.save(name, {"ids": np.asarray(ids), "vectors": made})
        return made

    return embed


def _regrouped(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Row groups of one size, so that the file does not depend on the chunk's."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= ROWS_PER_GROUP:
            joined = pa.concat_tables(waiting).combine_chunks()
            yield joined.slice(0, ROWS_PER_GROUP)
            waiting, rows = [joined.slice(ROWS_PER_GROUP)], rows - ROWS_PER_GROUP
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()


def _survivors(run: Run, shard: int, content: str) -> Iterator[pa.RecordBatch]:
    """Rows (id, content, row in the shard) of the source that were not dropped."""
    path = run.path("quality", shard)
    quality = read_columns(path, ["id", "dropped"])
    keep = quality["dropped"].is_null().to_numpy()
    start = 0
    id_column = run.settings.source.id_column
    for batch in read_shard(run, shard, [id_column, content]):
        stop = start + batch.num_rows
        ids = batch.column(0).cast(pa.string())
        expected = quality["id"].slice(start, batch.num_rows).combine_chunks()
        if not ids.equals(expected):
            raise CorruptFileError(
                f"{path}: other ids than the source's rows {start} to {stop}; delete it and "
                "relaunch"
            )
        columns = [ids, batch.column(1), pa.array(np.arange(start, stop))]
        batch = pa.RecordBatch.from_arrays(columns, names=["id", "content", "row"])
        yield batch.filter(pa.array(keep[start:stop]))
        start = stop
    if start != len(keep):
        raise CorruptFileError(f"{path}: {len(keep)} rows, the source has {start}")


def _embedder(run: Run, shard: int, compute: Compute) -> tuple[str, Embedder]:
    """The source's column to read, and what turns its values into unit rows."""
    settings = run.settings
    embedding, columns = settings.embedding, settings.source.columns
    if settings.source.layout == "features":
        name = columns.feature_arr

        def imported(batch: pa.RecordBatch) -> np.ndarray:
            try:
                matrix = vectors.to_matrix(batch.column(1), embedding.dimension, name=name)
                return vectors.normalise(matrix, name=name)
            except InputError as error:
                path, row = locate(run, shard, batch.column(2)[error.row or 0].as_py())
                raise InputError(
                    error.problem, path=path, shard=shard, row=row, column=name
                ) from None

        return columns.feature_arr, imported
    if embedding.method == "lexical":
        from datamask.embedding import lexical

        def hashed(batch: pa.RecordBatch) -> np.ndarray:
            return lexical.embed(batch.column(1).to_pylist(), embedding.dimension)

        return columns.text, hashed
    from datamask.embedding import sentence_transformer

    model = sentence_transformer.load_model(embedding, run.pins[PIN], compute)

    def encoded(batch: pa.RecordBatch) -> np.ndarray:
        texts, names = batch.column(1).to_pylist(), batch.column(0).to_pylist()
        return sentence_transformer.embed(model, texts, embedding, compute.embedding_batch, names)

    return columns.text, encoded
