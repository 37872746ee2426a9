"""Stage `embeddings`: unit vectors of the documents of a shard that survived pruning.

Texts are streamed in chunks. A chunk is read and tokenised while the model works on the one before;
the unit's record holds the speed. Ids are compared with the quality file row by row, and counts at
the end, so no document is lost, duplicated or embedded under the id of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.embedding import vectors
from datamask.embedding.chunked import ChunkedWork, regrouped
from datamask.embedding.forward import Tokenised
from datamask.embedding.pinning import PIN
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.embedding.reuse import VECTORS_OF, earlier_rows, merged, vectors_of
from datamask.errors import CorruptFileError, InputError
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.in_progress import advance
from datamask.runs.receipt import Receipt
from datamask.runs.records import note
from datamask.runs.run import Run
from datamask.source.reading import locate, read_shard

ROWS_PER_GROUP = 16_384


@dataclass(frozen=True, slots=True)
class Embedder:
    """Turns rows of (id, text or vector, row in the shard) into unit vectors.

    Args:
        content: the source's column that it reads.
        embed: called with rows and the result of *prepare*; returns float32, N x D.
        prepare: the work of the host, done ahead in another thread.
    """

    content: str
    embed: Callable[[pa.RecordBatch, Any], np.ndarray]
    prepare: Callable[[pa.RecordBatch], Any] = lambda batch: None


def embed_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `embeddings/NNNNN.parquet`: a unit vector per surviving document, in source order.

    Layout `features` imports the vectors of the source; otherwise the text is embedded.

    Raises:
        RunError: the quality of the shard is missing or stale.
        InputError: a vector of the source is missing, has the wrong width or is not finite, or the
            model gives none for a document.
        CorruptFileError: source and quality file do not hold the same documents.
    """
    survivors = _survivors(run, shard)
    rows = earlier_rows(run, shard, survivors.ids.filter(pa.array(survivors.is_wanted)))
    storage, kept = run.settings.embedding.storage, len(rows)
    schema = schemas.embeddings(run.settings.embedding.dimension, storage)
    embedded = (
        pa.Table.from_arrays([ids, *vectors.to_columns(matrix, storage)], schema=schema)
        for ids, matrix in _embedded(run, shard, survivors.some(rows < 0), compute, "embeddings")
    )
    # Row groups of one size, so that the file does not depend on the size of the chunks.
    tables, reused = regrouped(embedded, ROWS_PER_GROUP), int((rows >= 0).sum())
    if reused:
        tables = merged(run.path("embeddings", shard), rows, embedded, ROWS_PER_GROUP)

    def receipt(rows: int) -> Receipt:
        if rows != kept:
            raise CorruptFileError(
                f"{run.path('quality', shard)}: {kept} documents survive, {rows} were embedded; "
                "delete it and relaunch"
            )
        metrics = {
            "encoder": encoder_name(run),
            "revision": run.pinned_revisions.get(PIN),
            VECTORS_OF: vectors_of(run, shard),
        }
        return run.make_receipt("embeddings", shard, rows, metrics)

    path, keys = run.local_path("embeddings", shard), ["chunk_id"]
    written = write_parquet(path, schema, tables, receipt, storage=run.storage, use_dictionary=keys)
    Checkpoints(run, "embeddings", shard, None, 0).clear()
    note(reused=reused)
    return receipt(written)


def embed_unkept(
    run: Run, shard: int, compute: Compute, stage: str, places: np.ndarray | None = None
) -> np.ndarray:
    """The vectors that a run which keeps none would have written.

    Args:
        run: the run.
        shard: its number.
        compute: how to compute.
        stage: whose checkpoints hold them until its output is written; empty: no checkpoints.
        places: of which survivors, ascending; None: of all.

    Returns:
        float16, N x D.

    Raises:
        as `embed_shard`.
    """
    survivors = _survivors(run, shard)
    if places is not None:
        survivors = survivors.some(places)
    found = np.empty((int(survivors.is_wanted.sum()), run.settings.embedding.dimension), np.float16)
    start = 0
    for _, matrix in _embedded(run, shard, survivors, compute, stage):
        found[start : start + len(matrix)] = matrix
        start += len(matrix)
    return found


@dataclass(frozen=True, slots=True)
class _Documents:
    """The documents of a shard.

    Args:
        ids: text, of all documents.
        is_wanted: of which documents vectors are to be made; bool.
    """

    ids: pa.Array
    is_wanted: np.ndarray

    def some(self, chosen: np.ndarray) -> _Documents:
        """The same with only some of the wanted documents, by their places or by a mask of them."""
        is_wanted = np.zeros_like(self.is_wanted)
        is_wanted[np.flatnonzero(self.is_wanted)[chosen]] = True
        return _Documents(self.ids, is_wanted)


def _survivors(run: Run, shard: int) -> _Documents:
    kept = run.receipt("quality", shard).metrics["kept"]
    path = run.path("quality", shard)
    quality = read_columns(path, ["id", "dropped"])
    survives = quality["dropped"].is_null().to_numpy()
    if int(survives.sum()) != kept:
        raise CorruptFileError(
            f"{path}: {survives.sum()} documents survive, but its receipt says {kept}; delete it "
            "and relaunch"
        )
    return _Documents(quality["id"].combine_chunks(), survives)


def _embedded(
    run: Run, shard: int, documents: _Documents, compute: Compute, stage: str
) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Ids and vectors (float16) of the wanted documents, chunk by chunk."""
    if not documents.is_wanted.any():
        return
    embedder = _embedder(run, shard, compute)
    how = [compute.device_kind, compute.embedding_batch, compute.embedding_chunk]
    checkpoints = None
    if stage and run.settings.source.layout != "features":
        checkpoints = Checkpoints(run, stage, shard, [*how, compute.compile_model], 0)

    def computed(batch: pa.RecordBatch, prepared: Any) -> np.ndarray:
        # As they are written: float16 is what both ways give.
        return embedder.embed(batch, prepared).astype(np.float16)

    work = ChunkedWork(embedder.prepare, computed, checkpoints)
    done, wanted = 0, int(documents.is_wanted.sum())
    size = min(compute.embedding_chunk, ROWS_PER_GROUP)
    for batch, matrix in work.arrays(_wanted(run, shard, embedder.content, documents), size):
        done += batch.num_rows
        advance(done, wanted)
        yield batch.column(0), matrix
    note(**work.finished_metrics())


def encoder_name(run: Run) -> str:
    """The origin of the vectors, as recorded in every output."""
    if run.settings.source.layout == "features":
        return f"source column {run.settings.source.columns.feature_arr}"
    embedding = run.settings.embedding
    return embedding.model if embedding.has_model else embedding.method


def _wanted(run: Run, shard: int, content: str, documents: _Documents) -> Iterator[pa.RecordBatch]:
    """The wanted rows (id, content, row in the shard) of the source."""
    path, start, size = run.path("quality", shard), 0, len(documents.ids)
    for batch in read_shard(run, shard, [run.settings.source.id_column, content]):
        stop = start + batch.num_rows
        ids = batch.column(0).cast(pa.string())
        if not ids.equals(documents.ids.slice(start, batch.num_rows)):
            raise CorruptFileError(
                f"{path}: other ids than the source's rows {start} to {stop}; delete it and "
                "relaunch"
            )
        columns = [ids, batch.column(1), pa.array(np.arange(start, stop))]
        batch = pa.RecordBatch.from_arrays(columns, names=["id", "content", "row"])
        yield batch.filter(pa.array(documents.is_wanted[start:stop]))
        start = stop
    if start != size:
        raise CorruptFileError(f"{path}: {size} rows, the source has {start}")


def _embedder(run: Run, shard: int, compute: Compute) -> Embedder:
    settings = run.settings
    embedding, columns = settings.embedding, settings.source.columns
    if settings.source.layout == "features":
        name = columns.feature_arr

        def imported(batch: pa.RecordBatch, _: Any) -> np.ndarray:
            try:
                matrix = vectors.to_matrix(batch.column(1), embedding.dimension, name=name)
                return vectors.normalise(matrix, name=name)
            except InputError as error:
                path, row = locate(run, shard, batch.column(2)[error.row or 0].as_py())
                raise InputError(
                    error.problem, path=path, shard=shard, row=row, column=name
                ) from None

        return Embedder(columns.feature_arr, imported)
    if not embedding.has_model:
        embedder = load_embedder(embedding.method)

        def made(batch: pa.RecordBatch, _: Any) -> np.ndarray:
            return unit_vectors(embedder, batch.column(1).to_pylist(), embedding.dimension)

        return Embedder(columns.text, made)
    from datamask.embedding import sentence_transformer

    encoder = sentence_transformer.load_model(embedding, run.pinned_revisions[PIN], compute)

    def tokenised(batch: pa.RecordBatch) -> Tokenised:
        texts = batch.column(1).to_pylist()
        return sentence_transformer.tokenise(encoder, texts, embedding, compute.embedding_batch)

    def encoded(batch: pa.RecordBatch, prepared: Tokenised) -> np.ndarray:
        return sentence_transformer.embed(encoder, prepared, embedding, batch.column(0).to_pylist())

    return Embedder(columns.text, encoded, tokenised)
