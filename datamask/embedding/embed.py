"""Stage `embeddings`: unit vectors of the documents of a shard that survived pruning.

Texts are streamed in chunks. A chunk is read and tokenised while the model works on the one before;
the unit's record holds the speed. Ids are compared with the quality file row by row, and counts at
the end, so no document is lost, duplicated or embedded under the id of another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.embedding import vectors
from datamask.embedding.pinning import PIN
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.embedding.read_ahead import read_ahead
from datamask.embedding.speed import METRICS
from datamask.errors import CorruptFileError, InputError
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.records import note
from datamask.runs.run import Run, digest
from datamask.source.reading import locate, read_shard

logger = logging.getLogger(__name__)

ROWS_PER_GROUP = 16_384
SECONDS_BETWEEN_LINES = 10


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Documents that are embedded together.

    Args:
        name: of its checkpoint.
        batch: id, content, row in the shard.
        kept: its vectors, if an earlier attempt saved them.
        prepared: otherwise, the result of `Embedder.prepare`.
    """

    name: str
    batch: pa.RecordBatch
    kept: np.ndarray | None
    prepared: Any


class _ShardEmbedding:
    """Embeds the chunks of a shard and saves their vectors until the shard is finished."""

    def __init__(self, run: Run, shard: int, compute: Compute) -> None:
        self.embedder = _embedder(run, shard, compute)
        how = [compute.device_kind, compute.embedding_batch, compute.embedding_chunk]
        how.append(compute.compile_model)
        self.checkpoints = Checkpoints(run, "embeddings", shard, how, 0)
        self.keep = run.settings.source.layout != "features"
        self.metrics = dict.fromkeys(METRICS, 0.0)

    def prepared(self, numbered: tuple[int, pa.RecordBatch]) -> Chunk:
        """A chunk with its tokens, or with the vectors that an earlier attempt saved."""
        number, batch = numbered
        # The digest names the ids: as an array they would be padded to the longest.
        name = f"{number:06d}-{digest(batch.column(0).to_pylist())}"
        if self.keep and (found := self.checkpoints.load(name)) is not None:
            return Chunk(name, batch, found["vectors"], None)
        return Chunk(name, batch, None, self.embedder.prepare(batch))

    def vectors_of(self, chunk: Chunk) -> np.ndarray:
        """The vectors of a chunk, float16."""
        if chunk.kept is not None:
            return chunk.kept
        self.metrics["documents"] += chunk.batch.num_rows
        self.metrics["tokens"] += getattr(chunk.prepared, "tokens", 0)
        self.metrics["padded_tokens"] += getattr(chunk.prepared, "padded_tokens", 0)
        # float16, as written, so that saved vectors and new ones are the same.
        made = self.embedder.embed(chunk.batch, chunk.prepared).astype(np.float16)
        if self.keep:
            self.checkpoints.save(chunk.name, {"vectors": made})
        return made


def embed_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `embeddings/NNNNN.parquet`: a unit vector per surviving document, in source order.

    Layout `features` imports the vectors of the source; otherwise the text is embedded.

    Raises:
        RunError: the quality of the shard is missing or stale.
        InputError: a vector of the source is missing, has the wrong width or is not finite, or the
            model gives none for a document.
        CorruptFileError: source and quality file do not hold the same documents.
    """
    kept = run.receipt("quality", shard).metrics["kept"]
    dimension = run.settings.embedding.dimension
    work = _ShardEmbedding(run, shard, compute)
    metrics = work.metrics
    done = 0
    logged = start = time.monotonic()

    def tables() -> Iterator[pa.Table]:
        nonlocal done, logged
        size = min(compute.embedding_chunk, ROWS_PER_GROUP)
        chunks = read_ahead(
            _chunks(_survivors(run, shard, work.embedder.content), size), work.prepared
        )
        waiting = time.monotonic()
        for chunk in chunks:
            metrics["waited_seconds"] += time.monotonic() - waiting
            column = vectors.to_column(work.vectors_of(chunk))
            done += chunk.batch.num_rows
            if time.monotonic() - logged >= SECONDS_BETWEEN_LINES or done == kept:
                logged = time.monotonic()
                logger.info("embeddings: shard %05d: %d of %d documents", shard, done, kept)
            arrays = [chunk.batch.column(0), column]
            yield pa.Table.from_arrays(arrays, schema=schemas.embeddings(dimension))
            waiting = time.monotonic()

    def receipt(rows: int) -> Receipt:
        if rows != kept:
            raise CorruptFileError(
                f"{run.path('quality', shard)}: {kept} documents survive, {rows} were embedded; "
                "delete it and relaunch"
            )
        metrics = {"encoder": encoder_name(run), "revision": run.pinned_revisions.get(PIN)}
        return run.make_receipt("embeddings", shard, rows, metrics)

    made = write_parquet(
        run.local_path("embeddings", shard),
        schemas.embeddings(dimension),
        _regrouped(tables()),
        receipt,
        storage=run.storage,
        use_dictionary=["chunk_id"],
    )
    assert made is not None
    work.checkpoints.clear()
    metrics["seconds"] = time.monotonic() - start
    note(**metrics)
    return made


def encoder_name(run: Run) -> str:
    """The origin of the vectors, as recorded in every output."""
    if run.settings.source.layout == "features":
        return f"source column {run.settings.source.columns.feature_arr}"
    embedding = run.settings.embedding
    return embedding.model if embedding.has_model else embedding.method


def _chunks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Chunks of *size* rows, numbered from 0, whatever the size of the batches."""
    waiting: list[pa.RecordBatch] = []
    rows = number = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        while rows >= size:
            table = pa.Table.from_batches(waiting).combine_chunks()
            yield number, table.slice(0, size).to_batches()[0]
            number += 1
            rest = table.slice(size)
            waiting, rows = rest.to_batches(), rest.num_rows
    if rows:
        yield number, pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def _regrouped(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Row groups of one size, so that the file does not depend on the size of the chunks."""
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
    """Rows (id, content, row in the shard) of the source that survived pruning."""
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

    def tokenised(batch: pa.RecordBatch) -> sentence_transformer.Tokenised:
        texts = batch.column(1).to_pylist()
        return sentence_transformer.tokenise(encoder, texts, embedding, compute.embedding_batch)

    def encoded(batch: pa.RecordBatch, prepared: sentence_transformer.Tokenised) -> np.ndarray:
        return sentence_transformer.embed(encoder, prepared, embedding, batch.column(0).to_pylist())

    return Embedder(columns.text, encoded, tokenised)
